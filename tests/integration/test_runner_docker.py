"""The docker runner with a real engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_engine import RealEngine
from runner_image import debian_image  # noqa: F401  (a fixture)
from runner_laws import KILLED, LAWS, WITH_FOLDER, is_gone

from imagebuild.check.runner import CheckedImage, Devices, End, Job, Runner
from imagebuild.check.runners import open_runner
from imagebuild.oci.layout import LayoutSource

pytestmark = [pytest.mark.integration, pytest.mark.slow(50)]


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


def test_nothing_is_left(engine: RealEngine, runner: Runner, debian_image: CheckedImage) -> None:  # noqa: F811
    assert runner.run(debian_image, Job(("/bin/true",), 60)).code == 0
    assert engine.run("ps", "--all", "--quiet") == ""
    assert engine.run("images", "--quiet") != ""
    runner.close()
    assert engine.run("images", "--all", "--quiet") == ""


def test_an_engine_without_a_driver_for_devices_starts_nothing(runner: Runner, debian_image: CheckedImage) -> None:  # noqa: F811
    outcome = runner.run(debian_image, Job(("/bin/true",), 60, devices=Devices("nvidia")))
    runner.close()
    assert outcome.end is End.NOT_STARTED
    assert "gpu" in outcome.detail


def runs_something(runner: Runner, image: CheckedImage) -> None:
    assert runner.run(image, Job(("/bin/true",), 60)).code == 0
    runner.close()


def test_what_a_killed_process_left_is_removed_by_the_next(engine: RealEngine, debian_image: CheckedImage) -> None:  # noqa: F811
    assert isinstance(debian_image.source, LayoutSource)
    environment = {**os.environ, "DOCKER_HOST": engine.host}
    command = [sys.executable, "-c", KILLED, "docker", str(debian_image.source.path), '{"keep": false}']
    begun = subprocess.Popen(command, env=environment)
    try:
        assert is_gone(lambda: begun.poll() is None and engine.run("ps", "--quiet") == "", 120)
        assert begun.poll() is None
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", engine.host)
            # while its process lives it is nobody else's matter
            runs_something(open_runner("docker"), debian_image)
            assert engine.run("ps", "--quiet") != ""
            assert len(engine.run("images", "--quiet", "localhost/imagebuild-check").split()) == 1
            begun.send_signal(signal.SIGKILL)
            begun.wait()
            assert engine.run("ps", "--quiet") != ""
            assert engine.run("images", "--quiet", "localhost/imagebuild-check") != ""
            runs_something(open_runner("docker"), debian_image)
        assert engine.run("ps", "--all", "--quiet") == ""
        assert engine.run("images", "--quiet", "localhost/imagebuild-check") == ""
    finally:
        begun.kill()
        begun.wait()


def test_an_interrupted_process_leaves_nothing(engine: RealEngine, debian_image: CheckedImage) -> None:  # noqa: F811
    assert isinstance(debian_image.source, LayoutSource)
    environment = {**os.environ, "DOCKER_HOST": engine.host}
    command = [sys.executable, "-c", KILLED, "docker", str(debian_image.source.path), "{}"]
    begun = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        assert is_gone(lambda: begun.poll() is None and engine.run("ps", "--quiet") == "", 120)
        assert begun.poll() is None
        begun.send_signal(signal.SIGINT)
        assert begun.wait(60) != 0
        assert engine.run("ps", "--all", "--quiet") == ""
    finally:
        begun.kill()
        begun.wait()
