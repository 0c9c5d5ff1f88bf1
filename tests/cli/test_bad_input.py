"""Wrong input and bad luck, end to end: the right exit code, a stable code in --json, nothing half-written.

Reports retold here: vaimo/composer-patches#51 (already patched), gentoo/portage#481 (context differs), the history of
InferenceX (a whole-file replacement over a file with extra lines; a diff that touches what no wheel has),
goharbor/harbor#23600 (one byte of a blob changed).
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.overlay.patch_make import make_diff
from imagebuild.testing.images import write_layout
from imagebuild.testing.small_engine import ENVS, ENVS_AFTER, EXTRA, PACKAGE, SITE, SmallWorkspace, engine_base

Refused = Callable[..., dict[str, Any]]


@pytest.fixture
def refused(verb: Any) -> Refused:
    """Runs a verb that must fail with this exit code and error code, and leaves the workspace as it was."""

    def call(space: SmallWorkspace, code: int, error: str, *words: str) -> dict[str, Any]:
        before = space.snapshot()
        ran = verb(*words, "--json")
        assert (ran.code, ran.document.get("code")) == (code, error), ran.out + ran.err
        assert ran.document["kind"] == "error"
        assert ran.document["message"]
        assert space.snapshot() == before
        assert error in ran.err
        return ran.document

    return call


def guard(path: str, before: bytes, after: bytes) -> str:
    return f"  {path}: {{preimage: {Digest.of(before)}, postimage: {Digest.of(after)}}}\n"


def test_an_unpinned_base(in_workspace: Any, refused: Refused) -> None:
    space = in_workspace()
    space.base_reference = "oci:build/base:v1"
    space.write_target()
    for verb in ("lock", "build", "plan", "reproduce"):
        document = refused(space, 2, "target.base-unpinned", verb, "tuned")
        assert document["details"]["line"] == 3
        assert "@sha256" in document["details"]["expected"]


def test_an_unknown_key_is_told_with_its_line_and_the_nearest_key(in_workspace: Any, refused: Refused) -> None:
    space = in_workspace()
    space.write_target(more="overlay: [tune]\n")
    document = refused(space, 2, "schema.unknown-key", "lock", "tuned")
    assert document["details"]["line"] == 8
    assert document["details"]["file"].endswith("manifests/tuned/target.yaml")
    assert document["hint"] == "did you mean overlays?"


def test_a_guard_that_does_not_match_shows_the_difference(in_workspace: Any, refused: Refused) -> None:
    """The base's envs.py has a line that the file which the author started from had not."""
    changed = ENVS.replace(b"import os\n", b"import os\nimport sys\n")
    space = in_workspace(engine_base(package={**PACKAGE, "engine/envs.py": changed}))
    space.write_overlay(
        changes="  - file: files/envs.py\n    to: engine/envs.py\n",
        files={"files/envs.py": ENVS_AFTER},
        guards=guard("engine/envs.py", ENVS, ENVS_AFTER),
    )
    document = refused(space, 1, "overlay.preimage-mismatch", "lock", "tuned")
    assert document["details"]["expected"] == str(Digest.of(ENVS))
    assert document["details"]["found"] == str(Digest.of(changed))
    assert "\n-import sys\n" in document["details"]["diff"]
    assert "imagebuild overlay edit tune engine/envs.py" in document["hint"]


def test_one_line_of_context_differs(in_workspace: Any, refused: Refused) -> None:
    changed = ENVS.replace(b'"ENGINE_WORKERS", 1', b'"ENGINE_WORKERS", 2')
    space = in_workspace(engine_base(package={**PACKAGE, "engine/envs.py": changed}))
    document = refused(space, 1, "overlay.patch-mismatch", "lock", "tuned")
    assert "engine/envs.py" in document["message"]


def test_a_path_that_the_base_lacks(in_workspace: Any, refused: Refused) -> None:
    space = in_workspace()
    patch = make_diff("engine/gone.py", b"a\n", b"b\n")
    space.write_overlay(changes="  - patch: patches/1.patch\n", files={"patches/1.patch": patch})
    document = refused(space, 1, "overlay.path-missing", "lock", "tuned")
    assert "engine/gone.py" in document["message"]


def test_a_path_that_was_to_be_new(in_workspace: Any, refused: Refused) -> None:
    space = in_workspace(engine_base(package={**PACKAGE, "engine/extra.py": b"theirs\n"}))
    guards = f"  engine/extra.py: {{preimage: absent, postimage: {Digest.of(EXTRA)}}}\n"
    space.write_overlay(guards=guards)
    refused(space, 1, "overlay.path-exists", "lock", "tuned")


