"""The oci runner with the real runc (or the runtime that IMAGEBUILD_OCI_RUNTIME names)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import mounts_below
from processes import name_of, processes_with
from runner_image import debian_image  # noqa: F401  (a fixture)
from runner_laws import AS_USER, KILLED, LAWS, WITH_FOLDER, for_users, is_gone, python
from tools import missing, program, root
from unpackers import tree, umoci

from imagebuild.check.runner import CheckedImage, Devices, End, Job, Mount, Runner
from imagebuild.check.runners import open_runner
from imagebuild.check.runners.rootfs import Rootfs
from imagebuild.host.clock import monotonic, sleep
from imagebuild.oci.layout import LayoutSource

pytestmark = [pytest.mark.integration, pytest.mark.slow(45)]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oci-scratch")


@pytest.fixture(scope="module")
def runner(scratch: Path) -> Iterator[Runner]:
    made = open_runner("oci", scratch=scratch)
    why = made.available()
    if why is not None:
        missing(why)
    yield made
    made.close()


@pytest.mark.parametrize("law", LAWS)
def test_law(law: str, runner: Runner, debian_image: CheckedImage, scratch: Path) -> None:  # noqa: F811
    LAWS[law](runner, debian_image)
    assert list((scratch / "runs").iterdir()) == []
    assert mounts_below(scratch) == []


@pytest.mark.parametrize("law", WITH_FOLDER)
def test_law_with_a_folder(law: str, runner: Runner, debian_image: CheckedImage, tmp_path: Path) -> None:  # noqa: F811
    WITH_FOLDER[law](runner, debian_image, tmp_path / "folder")


def test_the_unpacked_image_is_what_umoci_unpacks(debian_image: CheckedImage, tmp_path: Path) -> None:  # noqa: F811
    assert isinstance(debian_image.source, LayoutSource)
    root()
    ours = Rootfs(tmp_path / "images").of(debian_image)
    theirs = umoci(debian_image.source.path, "real", tmp_path)
    assert tree(ours) == tree(theirs)


def test_devices_that_are_not_there_start_nothing(runner: Runner, debian_image: CheckedImage) -> None:  # noqa: F811
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has such devices")
    outcome = runner.run(debian_image, Job(("/bin/true",), 60, devices=Devices("nvidia", 2)))
    assert outcome.end is End.NOT_STARTED
    assert outcome.detail == "2 devices of nvidia are asked for, and this machine shows 0"


def test_a_job_ends_with_the_process_that_was_killed(debian_image: CheckedImage, tmp_path: Path) -> None:  # noqa: F811
    """SIGKILL in the middle: container, mounts and cgroups go at once, the folder with the next run."""
    assert isinstance(debian_image.source, LayoutSource)
    why = open_runner("oci").available()
    if why is not None:
        missing(why)
    scratch, mark = tmp_path / "scratch", "86399.25"
    options = json.dumps({"scratch": str(scratch)})
    command = [sys.executable, "-c", KILLED, "oci", str(debian_image.source.path), options, mark]
    begun = subprocess.Popen(command)
    try:
        until = monotonic() + 120
        while "sleep" not in map(name_of, processes_with(mark)):
            assert monotonic() < until
            assert begun.poll() is None
            sleep(0.05)
    finally:
        begun.send_signal(signal.SIGKILL)
        begun.wait()
    assert is_gone(lambda: processes_with(mark))
    assert is_gone(lambda: mounts_below(scratch))
    (left,) = (scratch / "runs").iterdir()
    assert is_gone(lambda: any(left.name in folders for _, folders, _ in os.walk("/sys/fs/cgroup")))
    runner = open_runner("oci", scratch=scratch, keep=True)
    assert runner.run(debian_image, Job(python("print(1)"), 60)).stdout == b"1\n"
    assert list((scratch / "runs").iterdir()) == []


def test_a_user_runs_it_in_a_namespace_of_his_own(debian_image: CheckedImage, tmp_path: Path) -> None:  # noqa: F811
    """As nobody: no file of the run belongs to anybody else."""
    assert isinstance(debian_image.source, LayoutSource)
    root()
    for_users(tmp_path)
    probe = subprocess.run(
        [*AS_USER, "unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode != 0:
        missing(f"users have no namespaces of their own here: {probe.stderr}")
    layout, scratch = tmp_path / "layout", tmp_path / "of-user"
    shutil.copytree(debian_image.source.path, layout)
    scratch.mkdir()
    os.chown(scratch, 65534, 65534)
    text = (
        KILLED.replace("runner.run(", "print(runner.available(), runner.run(")
        .replace("86400))", "600)))")
        .replace("86399", "0.1")
    )
    command = [*AS_USER, sys.executable, "-c", text, "oci", str(layout), json.dumps({"scratch": str(scratch)})]
    environment = {**os.environ, "IMAGEBUILD_CACHE": str(scratch / "cache"), "HOME": str(scratch)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "None Outcome(end=<End.EXITED" in done.stdout, done.stdout
    assert "'userNamespace': True" in done.stdout
    assert "code=0" in done.stdout
    owners = {os.lstat(Path(parent, name)).st_uid for parent, _, names in os.walk(scratch) for name in names}
    assert owners == {65534}


ON_CRUN = """
import sys
from pathlib import Path
from runner_laws import LAWS
from imagebuild.check.images import checked_image
from imagebuild.check.runners import open_runner
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform

image = checked_image(LayoutSource(sys.argv[1]), "real", Platform("linux", "amd64"))
runner = open_runner("oci", scratch=Path(sys.argv[2]), runtime="crun")
assert runner.available() is None, runner.available()
for law in ("tells what never started", "tells exit codes", "serves and stops"):
    LAWS[law](runner, image)
    print(law)
runner.close()
"""


def test_crun_keeps_the_same_laws_where_cgroups_are_of_one_kind(debian_image: CheckedImage, tmp_path: Path) -> None:  # noqa: F811
    """In a mount namespace that shows the unified hierarchy alone, since crun 1.8 takes no other beside it."""
    assert isinstance(debian_image.source, LayoutSource)
    root()
    program("crun")
    shown = "umount --lazy --recursive /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup || exit 99"
    shell = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{shown}; exec "$@"', "sh"]
    command = [*shell, sys.executable, "-c", ON_CRUN, str(debian_image.source.path), str(tmp_path / "scratch")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == 99:
        missing(f"no unified cgroups here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["tells what never started", "tells exit codes", "serves and stops"]


def test_names_may_be_relative(
    debian_image: CheckedImage,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runtime that was brought along, a scratch folder and a mounted one, all named from here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runtime").symlink_to(program("runc"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f").write_text("here")
    monkeypatch.setenv("IMAGEBUILD_OCI_RUNTIME", "./runtime")
    runner = open_runner("oci", scratch=Path("scratch"))
    outcome = runner.run(debian_image, Job(("/bin/cat", "/d/f"), 60, mounts=(Mount(Path("data"), "/d"),)))
    assert outcome.stdout == b"here"
    assert outcome.machine["runtime"] == str(tmp_path / "runtime")
    runner.close()
    assert list((tmp_path / "scratch" / "images").iterdir()) == []
