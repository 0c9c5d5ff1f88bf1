"""The podman runner with the real podman."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_engine import Podman
from mounts import mounts_below
from runner_image import debian_image  # noqa: F401  (a fixture)
from runner_laws import AS_USER, KILLED, LAWS, WITH_FOLDER, for_users, is_gone
from tools import missing, program, root

from imagebuild.check.runner import CheckedImage, Devices, End, Job, Runner
from imagebuild.check.runners import open_runner
from imagebuild.oci.layout import LayoutSource

pytestmark = [pytest.mark.integration, pytest.mark.slow(70)]


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


def runs_something(runner: Runner, image: CheckedImage) -> None:
    assert runner.run(image, Job(("/bin/true",), 60)).code == 0
    runner.close()


def test_what_a_killed_process_left_is_removed_by_the_next(
    engine: Podman,
    debian_image: CheckedImage,  # noqa: F811
    tmp_path: Path,
) -> None:
    assert isinstance(debian_image.source, LayoutSource)
    options = json.dumps({"options": engine.base[1:], "scratch": str(tmp_path), "keep": False})
    begun = subprocess.Popen([sys.executable, "-c", KILLED, "podman", str(debian_image.source.path), options])

    def running() -> str:
        return engine.call("ps", "--quiet").stdout

    def names() -> list[str]:
        return engine.call(
            "images", "--format", "{{.Repository}}:{{.Tag}}", "localhost/imagebuild-check"
        ).stdout.split()

    try:
        assert is_gone(lambda: begun.poll() is None and running() == "", 120)
        assert begun.poll() is None
        # while its process lives it is nobody else's matter
        runs_something(open_runner("podman", options=engine.base[1:]), debian_image)
        assert running() != ""
        assert len(names()) == 1
    finally:
        begun.send_signal(signal.SIGKILL)
        begun.wait()
    assert running() != ""
    (left,) = names()
    runs_something(open_runner("podman", options=engine.base[1:]), debian_image)
    assert engine.call("ps", "--all", "--quiet").stdout == ""
    assert left not in names()
    assert names() == []


def test_devices_that_nobody_described_start_nothing(runner: Runner, debian_image: CheckedImage) -> None:  # noqa: F811
    outcome = runner.run(debian_image, Job(("/bin/true",), 60, devices=Devices("nvidia")))
    runner.close()
    assert outcome.end is End.NOT_STARTED
    assert "nvidia.com/gpu=all" in outcome.detail


def test_an_interrupted_process_leaves_nothing(engine: Podman, debian_image: CheckedImage) -> None:  # noqa: F811
    assert isinstance(debian_image.source, LayoutSource)
    command = [sys.executable, "-c", KILLED, "podman", str(debian_image.source.path)]
    begun = subprocess.Popen([*command, json.dumps({"options": engine.base[1:]})], stderr=subprocess.DEVNULL)
    try:
        assert is_gone(lambda: begun.poll() is None and engine.call("ps", "--quiet").stdout == "", 120)
        assert begun.poll() is None
        begun.send_signal(signal.SIGINT)
        assert begun.wait(60) != 0
        assert engine.call("ps", "--all", "--quiet").stdout == ""
    finally:
        begun.kill()
        begun.wait()


BY_A_USER = """
import json, sys
from pathlib import Path
from runner_laws import LAWS, WITH_FOLDER
from imagebuild.check.images import checked_image
from imagebuild.check.runner import Job
from imagebuild.check.runners import open_runner
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform

home = Path(sys.argv[1])
image = checked_image(LayoutSource(home / "layout"), "real", Platform("linux", "amd64"))
runner = open_runner("podman", options=json.loads(sys.argv[2]))
assert runner.available() is None, runner.available()
WITH_FOLDER["runs with files and environment"](runner, image, home / "folder")
LAWS["serves and stops"](runner, image)
print(runner.run(image, Job(("/bin/true",), 60)).machine["rootless"])
runner.close()
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Below a path of a few letters: podman's sockets lie below the user's run folder, and take long ones with long waits."""
    folder = Path(tempfile.mkdtemp(prefix="user-"))
    yield folder
    shutil.rmtree(folder)


def test_podman_of_a_user_keeps_the_same_laws(debian_image: CheckedImage, short_folder: Path) -> None:  # noqa: F811
    """As nobody, who gets numbers of users for the time of the test: no file that is left belongs to another one."""
    assert isinstance(debian_image.source, LayoutSource)
    root()
    program("newuidmap")
    for_users(short_folder)
    home = short_folder / "home"
    (home / "run").mkdir(parents=True)
    shutil.copytree(debian_image.source.path, home / "layout")
    for path in (home, *home.rglob("*")):
        os.chown(path, 65534, 65534)
    (short_folder / "numbers").write_text("nobody:200000:65536\n")
    shell = 'mount --bind "$1" /etc/subuid && mount --bind "$1" /etc/subgid || exit 99; shift; exec "$@"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", shell, "sh", str(short_folder / "numbers")]
    options = ["--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--runtime", program("runc")]
    command += [*AS_USER, sys.executable, "-c", BY_A_USER, str(home), json.dumps(options)]
    paths = {"HOME": home, "XDG_RUNTIME_DIR": home / "run", "IMAGEBUILD_CACHE": home / "cache"}
    environment = {**os.environ, **{name: str(path) for name, path in paths.items()}}
    environment |= {"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=home)
    if done.returncode == 99:
        missing(f"users get no numbers here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"
    assert {path.lstat().st_uid for path in home.rglob("*")} == {65534}