def test_a_file_that_is_already_patched(in_workspace: Any, refused: Refused, verb: Any) -> None:
    space = in_workspace(engine_base(package={**PACKAGE, "engine/envs.py": ENVS_AFTER}))
    patch = make_diff("engine/envs.py", ENVS, ENVS_AFTER)
    space.write_overlay(
        changes="  - patch: patches/1.patch\n",
        files={"patches/1.patch": patch},
        guards=guard("engine/envs.py", ENVS, ENVS_AFTER),
    )
    document = refused(space, 1, "overlay.already-applied", "lock", "tuned")
    assert document["details"]["already_applied"] is True
    assert "expect_applied" in document["hint"]
    space.write_target(expect_applied=["tune"])
    done = verb("lock", "tuned", "--json")
    assert done.code in (0, 1), done.err
    assert done.code == 0 or done.document["code"] != "overlay.already-applied"


def test_a_stale_lock(in_workspace: Any, refused: Refused, verb: Any) -> None:
    space = in_workspace()
    refused(space, 1, "lock.missing", "build", "tuned")
    assert verb("lock", "tuned").code == 0
    (space.root / "overlays" / "tune" / "files" / "extra.py").write_bytes(b"other\n")
    for words in (["build", "tuned"], ["reproduce", "tuned"], ["verify", "oci:build/base:v1", "--target", "tuned"]):
        document = refused(space, 1, "lock.stale", *words)
        assert document["details"]["stale"] == ["overlay tune has changed"]
        assert document["hint"] == "imagebuild lock tuned"
    before = space.snapshot()
    check = verb("lock", "tuned", "--check", "--json")
    assert (check.code, check.document["kind"], check.document["current"]) == (1, "lock-check", False)
    assert check.document["stale"] == ["overlay tune has changed"]
    assert space.snapshot() == before


def test_a_file_whose_size_and_time_stay_is_seen_to_change(in_workspace: Any, refused: Refused, verb: Any) -> None:
    """Change is seen by content alone."""
    space = in_workspace()
    path = space.root / "overlays" / "tune" / "files" / "extra.py"
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert verb("lock", "tuned").code == 0
    assert verb("build", "tuned").code == 0
    path.write_bytes(EXTRA.replace(b"True", b"None"))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    refused(space, 1, "lock.stale", "build", "tuned")
    space.write_overlay()
    path.write_bytes(EXTRA.replace(b"True", b"None"))
    old = space.digest()
    assert verb("lock", "tuned").code == 0
    assert space.digest() != old


