"""The JSON documents of the verbs: the fields that scripts rely on (cli.md), and the texts beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from imagebuild.build import reproduce as reproduce_module
from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.overlay.document import load_overlay
from imagebuild.testing.images import MadeImage
from imagebuild.testing.small_engine import CHANGES, ENVS, ENVS_AFTER, EXTRA, SITE, SmallWorkspace

Space = Callable[..., SmallWorkspace]


def test_lock(in_workspace: Space, verb: Any, any_base: MadeImage) -> None:
    space = in_workspace(any_base)
    ran = verb("lock", "tuned", "--json")
    document = ran.document
    assert (ran.code, document["kind"], document["schemaVersion"]) == (0, "lock-result", 1)
    assert document["file"] == str(space.lock_path())
    assert document["digest"] == str(space.digest())
    assert document["content_id"] == space.lock()["result"]["content_id"]
    assert [p["platform"] for p in document["platforms"]] == list(space.platforms)
    assert all((p["layers_read"], p["layers"]) == (2, 4) for p in document["platforms"])
    assert document["not_proven"]
    assert document["guards_written"] == ["overlays/tune/overlay.yaml"]
    assert document["transfer"] == {"requests": 0, "downloaded_bytes": 0, "uploaded_bytes": 0}
    text = verb("lock", "tuned")
    assert text.out == "manifests/tuned/target.lock.json\n"
    assert "not proven" in text.err


def test_lock_check(in_workspace: Space, verb: Any) -> None:
    in_workspace()
    assert verb("lock", "tuned", "--check", "--json").document["stale"] == ["there is no lock"]
    verb("lock", "tuned")
    ran = verb("lock", "tuned", "--check", "--json")
    assert (ran.code, ran.document["kind"], ran.document["current"], ran.document["stale"]) == (
        0,
        "lock-check",
        True,
        [],
    )


def test_locking_twice_changes_nothing(in_workspace: Space, verb: Any) -> None:
    space = in_workspace()
    verb("lock", "tuned", "--complete")
    before = space.snapshot()
    again = verb("lock", "tuned", "--complete", "--json")
    assert space.snapshot() == before
    assert (again.document["read_bytes"], again.document["guards_written"]) == (0, [])


def test_lock_writes_only_the_guards_that_are_missing(in_workspace: Space, verb: Any) -> None:
    """What a person wrote, comments too, stays as it is."""
    space = in_workspace()
    reviewed = f"  # reviewed\n  engine/extra.py: {{preimage: absent, postimage: 'sha256:{_hex(EXTRA)}'}}\n"
    folder = space.write_overlay(guards=reviewed)
    text = (folder / "overlay.yaml").read_text()
    ran = verb("lock", "tuned", "--json")
    assert ran.document["guards_written"] == ["overlays/tune/overlay.yaml"]
    after = (folder / "overlay.yaml").read_text()
    assert after.startswith(text.partition("guards:")[0])
    guards = load_overlay(folder).guards
    assert set(guards) == {f"engine/{name}.py" for name in ("envs", "extra", "legacy", "scheduler")}
    assert str(guards["engine/envs.py"].preimage[0]) == f"sha256:{_hex(ENVS)}"
    assert str(guards["engine/envs.py"].postimage) == f"sha256:{_hex(ENVS_AFTER)}"
    assert guards["engine/legacy.py"].postimage is None
    assert guards["engine/extra.py"].preimage == (None,)


def _hex(data: bytes) -> str:
    return Digest.of(data).hex


def test_plan(in_workspace: Space, verb: Any, any_base: MadeImage) -> None:
    space = in_workspace(any_base)
    first = verb("plan", "tuned", "--json").document
    assert (first["kind"], first["locked"]) == ("plan", False)
    stack = [layer.descriptor for layer in any_base.layers[:4]]
    assert [x["digest"] for x in first["platforms"][0]["read_from_the_top"]] == [str(d.digest) for d in stack[::-1]]
    assert first["lock"]["bytes_at_most"] == sum(
        {x.descriptor.digest: x.descriptor.size for x in any_base.layers}.values()
    )
    verb("lock", "tuned")
    plan = verb("plan", "tuned", "--json").document
    assert (plan["locked"], plan["digest"]) == (True, str(space.digest()))
    files = {item["path"]: item for item in plan["platforms"][0]["files"]}
    assert files[f"/{SITE}/engine/envs.py"]["guard"] == "matches"
    assert files[f"/{SITE}/engine/extra.py"]["guard"] == "absent-above"
    assert files[f"/{SITE}/engine/__pycache__/envs.cpython-312.pyc"]["guard"] == "derived"
    assert len(plan["platforms"][0]["unread"]) == 2
    assert plan["build"]["unchanged_requests"] == 1
    text = verb("plan", "tuned").out
    assert f"/{SITE}/engine/envs.py" in text
    assert str(space.digest()) in text


def test_plan_shows_set_id_capabilities_and_other_names(in_workspace: Space, verb: Any) -> None:
    """astral-sh/uv#15700, containerd/accelerated-container-image#251: what a replacement keeps, and what stays old."""
    from imagebuild.oci.platform import Platform
    from imagebuild.testing.images import File, HardLink, ImageSpec, LayerSpec, make_image
    from imagebuild.testing.small_engine import CONFIG, engine_layers, with_folders

    tools = with_folders(
        [
            File("opt/tool", b"old", 0o4755, xattrs={"security.capability": bytes.fromhex("0100000200040000")}),
            HardLink("opt/twin", "opt/tool"),
        ]
    )
    base = make_image(ImageSpec((*engine_layers(Platform.parse("linux/amd64")), LayerSpec(tools)), config=CONFIG))
    space = in_workspace(base)
    space.write_target(roots={"opt": {"path": "/opt"}}, identity=None)
    guards = f"  opt/tool: {{preimage: 'sha256:{_hex(b'old')}', postimage: 'sha256:{_hex(b'new')}'}}\n"
    space.write_overlay(changes="  - file: files/tool\n    to: opt/tool\n", files={"files/tool": b"new"}, guards=guards)
    locked = verb("lock", "tuned", "--complete", "--json")
    assert locked.code == 0, locked.err
    assert "base.hard-links" in {finding["code"] for finding in locked.document["findings"]}
    (item,) = verb("plan", "tuned", "--json").document["platforms"][0]["files"]
    assert len(item["notes"]) == 3
    assert any("4755" in note for note in item["notes"])
    assert any("security.capability" in note for note in item["notes"])
    assert any("/opt/twin" in note for note in item["notes"])
    built = verb("build", "tuned", "--json")
    assert verb("verify", built.document["reference"], "--target", "tuned").code == 0


