"""The TEP overlay as shipped, and the vLLM wheel that its patches are written against, where one is given."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def overlay_folder() -> Path:
    return REPOSITORY / "overlays" / "kimi-k3-tep-shared-tp"


@pytest.fixture
def tep(overlay_folder: Path) -> ModuleType:
    """The overlay's module, loaded afresh; it needs torch and nothing of vLLM."""
    pytest.importorskip("torch", reason="torch is not installed")
    spec = importlib.util.spec_from_file_location("tep_shared_tp", overlay_folder / "files" / "tep_shared_tp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def wheel_file() -> Callable[[str], bytes]:
    """Reads a member of the vLLM 0.33.0 wheel that IMAGEBUILD_TEST_WHEEL names."""
    name = os.environ.get("IMAGEBUILD_TEST_WHEEL")
    if not name:
        pytest.skip("IMAGEBUILD_TEST_WHEEL names no vllm 0.33.0 wheel")

    def read(member: str) -> bytes:
        with zipfile.ZipFile(name) as wheel:
            return wheel.read(member)

    return read