def test_commentary_alone_makes_no_lock_stale(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    verb("lock", "tuned")
    old = space.digest()
    overlay = space.root / "overlays" / "tune" / "overlay.yaml"
    overlay.write_text(overlay.read_text().replace("author: tests", "author: others\nupstream_status: Pending"))
    assert verb("lock", "tuned", "--check").code == 0
    assert verb("build", "tuned").code == 0
    verb("lock", "tuned")
    assert space.digest() == old
    assert space.lock()["notes"]["overlays"][0]["author"] == "others"


@pytest.mark.parametrize("fault", ["truncated", "altered", "gone", "swapped"])
@pytest.mark.parametrize("which", ["layer", "manifest", "config"])
def test_a_base_layout_that_is_damaged(in_workspace: Any, verb: Any, which: str, fault: str) -> None:
    space = in_workspace()
    made = space.base
    layer = made.layers[2].descriptor.digest
    config = next(d for d, data in made.blobs.items() if data.startswith(b'{"created"'))
    digest = {"layer": layer, "manifest": made.digest, "config": config}[which]
    path = space.root / "build" / "base" / "blobs" / "sha256" / digest.hex
    data = path.read_bytes()
    match fault:
        case "truncated":
            path.write_bytes(data[:-7])
        case "altered":
            path.write_bytes(data[:-7] + bytes([data[-7] ^ 1]) + data[-6:])
        case "gone":
            path.unlink()
        case "swapped":
            path.write_bytes(made.blobs[made.layers[0].descriptor.digest])
    before = space.snapshot()
    ran = verb("lock", "tuned", "--json")
    assert ran.code == (3 if fault == "gone" else 1), ran.err
    assert ran.document["code"].partition(".")[0] in ("content", "oci", "layer")
    assert digest.hex[:12] in ran.err
    assert space.snapshot() == before
    path.write_bytes(data)
    assert verb("lock", "tuned").code == 0


def test_a_committed_content_file_that_lies(in_workspace: Any, refused: Refused, verb: Any) -> None:
    space = in_workspace()
    verb("lock", "tuned")
    path = space.folder() / "content" / "sha256" / f"{Digest.of(ENVS).hex}.z"
    good = path.read_bytes()
    for bad in (b"", good[:-3], good + b"x", b"no zlib at all"):
        path.write_bytes(bad)
        refused(space, 1, "content.damaged", "build", "tuned")
    path.write_bytes(zlib.compress(ENVS_AFTER))
    refused(space, 1, "content.digest-mismatch", "build", "tuned")


def test_content_that_is_gone_is_read_from_the_base_again(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    verb("lock", "tuned")
    for path in (space.folder() / "content").rglob("*.z"):
        path.unlink()
    built = verb("build", "tuned", "--json")
    assert (built.code, built.document["digest"]) == (0, str(space.digest())), built.err


def test_a_lock_that_was_edited_by_hand(in_workspace: Any, refused: Refused, verb: Any) -> None:
    space = in_workspace()
    verb("lock", "tuned")
    text = space.lock_path().read_text()
    space.lock_path().write_text(text.replace('"mode": "0644"', '"mode": "0666"', 1))
    document = refused(space, 1, "lock.content-id", "build", "tuned")
    assert "imagebuild lock" in document["hint"]
    space.lock_path().write_text(text[:-20])
    ran = verb("build", "tuned", "--json")
    assert ran.code == 2
    assert ran.document["kind"] == "error"


def test_a_full_disk(in_workspace: Any, verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room runs out at every fsync in turn (a real file system that is full is in the integration tests)."""
    space = in_workspace()
    assert verb("lock", "tuned").code == 0
    digest = str(space.digest())
    real, calls = os.fsync, 0
    limit = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > limit:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    while True:
        calls = 0
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            ran = verb("build", "tuned", "--output", "oci:out:v", "--json")
        if ran.code == 0:
            break
        assert (ran.code, ran.document["code"]) == (3, "content.disk-full")
        assert "run the same command" in ran.document["hint"]
        limit += 1
        assert limit < 50
    assert limit >= 4
    assert ran.document["digest"] == digest
    assert not list((space.root / "out").rglob(".imagebuild-tmp-*"))


def test_an_unnamed_image_of_others_in_the_output_stays(in_workspace: Any, refused: Refused, verb: Any) -> None:
    space = in_workspace()
    verb("lock", "tuned")
    write_layout(space.root / "build" / "tuned", engine_base(package={"engine/__init__.py": b""}, compiled=()))
    document = refused(space, 1, "oci.unnamed-taken", "build", "tuned")
    assert ":NAME" in document["hint"]
    assert verb("build", "tuned", "--force").code == 0


def test_a_name_in_a_layout_that_points_elsewhere_is_moved_and_the_old_digest_told(
    in_workspace: Any, verb: Any
) -> None:
    space = in_workspace()
    verb("lock", "tuned")
    other = engine_base(package={"engine/__init__.py": b""}, compiled=())
    write_layout(space.root / "out", {"v": other})
    built = verb("build", "tuned", "--output", "oci:out:v", "--json")
    assert (built.code, built.document["previous"]) == (0, [str(other.digest)])
    assert str(other.digest) in built.err


def test_references_that_cannot_be_outputs(in_workspace: Any, refused: Refused, verb: Any) -> None:
    space = in_workspace()
    verb("lock", "tuned")
    for output in (f"oci:out@{space.base.digest}", f"localhost:1/x@{space.base.digest}", "dir:/x"):
        refused(space, 2, "build.not-a-sink", "build", "tuned", "--output", output)
    refused(space, 2, "build.no-publish", "build", "tuned", "--push")
    refused(space, 2, "build.platform-not-locked", "build", "tuned", "--platform", "arm64")


def test_what_stands_in_the_way_of_new_paths(in_workspace: Any, refused: Refused) -> None:
    """A file where a folder would have to be, and a folder where a file would (moby/buildkit#4325)."""
    space = in_workspace()
    space.write_overlay(changes="  - file: files/a.py\n    to: engine/envs.py/a.py\n", files={"files/a.py": b"A = 1\n"})
    document = refused(space, 1, "overlay.path-conflict", "lock", "tuned")
    assert f"/{SITE}/engine/envs.py" in document["message"] or "engine/envs.py" in document["message"]
    space.write_overlay(changes="  - file: files/a.py\n    to: engine/data\n", files={"files/a.py": b"A = 1\n"})
    refused(space, 1, "overlay.path-conflict", "lock", "tuned")
