"""Several targets in one run: each has its turn, and the worst exit code counts (4, then 2, then 1, then 3, then 0)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from imagebuild.cli import verb_lock
from imagebuild.testing.small_engine import SmallWorkspace

GOOD, STALE, WRONG, AWAY = "a-good", "b-stale", "c-wrong", "d-away"


@pytest.fixture
def several(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> SmallWorkspace:
    """Targets of which one is fine, one has no lock, one is not readable, one's base cannot be had."""
    space = in_workspace()
    for name in (GOOD, STALE, WRONG, AWAY):
        space.write_target(name)
    assert verb("lock", GOOD, AWAY, STALE).code == 0
    space.write_target(STALE, env={"A": "1"})
    (space.folder(WRONG) / "target.yaml").write_text("schema: 1\nname: x\n")
    shutil.copytree(space.root / "build" / "base", space.root / "build" / "away")
    (space.root / "build" / "away" / "blobs" / "sha256" / space.base.layers[2].descriptor.digest.hex).unlink()
    space.write_target(AWAY, base=f"oci:build/away:v1@{space.base.digest}")
    shutil.rmtree(space.cache)
    return space


@pytest.mark.parametrize(
    ("names", "code"),
    [((GOOD, STALE), 1), ((GOOD, WRONG), 2), ((STALE, WRONG), 2), ((GOOD, GOOD), 0)],
)
def test_the_worst_exit_code_of_builds(several: SmallWorkspace, verb: Any, names: tuple[str, ...], code: int) -> None:
    assert verb("build", *names).code == code


def test_refusals_come_before_what_could_not_be_found_out(several: SmallWorkspace, verb: Any) -> None:
    assert verb("lock", AWAY, GOOD).code == 3
    shutil.rmtree(several.cache)
    (several.root / "overlays" / "tune" / "files" / "extra.py").write_bytes(b"changed\n")
    ran = verb("lock", AWAY, GOOD, "--json")
    assert ran.code == 1, ran.err
    assert verb("lock", AWAY, GOOD, WRONG).code == 2


def test_one_that_fails_keeps_no_other_from_its_turn(several: SmallWorkspace, verb: Any) -> None:
    ran = verb("build", WRONG, STALE, GOOD, "--json")
    document = ran.document
    assert (ran.code, document["kind"]) == (2, "build-results")
    kinds = [(item["kind"], item["target"]) for item in document["results"]]
    assert kinds == [("error", WRONG), ("error", STALE), ("build-result", GOOD)]
    assert document["results"][1]["code"] == "lock.stale"
    assert (several.root / "build" / GOOD / "index.json").is_file()
    assert ran.err.count("imagebuild: ") >= 2
    text = verb("build", STALE, GOOD)
    assert text.out.count("@sha256:") == 1


def test_a_bug_of_ours_is_the_worst(several: SmallWorkspace, verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = verb_lock.lock_one

    def broken(name: str, *rest: Any) -> Any:
        if name == GOOD:
            raise ZeroDivisionError
        return real(name, *rest)

    monkeypatch.setattr(verb_lock, "lock_one", broken)
    ran = verb("lock", WRONG, GOOD, "--json")
    assert ran.code == 4


def test_outputs_and_several_targets_do_not_go_together(several: SmallWorkspace, verb: Any) -> None:
    ran = verb("build", GOOD, STALE, "--output", "oci:x", "--json")
    assert (ran.code, ran.document["code"]) == (2, "cli.usage")


def test_several_outputs_of_one_target(several: SmallWorkspace, verb: Any) -> None:
    ran = verb(
        "build", GOOD, "--output", "oci:one:a", "--output", "oci-archive:two.tar:b", "--output", "oci:one:c", "--json"
    )
    assert ran.code == 0, ran.err
    assert len(ran.document["references"]) == 3
    digest = str(several.digest(GOOD))
    assert all(text.endswith(f"@{digest}") for text in ran.document["references"])
    for reference in ran.document["references"]:
        assert verb("verify", reference, "--target", GOOD).code == 0
    shutil.rmtree(several.root / "one")
    again = verb("build", GOOD, "--output", "oci:one:a", "--json")
    assert again.document["unchanged"] is False


def test_facts_are_shared_by_targets_on_one_base(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> None:
    space = in_workspace()
    space.write_target("other", env={"B": "2"})
    ran = verb("lock", "tuned", "other", "--complete", "--json")
    first, second = ran.document["results"]
    assert first["read_bytes"] > 0
    assert second["read_bytes"] == 0
