"""The docker runner with a real engine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_engine import RealEngine
from runner_image import debian_image  # noqa: F401  (a fixture)
from runner_laws import LAWS, WITH_FOLDER

from imagebuild.check.runner import CheckedImage, End, Job, Runner
from imagebuild.check.runners import open_runner

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    folder = Path(tempfile.mkdtemp(prefix="dr-"))
    with RealEngine(folder) as started:
        yield started
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def runner(engine: RealEngine) -> Iterator[Runner]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine.host)
        made = open_runner("docker")
        assert made.available() is None
        yield made
        made.close()


@pytest.mark.parametrize("law", LAWS)
def test_law(law: str, runner: Runner, debian_image: CheckedImage) -> None:  # noqa: F811
    LAWS[law](runner, debian_image)


@pytest.mark.parametrize("law", WITH_FOLDER)
def test_law_with_a_folder(law: str, runner: Runner, debian_image: CheckedImage, tmp_path: Path) -> None:  # noqa: F811
    WITH_FOLDER[law](runner, debian_image, tmp_path / "folder")


def test_nothing_is_left(engine: RealEngine, runner: Runner) -> None:
    assert engine.run("ps", "--all", "--quiet") == ""
    assert engine.run("images", "--quiet") != ""
    runner.close()
    assert engine.run("images", "--all", "--quiet") == ""


def test_an_engine_without_a_driver_for_devices_starts_nothing(runner: Runner, debian_image: CheckedImage) -> None:  # noqa: F811
    from imagebuild.check.runner import Devices

    outcome = runner.run(debian_image, Job(("/bin/true",), 60, devices=Devices("nvidia")))
    runner.close()
    assert outcome.end is End.NOT_STARTED
    assert "gpu" in outcome.detail
