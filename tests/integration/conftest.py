"""Fixtures of the tests that use other programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from sid_programs import SidPrograms, sid_root


@pytest.fixture
def sid(tmp_path: Path) -> SidPrograms:
    """Programs of Debian unstable, with the test's temporary folder as `/mnt`."""
    return SidPrograms(sid_root(), tmp_path)
