"""Fixtures of the tests that use other programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from debian_base import emulate_arm64
from real_engine import RealEngine
from real_registry import RealRegistry
from sid_programs import SidPrograms, sid_root


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts modules that last long first, by the seconds that they declare (`pytest.mark.slow`), each with its tests together.

    Workers take whole modules in this order (`--no-loadscope-reorder`).  xdist's own order goes by the number of tests: a
    module with one test of minutes would start last, and run alone while the other workers have nothing to do.
    """
    items.sort(key=_seconds_of_module, reverse=True)


def _seconds_of_module(item: pytest.Item) -> int:
    module = item.getparent(pytest.Module)
    mark = module.get_closest_marker("slow") if module else None
    return int(mark.args[0]) if mark and mark.args else 0


@pytest.fixture
def sid(tmp_path: Path) -> SidPrograms:
    """Programs of Debian unstable, with the test's temporary folder as `/mnt`."""
    return SidPrograms(sid_root(), tmp_path)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RealRegistry]:
    """A real registry of the test's own, empty."""
    folder = tmp_path / "registry"
    folder.mkdir()
    with RealRegistry(folder) as running:
        yield running


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    """A Docker engine for the tests of one module."""
    emulate_arm64()
    with RealEngine() as running:
        yield running
