"""A push is killed at every event and at every request; then the same command again (registry.md, Push order)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killing import EVENTS, REQUESTS, killed_at
from real_registry import RealRegistry

from imagebuild.testing.small_engine import SmallWorkspace, engine_base

pytestmark = [pytest.mark.integration, pytest.mark.slow(35), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

BASE = engine_base(index=True)


@pytest.fixture
def space(
    registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any]
) -> SmallWorkspace:
    registry.put_image("lib/engine", "1.0", BASE)
    made = SmallWorkspace(tmp_path / "ws", BASE, f"{registry.host}/lib/engine:1.0@{BASE.digest}")
    made.write_target()
    made.write_overlay()
    monkeypatch.chdir(made.root)
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(made.cache))
    assert verb("lock", "tuned").code == 0
    return made


@pytest.mark.parametrize("kinds", [(EVENTS,), (EVENTS, REQUESTS)], ids=["events", "requests"])
def test_a_push_killed_at_every_moment(
    space: SmallWorkspace, registry: RealRegistry, verb: Any, kinds: tuple[str, ...]
) -> None:
    digest = str(space.digest())
    tagged = {"before": 0, "after": 0}
    moment = 0
    while True:
        tag = f"team/engine{moment}:tuned"
        words = ["build", "tuned", "--output", f"{registry.host}/{tag}"]
        shutil.rmtree(space.cache, ignore_errors=True)
        ended = killed_at(moment, words, kinds)
        assert registry.incomplete() == []
        assert registry.tags().get(tag) in (None, digest)
        tagged["after" if tag in registry.tags() else "before"] += 1
        again = verb(*words, "--json")
        assert (again.code, again.document["digest"]) == (0, digest), again.err
        assert registry.tags()[tag] == digest
        assert registry.incomplete() == []
        if ended is not None:
            assert ended == 0
            break
        shutil.rmtree(registry.storage / "repositories" / "team" / f"engine{moment}")
        moment += 1
    assert tagged["before"] >= 3
    assert tagged["after"] >= 1


def test_a_killed_push_leaves_the_tag_at_the_earlier_image(
    space: SmallWorkspace, registry: RealRegistry, verb: Any
) -> None:
    old = str(space.digest())
    output = f"{registry.host}/team/engine:tuned"
    assert verb("build", "tuned", "--output", output).code == 0
    space.write_target(env={"ADDED": "1"})
    assert verb("lock", "tuned").code == 0
    new = str(space.digest())
    moment = 0
    while True:
        ended = killed_at(moment, ["build", "tuned", "--output", output], (REQUESTS,))
        assert registry.incomplete() == []
        assert registry.tags()["team/engine:tuned"] in (old, new)
        if ended is not None:
            break
        if registry.tags()["team/engine:tuned"] == new:
            space.write_target(env={"ADDED": str(moment + 2)})
            assert verb("lock", "tuned").code == 0
            old, new = new, str(space.digest())
        moment += 1
    assert registry.tags()["team/engine:tuned"] == new
    assert moment >= 10


@pytest.mark.parametrize("kinds", [(EVENTS,), (REQUESTS,)], ids=["events", "requests"])
def test_a_lock_against_the_registry_killed_at_every_moment(
    space: SmallWorkspace, verb: Any, kinds: tuple[str, ...]
) -> None:
    whole = space.lock_path().read_bytes()
    moment = 0
    while True:
        shutil.rmtree(space.cache, ignore_errors=True)
        space.lock_path().unlink()
        shutil.rmtree(space.folder() / "content")
        ended = killed_at(moment, ["lock", "tuned"], kinds)
        assert not space.lock_path().exists() or space.lock_path().read_bytes() == whole
        assert verb("lock", "tuned").code == 0
        assert space.lock_path().read_bytes() == whole
        if ended is not None:
            break
        moment += 1
    assert moment >= 6
