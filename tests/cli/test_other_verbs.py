"""init, cache, schema, explain and doctor."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagebuild.testing.images import write_layout
from imagebuild.testing.small_engine import SmallWorkspace, engine_base


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_init_makes_a_workspace_and_then_a_target_that_locks(
    tmp_path: Path, verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = verb("init", tmp_path / "mine", "--json")
    assert (made.code, made.document["kind"]) == (0, "init-result")
    assert (tmp_path / "mine" / "manifests").is_dir() or (tmp_path / "mine" / ".imagebuild.yaml").is_file()
    assert "manifests/** -text" in (tmp_path / "mine" / ".gitattributes").read_text()
    monkeypatch.chdir(tmp_path / "mine")
    base = engine_base(("linux/amd64", "linux/arm64"))
    write_layout(tmp_path / "mine" / "build" / "base", {"v1": base})
    ran = verb("init", "--base", "oci:build/base:v1", "--name", "tuned", "--json")
    assert ran.code == 0, ran.err
    assert str(base.digest) in ran.err
    target = tmp_path / "mine" / "manifests" / "tuned" / "target.yaml"
    assert [Path(path) for path in ran.document["written"]] == [target]
    assert f"oci:build/base:v1@{base.digest}" in target.read_text()
    assert verb("plan", "tuned", "--json").document["image_needed"] is False
    before = target.read_bytes()
    again = verb("init", "--base", "oci:build/base:v1", "--name", "tuned")
    assert target.read_bytes() == before
    assert again.code in (0, 2)


def test_init_twice_writes_nothing(tmp_path: Path, verb: Any) -> None:
    verb("init", tmp_path / "mine")
    (tmp_path / "mine" / ".gitattributes").write_text("*.bin binary\n")
    ran = verb("init", tmp_path / "mine", "--json")
    assert (ran.code, ran.document["written"]) == (0, [])
    assert (tmp_path / "mine" / ".gitattributes").read_text() == "*.bin binary\n"


def test_no_workspace_is_exit_2(tmp_path: Path, verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["build", "x"], ["lock", "x"], ["overlay", "list"], ["lock", "x", "-C", "nowhere"]):
        ran = verb(*words, "--json")
        assert (ran.code, ran.document["code"]) == (2, "target.no-workspace")
        assert "imagebuild init" in ran.document["hint"]


def test_a_target_that_does_not_exist_names_the_nearest(in_workspace: Any, verb: Any) -> None:
    in_workspace()
    ran = verb("build", "tunde", "--json")
    assert ran.code == 2
    assert "tuned" in ran.err


def test_cache_info_and_prune(in_workspace: Any, verb: Any) -> None:
    space: SmallWorkspace = in_workspace()
    verb("lock", "tuned", "--complete")
    info = verb("cache", "info", "--json").document
    assert (info["kind"], info["folder"]) == ("cache", str(space.cache))
    assert info["parts"]["facts"]["files"] == 4
    assert info["parts"]["content"]["bytes"] > 0
    kept = verb("cache", "prune", "--older-than", "1", "--json").document
    assert (kept["kind"], kept["files"]) == ("cache-pruned", 0)
    for path in space.cache.rglob("*"):
        if path.is_file():
            os.utime(path, (1, 1))
    pruned = verb("cache", "prune", "--older-than", "30", "--json").document
    assert pruned["files"] >= 5
    assert verb("cache", "info", "--json").document["parts"]["facts"]["files"] == 0
    assert verb("build", "tuned").code == 0
    assert verb("cache", "prune", "--older-than", "-1", "--json").code == 2


def test_the_cache_may_go_at_any_time(in_workspace: Any, verb: Any) -> None:
    space: SmallWorkspace = in_workspace()
    verb("lock", "tuned")
    digest = space.digest()
    shutil.rmtree(space.cache)
    assert verb("lock", "tuned").code == 0
    shutil.rmtree(space.cache)
    assert verb("build", "tuned", "--json").document["digest"] == str(digest)


def test_damaged_cache_entries_are_read_again(in_workspace: Any, verb: Any) -> None:
    space: SmallWorkspace = in_workspace()
    verb("lock", "tuned", "--complete")
    digest = space.digest()
    for path in space.cache.rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged" + path.read_bytes()[7:])
    again = verb("lock", "tuned", "--complete", "--json")
    assert (again.code, again.document["digest"]) == (0, str(digest))
    assert again.document["read_bytes"] > 0


def test_schemas_are_json_schemas(verb: Any) -> None:
    from imagebuild.cli.schemas import SCHEMAS

    for kind in SCHEMAS:
        ran = verb("schema", kind)
        assert ran.code == 0
        document = json.loads(ran.out)
        assert "$schema" in document
        assert json.loads(verb("schema", kind, "--json").out) == document
    assert verb("schema", "nonsense").code == 2


def test_explain(verb: Any) -> None:
    document = verb("explain", "overlay.preimage-mismatch", "--json").document
    assert (document["kind"], document["code"]) == ("code", "overlay.preimage-mismatch")
    assert document["title"]
    assert document["meaning"]
    assert document["do"]
    every = verb("explain", "--json").document["codes"]
    assert {"lock.stale", "registry.mount-refused", "content.disk-full"} <= set(every)
    ran = verb("explain", "overlay.preimage-mismatc", "--json")
    assert (ran.code, ran.document["hint"]) == (2, "did you mean: imagebuild explain overlay.preimage-mismatch")


def test_doctor(verb: Any, own_cache: Path) -> None:
    ran = verb("doctor", "--json")
    document = ran.document
    assert (ran.code, document["kind"]) == (0, "doctor")
    assert document["packages"]["PyYAML"] != "missing"
    assert set(document["programs"]) >= {"docker", "skopeo", "podman", "git"}
    assert document["cache"]["folder"] == str(own_cache)
    assert document["cache"]["writable"] is True
    assert set(document["runners"]) == {"docker", "podman", "oci", "slurm", "host"}
    assert document["runners"]["host"] is None
    assert "site" in document["runners"]["slurm"]
    assert "python" in verb("doctor").out


def test_doctor_says_why_a_runner_cannot_work(verb: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    monkeypatch.setenv("IMAGEBUILD_OCI_RUNTIME", str(tmp_path / "no-runtime"))
    runners = verb("doctor", "--json").document["runners"]
    assert "there is no such socket" in runners["docker"]
    assert f"there is no {tmp_path}/no-runtime" in runners["oci"]


def test_every_verb_has_help_with_an_example(verb: Any) -> None:
    from imagebuild.cli.verbs import VERBS

    for entry in VERBS:
        with pytest.raises(SystemExit) as caught:
            verb(entry.name, "--help")
        assert caught.value.code == 0, entry.name
