"""A locked, published target for each test of releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from release_space import Space, make_keys

from imagebuild.build.reproduce import Rebuild
from imagebuild.testing.registry_double import RegistryDouble
from imagebuild.testing.small_engine import MadeImage, SmallWorkspace, engine_base

BASES = {count: engine_base(("linux/amd64", "linux/arm64")[:count]) for count in (1, 2)}


@pytest.fixture
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rebuilds are not made in these tests but counted; that they are equal is taken for granted.  tests/integration makes
    them."""
    made: list[str] = []

    def reproduce(workspace: Any, target: Any, lock: Any, *rest: Any) -> list[Rebuild]:
        made.append(target.name)
        return [Rebuild({"python": "3.11.0"}, True, str(lock.result.digest))]

    monkeypatch.setattr("imagebuild.release.steps_image.reproduce", reproduce)
    return made


@pytest.fixture
def make_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any], rebuilt: list[str]
) -> Iterator[Callable[..., Space]]:
    """`make_space(platforms=2, checks=…)`: keys of target.yaml; the target is locked, with every layer read."""
    with RegistryDouble() as double:

        def make(platforms: int = 1, **keys: Any) -> Space:
            base: MadeImage = BASES[platforms]
            double.put_image("lib/engine", base, "v1")
            small = SmallWorkspace(tmp_path / "ws", base, f"{double.host}/lib/engine:v1@{base.digest}")
            small.write_overlay()
            space = Space(small, double, *make_keys(small.root))
            space.target(**keys)
            monkeypatch.chdir(space.root)
            monkeypatch.setenv("IMAGEBUILD_CACHE", str(small.cache))
            monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
            assert verb("lock", "tuned", "--complete").code == 0
            return space

        yield make


@pytest.fixture
def space(make_space: Callable[..., Space]) -> Space:
    return make_space()