def test_build(in_workspace: Space, verb: Any, any_base: MadeImage) -> None:
    space = in_workspace(any_base)
    verb("lock", "tuned")
    ran = verb("build", "tuned", "--json")
    document = ran.document
    assert (ran.code, document["kind"], document["target"]) == (0, "build-result", "tuned")
    assert document["reference"] == f"oci:{space.root}/build/tuned@{space.digest()}"
    assert document["digest"] == str(space.digest())
    assert document["content_id"] == space.lock()["result"]["content_id"]
    assert set(document["transfer"]) == {"requests", "downloaded_bytes", "uploaded_bytes", "mounted_blobs"}
    for platform in document["platforms"]:
        assert platform["platform"] in space.platforms
        for layer in platform["layers"]:
            assert set(layer) == {"role", "digest", "diff_id", "size"}
            assert layer["role"] == "changes"
    assert document["missing_blobs"] == []
    assert document["unchanged"] is False
    again = verb("build", "tuned")
    assert again.out == f"oci:build/tuned@{space.digest()}\n"
    assert "unchanged" in again.err


def test_build_of_one_platform_is_that_manifest(in_workspace: Space, verb: Any) -> None:
    space = in_workspace(platforms=("linux/amd64", "linux/arm64"), family=mt.DOCKER)
    verb("lock", "tuned")
    whole = verb("build", "tuned", "--output", "oci:out:all", "--json").document
    one = verb("build", "tuned", "--platform", "aarch64", "--output", "oci:out:arm", "--json").document
    assert one["digest"] == whole["platforms"][1]["digest"] == one["platforms"][0]["digest"]
    assert len(one["platforms"]) == 1
    index = json.loads((space.root / "out" / "index.json").read_bytes())
    assert {entry["digest"] for entry in index["manifests"]} == {whole["digest"], one["digest"]}
    verified = verb("verify", "oci:out:arm", "--target", "tuned", "--json")
    assert verified.code == 0, verified.out


