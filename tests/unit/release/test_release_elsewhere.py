"""A release that two machines bring to its end: it stays one release, with one statement."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from release_space import Space, steps

Verb = Callable[..., Any]
WORDS = ("release", "tuned", "--push", "--json")


@pytest.fixture
def interrupted(space: Space, verb: Verb) -> Space:
    """Everything is pushed but the tags, and the release statement is not made yet."""
    space.policy()
    space.registry.fault("PUT .*/manifests/v1-tuned", status=403, times=100)
    assert verb(*WORDS, *space.key).document["details"]["step"] == "tag"
    space.registry.script.faults.clear()
    return space


@pytest.fixture
def clone(interrupted: Space, tmp_path: Path) -> Path:
    """The same files on another machine, without what the first one left below build/."""
    return Path(
        shutil.copytree(
            interrupted.root, tmp_path / "clone", ignore=shutil.ignore_patterns("build", "release.dsse.json")
        )
    )


def test_what_another_machine_finished_is_taken_over_word_for_word(
    interrupted: Space, clone: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone)
    ran = verb(*WORDS, *interrupted.key)
    assert ran.code == 0, ran.err
    summary = ran.document["summary"]
    interrupted.registry.log.clear()
    monkeypatch.chdir(interrupted.root)
    ran = verb(*WORDS, *interrupted.key)
    assert (ran.code, steps(ran.document)["release manifest"]) == (0, "run"), ran.err
    assert ran.document["summary"] == summary
    assert interrupted.writes() == []
    assert not verb(*WORDS, *interrupted.key).document["changed"]


def test_a_strangers_statement_beside_the_image_is_not_taken_over(
    interrupted: Space, clone: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone)
    assert verb("keygen", "stranger", "--unencrypted").code == 0
    (clone / "policy.yaml").unlink()
    ran = verb(*WORDS, "--key", "stranger.key")
    assert ran.code == 0, ran.err
    monkeypatch.chdir(interrupted.root)
    before = len(interrupted.writes())
    ran = verb(*WORDS, *interrupted.key)
    assert ran.code == 0, ran.err
    assert len(interrupted.writes()) > before
    assert ran.document["summary"]["key"] == interrupted.builder.public_key.fingerprint


def test_a_higher_counter_on_record_is_never_gone_back_from(interrupted: Space, verb: Verb) -> None:
    """The statement beside the image is release 1; meanwhile another image was released here, so that this one is 3."""
    space = interrupted
    assert verb(*WORDS, *space.key).document["summary"]["counter"] == 1
    space.target(env={"ADDED": "1"})
    assert verb("lock", "tuned", "--complete").code == 0
    assert verb(*WORDS, *space.key).document["summary"]["counter"] == 2
    space.target()
    assert verb("lock", "tuned", "--complete").code == 0
    assert verb(*WORDS, *space.key).document["summary"]["counter"] == 3
