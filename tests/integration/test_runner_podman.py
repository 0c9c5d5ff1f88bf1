"""The podman runner with the real podman."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_engine import Podman
from runner_image import debian_image  # noqa: F401  (a fixture)
from runner_laws import LAWS, WITH_FOLDER, mounts_below

from imagebuild.check.runner import CheckedImage, Runner
from imagebuild.check.runners import open_runner

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def engine() -> Iterator[Podman]:
    folder = Path(tempfile.mkdtemp(prefix="podman-runner-"))
    with Podman(folder) as podman:
        yield podman
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def runner(engine: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    made = open_runner("podman", scratch=tmp_path_factory.mktemp("scratch"), options=engine.base[1:])
    assert made.available() is None
    yield made
    made.close()


@pytest.mark.parametrize("law", LAWS)
def test_law(law: str, runner: Runner, debian_image: CheckedImage) -> None:  # noqa: F811
    LAWS[law](runner, debian_image)


@pytest.mark.parametrize("law", WITH_FOLDER)
def test_law_with_a_folder(law: str, runner: Runner, debian_image: CheckedImage, tmp_path: Path) -> None:  # noqa: F811
    WITH_FOLDER[law](runner, debian_image, tmp_path / "folder")


def test_nothing_is_left(engine: Podman, runner: Runner, tmp_path: Path) -> None:
    assert engine.call("ps", "--all", "--quiet").stdout == ""
    runner.close()
    assert engine.call("images", "--all", "--quiet").stdout == ""
    assert mounts_below(tmp_path) == []