def test_verify(in_workspace: Space, verb: Any, any_base: MadeImage) -> None:
    space = in_workspace(any_base)
    verb("lock", "tuned", "--complete")
    reference = verb("build", "tuned", "--json").document["reference"]
    ran = verb("verify", reference, "--target", "tuned", "--json")
    document = ran.document
    assert (ran.code, document["kind"], document["passed"]) == (0, "verification", True)
    assert document["digest"] == str(space.digest())
    for check in document["checks"]:
        assert {"code", "passed", "message", "expected", "found"} <= set(check)
    words = {check["code"]: check["passed"] for check in document["checks"]}
    assert words["verify.signature"] is None
    assert words["verify.layer-content"] is True
    claims = verb("verify", reference, "--json")
    assert claims.document["kind"] == "verification"
    assert claims.code in (0, 3)
    assert any(check["passed"] is None for check in claims.document["checks"])
    wrong = verb("verify", "oci:build/base:v1", "--target", "tuned", "--json")
    assert (wrong.code, wrong.document["passed"]) == (1, False)


def test_reproduce(in_workspace: Space, verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    this = {sys.version.split()[0]: sys.executable}
    monkeypatch.setattr(reproduce_module, "find_pythons", lambda: this)
    space = in_workspace()
    verb("lock", "tuned")
    ran = verb("reproduce", "tuned", "--json")
    document = ran.document
    assert (ran.code, document["kind"], document["reproducible"]) == (0, "reproduction", True), ran.err
    assert document["digest"] == str(space.digest())
    assert all(item["equal"] is True for item in document["rebuilds"])
    assert len(document["blobs"]) == 3
    monkeypatch.setattr(reproduce_module, "find_pythons", lambda: {"3.13.0": "/nonexistent/python"})
    none = verb("reproduce", "tuned", "--json")
    assert (none.code, none.document["reproducible"]) == (3, False)
    assert "not-run" in verb("reproduce", "tuned").out
    monkeypatch.setattr(reproduce_module, "image_blobs", lambda image: {"sha256:" + "0" * 64: 1})
    monkeypatch.setattr(reproduce_module, "find_pythons", lambda: this)
    different = verb("reproduce", "tuned", "--json")
    assert (different.code, different.document["kind"], different.document["reproducible"]) == (
        1,
        "reproduction",
        False,
    )


def test_a_target_without_overlay_needs_no_image(in_workspace: Space, verb: Any) -> None:
    space = in_workspace()
    space.write_target(overlays=None, env={"A": "1"}, requires={"env": {"ENGINE_PORT": "8000"}})
    plan = verb("plan", "tuned", "--json").document
    assert (plan["image_needed"], plan["recipe"]) == (False, {"ENGINE_PORT": "8000", "A": "1"})
    locked = verb("lock", "tuned", "--json")
    assert (locked.code, locked.document["code"]) == (2, "lock.no-image-needed")
    assert "A=1" in locked.document["hint"]


def test_events_file(in_workspace: Space, verb: Any) -> None:
    space = in_workspace()
    verb("lock", "tuned", "--events", "events.jsonl")
    verb("build", "tuned", "--events", "events.jsonl")
    lines = [json.loads(line) for line in (space.root / "events.jsonl").read_text().splitlines()]
    names = [line["event"] for line in lines]
    assert {"layer.read", "lock.deeper", "lock.stored", "layer.made", "image.storing", "image.stored"} <= set(names)
    assert names.index("lock.stored") < names.index("layer.made") < names.index("image.stored")
    assert all(line["time"].endswith("Z") for line in lines)


def test_overlay_check_and_list(in_workspace: Space, verb: Any) -> None:
    space = in_workspace()
    unlocked = verb("overlay", "check", "tune", "--json")
    assert (unlocked.code, unlocked.document["kind"]) == (1, "overlay-check")
    verb("lock", "tuned")
    ran = verb("overlay", "check", "tune", "--json")
    assert (ran.code, ran.document["passed"]) == (0, True)
    (space.root / "overlays" / "tune" / "files" / "extra.py").write_bytes(b"other\n")
    stale = verb("overlay", "check", "tune", "--json")
    assert (stale.code, stale.document["kind"], stale.document["passed"]) == (1, "overlay-check", False)
    listed = verb("overlay", "list", "--json").document["overlays"]
    assert [(item["name"], item["changes"], item["guards"], item["targets"]) for item in listed] == [
        ("tune", CHANGES.count("\n  - ") + 1, 4, ["tuned"])
    ]
