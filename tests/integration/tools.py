"""Programs that others wrote: there or not, and what then.

A test whose program is missing skips and says why; where IMAGEBUILD_REQUIRE_TOOLS is set it fails instead, so that a
machine that is meant to have everything cannot pass by skipping.
"""

from __future__ import annotations

import os
import shutil
import sys

import pytest

REQUIRED = bool(os.environ.get("IMAGEBUILD_REQUIRE_TOOLS"))


def missing(reason: str) -> None:
    """Ends the test: a failure where tools are required, else a skip."""
    if REQUIRED:
        pytest.fail(f"{reason} (IMAGEBUILD_REQUIRE_TOOLS is set)", pytrace=False)
    pytest.skip(reason)


def program(name: str) -> str:
    """The path of an installed program; one that came with this virtual environment counts."""
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", os.path.dirname(sys.executable)]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        missing(f"the program {name} is not installed")
    assert found is not None
    return found


def root() -> None:
    if os.geteuid() != 0:
        missing("needs root")
