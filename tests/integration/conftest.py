"""Fixtures of the tests that use other programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from debian_base import emulate_arm64
from real_engine import RealEngine
from real_registry import RealRegistry
from sid_programs import SidPrograms, sid_root


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
