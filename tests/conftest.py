"""Fixtures that several folders of tests share."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from imagebuild.cli.main import main
from imagebuild.oci import media_types as mt
from imagebuild.testing.images import MadeImage
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

# how busy the machine is says nothing about the code
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@dataclass(frozen=True)
class Ran:
    """What one run of a verb gave."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document of `--json`."""
        value: dict[str, Any] = json.loads(self.out)
        return value


def run_verb(*words: str | Path) -> Ran:
    """One verb in this process.  What an earlier run knew of registries is forgotten, as in a process of its own."""
    if "imagebuild.registry.open" in sys.modules:
        sys.modules["imagebuild.registry.open"].open_client.cache_clear()
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return Ran(code, out.getvalue(), err.getvalue())


@pytest.fixture
def verb() -> Callable[..., Ran]:
    """Runs one verb in this process: `verb("build", "x", "--json").document`."""
    return run_verb


@pytest.fixture
def in_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SmallWorkspace]:
    """Makes a small workspace (keyword arguments as engine_base) with target `tuned` and overlay `tune`, and stands in it."""

    def make(base: MadeImage | None = None, name: str = "ws", **of_base: Any) -> SmallWorkspace:
        space = SmallWorkspace(tmp_path / name, base or engine_base(**of_base))
        space.write_target()
        space.write_overlay()
        monkeypatch.chdir(space.root)
        monkeypatch.setenv("IMAGEBUILD_CACHE", str(space.cache))
        monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
        return space

    return make


@pytest.fixture(params=["oci-1", "docker-1", "oci-2", "docker-2"])
def any_base(request: pytest.FixtureRequest) -> MadeImage:
    """Both families, one and two platforms."""
    family, _, count = request.param.partition("-")
    platforms = ("linux/amd64", "linux/arm64")[: int(count)]
    return engine_base(platforms, mt.OCI if family == "oci" else mt.DOCKER)
