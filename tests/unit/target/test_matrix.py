"""Who runs what in CI: targets by platforms by checks, with labels from the site file, and what nobody can run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from imagebuild.testing.small_engine import SmallWorkspace

SITES = """\
schema: 1
sites:
  anywhere: {runner: docker, labels: [self-hosted, docker]}
  cluster: {runner: slurm, container: oci, skus: [b300, gb300], labels: [self-hosted, b300]}
  quiet: {runner: podman, skus: [mi355x]}
"""


@pytest.fixture
def space(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> SmallWorkspace:
    made = in_workspace(platforms=("linux/amd64", "linux/arm64"))
    made.write_target(checks={"smoke": {}, "gsm8k": {}})
    made.write_target("fast", sku="b300", checks={"smoke": {}})
    made.write_target("other", sku="mi355x", checks={"gsm8k": {}})
    made.write_target("plain")
    for name in ("tuned", "fast", "other", "plain"):
        assert verb("lock", name).code == 0
    (made.root / "sites.yaml").write_text(SITES)
    return made


def rows(document: dict[str, Any], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(one[key] for key in keys) for one in document["include"]]


def test_each_check_goes_where_its_accelerator_is(space: SmallWorkspace, verb: Any) -> None:
    done = verb("matrix", "tuned", "fast", "plain", "--json").document
    assert (done["kind"], done["left_out"]) == ("matrix", [])
    assert rows(done, "target", "check", "platform", "site", "labels") == [
        ("tuned", "build", "linux/amd64,linux/arm64", "", ["ubuntu-24.04"]),
        ("tuned", "smoke", "linux/amd64", "anywhere", ["self-hosted", "docker"]),
        ("tuned", "smoke", "linux/arm64", "anywhere", ["self-hosted", "docker"]),
        ("tuned", "gsm8k", "linux/amd64", "anywhere", ["self-hosted", "docker"]),
        ("tuned", "gsm8k", "linux/arm64", "anywhere", ["self-hosted", "docker"]),
        ("fast", "build", "linux/amd64,linux/arm64", "", ["ubuntu-24.04"]),
        ("fast", "smoke", "linux/amd64", "cluster", ["self-hosted", "b300"]),
        ("plain", "build", "linux/amd64,linux/arm64", "", ["ubuntu-24.04"]),
    ]


def test_the_line_is_the_value_of_a_strategy_matrix(space: SmallWorkspace, verb: Any) -> None:
    done = verb("matrix", "fast", "--check", "smoke")
    assert done.out.count("\n") == 1
    (row,) = json.loads(done.out)["include"]
    assert row == {
        "target": "fast",
        "platform": "linux/amd64",
        "arch": "amd64",
        "check": "smoke",
        "sku": "b300",
        "site": "cluster",
        "runner": "slurm",
        "labels": ["self-hosted", "b300"],
    }


def test_what_nobody_can_run_is_named_and_never_silently_gone(space: SmallWorkspace, verb: Any) -> None:
    done = verb("matrix", "other", "--check", "gsm8k", "--json")
    assert done.document["include"] == []
    (left,) = done.document["left_out"]
    assert left["reason"] == "site quiet names no labels of CI runners"
    assert "left out: other gsm8k on linux/amd64" in done.err
    (space.root / "sites.yaml").unlink()
    assert [one["reason"] for one in verb("matrix", "fast", "--json").document["left_out"]] == ["no site has b300"]


def test_a_target_without_a_lock_has_no_job(space: SmallWorkspace, verb: Any) -> None:
    space.lock_path("plain").unlink()
    done = verb("matrix", "plain", "--json").document
    assert done["include"] == []
    assert {one["reason"] for one in done["left_out"]} == {"it has no lock"}


def test_a_named_site_takes_the_checks(space: SmallWorkspace, verb: Any) -> None:
    done = verb("matrix", "tuned", "--site", "anywhere", "--check", "smoke", "--json").document
    assert {one["site"] for one in done["include"]} == {"anywhere"}
    assert verb("matrix", "--site", "nowhere").code == 2
    assert verb("matrix", "fast", "--site", "quiet", "--json").document["left_out"]


def test_builds_take_the_label_that_is_asked_for(space: SmallWorkspace, verb: Any) -> None:
    done = verb("matrix", "plain", "--hosted", "self-hosted", "--hosted", "builder", "--json").document
    assert rows(done, "labels") == [(["self-hosted", "builder"],)]


def test_more_jobs_than_the_code_host_makes_of_one_matrix_are_told(space: SmallWorkspace, verb: Any) -> None:
    lock = space.lock_path("plain").read_bytes()
    for number in range(257):
        space.write_target(f"t{number}")
        space.lock_path(f"t{number}").write_bytes(lock)
    done = verb("matrix", *(f"t{number}" for number in range(256)), "--check", "build")
    assert (done.code, done.err) == (0, "")
    done = verb("matrix", *(f"t{number}" for number in range(257)), "--check", "build")
    assert "257 jobs, and GitHub runs at most 256 of one matrix" in done.err
    assert len(json.loads(done.out)["include"]) == 257
