"""A job array on a real Slurm: cancelled, out of time, its node lost, its submitter killed, and a node without oci.conf."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_slurm import RealSlurm
from runner_image import debian_image  # noqa: F401  (a fixture)
from runner_laws import is_gone, python

from imagebuild.check.runner import CheckedImage, Devices, End, Job, Outcome
from imagebuild.check.runners import open_runner
from imagebuild.check.runners.slurm import SlurmRunner
from imagebuild.target.site import Site

pytestmark = [pytest.mark.integration, pytest.mark.slow(60)]
Made = tuple[RealSlurm, SlurmRunner, Path]
FOR_EVER = python("print('begun', flush=True); import time; time.sleep(3600)")


def site_at(folder: Path) -> Site:
    disk = folder.with_name(f"{folder.name}-disk")
    disk.mkdir(parents=True, exist_ok=True)
    return Site(
        "test", "slurm", partition="test", container="oci", job_folder=str(folder), scratch=str(disk), time_limit=1800, gpus=1
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("jobs")
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as name,
        RealSlurm(Path(name)) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", str(cluster.conf))
        patch.setenv("IMAGEBUILD_DEVICES", str(cluster.devices))
        runner = open_runner("slurm", site=site_at(folder))
        assert isinstance(runner, SlurmRunner)
        yield cluster, runner, folder
        runner.close()


class Waiting:
    """`run_many` in a thread, so that the cluster can be disturbed meanwhile."""

    def __init__(self, runner: SlurmRunner, image: CheckedImage, *jobs: Job) -> None:
        self._outcomes: tuple[Outcome, ...] = ()
        self._thread = threading.Thread(target=self._run, args=(runner, image, jobs))
        self._thread.start()

    def _run(self, runner: SlurmRunner, image: CheckedImage, jobs: tuple[Job, ...]) -> None:
        self._outcomes = runner.run_many([(image, job) for job in jobs])

    def outcomes(self) -> tuple[Outcome, ...]:
        self._thread.join(120)
        assert self._outcomes, "it still waits"
        return self._outcomes


def numbers(folder: Path) -> list[str]:
    return [path.read_text().strip() for path in folder.glob("tasks-*/submissions/*.number")]


def begun(folder: Path) -> bool:
    """The first task runs, and its number is written down, which may come later."""
    return bool(list(folder.glob("tasks-*/tasks/0/run/started")) and numbers(folder))


def test_one_array_of_many_tasks(made: Made, debian_image: CheckedImage) -> None:  # noqa: F811
    cluster, runner, folder = made
    jobs = [Job(python(f"import os; print({n}, os.uname().nodename); raise SystemExit({n})"), 60) for n in range(4)]
    outcomes = runner.run_many([(debian_image, job) for job in jobs])
    assert [(one.end, one.code) for one in outcomes] == [(End.EXITED, n) for n in range(4)]
    assert [one.stdout.split()[0] for one in outcomes] == [b"0", b"1", b"2", b"3"]
    assert all(one.machine["node"] in ("n1", "n2") for one in outcomes)
    arrays = {line.split()[0] for line in cluster.command("squeue", "-h", "-t", "all", "-O", "ArrayJobID").splitlines()}
    assert len(arrays) == 1
    assert not list(folder.glob("tasks-*/"))


def test_a_job_sees_the_accelerators_it_was_given(made: Made, debian_image: CheckedImage) -> None:  # noqa: F811
    text = (
        "import os, stat\n"
        "found = [n for n in sorted(os.listdir('/dev')) if n.startswith('nvidia')]\n"
        "print(found, os.environ['CUDA_VISIBLE_DEVICES'], open('/dev/' + found[0], 'rb').read())"
    )
    outcome = made[1].run(debian_image, Job(python(text), 60, devices=Devices("nvidia")))
    assert outcome.stdout == b"['nvidia0', 'nvidiactl'] 0 b''\n", outcome


def test_a_cancelled_job_is_lost_whatever_srun_says(made: Made, debian_image: CheckedImage) -> None:  # noqa: F811
    cluster, runner, folder = made
    waiting = Waiting(runner, debian_image, Job(FOR_EVER, 600))
    assert is_gone(lambda: not begun(folder))
    cluster.command("scancel", *numbers(folder))
    (outcome,) = waiting.outcomes()
    assert (outcome.end, outcome.code, outcome.machine["state"]) == (End.LOST, None, "CANCELLED")
    assert "CANCELLED" in outcome.detail
    assert is_gone(lambda: list(folder.with_name(f"{folder.name}-disk").iterdir())), (
        "something stays on the node's disk"
    )


def test_a_cancelled_step_is_lost_though_the_job_completes(made: Made, debian_image: CheckedImage) -> None:  # noqa: F811
    cluster, runner, folder = made
    waiting = Waiting(runner, debian_image, Job(FOR_EVER, 600))
    assert is_gone(lambda: not begun(folder))
    job = next(folder.glob("tasks-*/tasks/0/job")).read_text().strip()
    cluster.command("scancel", f"{job}.0")
    (outcome,) = waiting.outcomes()
    assert (outcome.end, outcome.code, outcome.machine["state"]) == (End.LOST, None, "COMPLETED"), outcome


def test_a_job_out_of_time_is_told_as_such(made: Made, debian_image: CheckedImage) -> None:  # noqa: F811
    cluster, runner, folder = made
    waiting = Waiting(runner, debian_image, Job(FOR_EVER, 600))
    assert is_gone(lambda: not begun(folder))
    cluster.command("scontrol", "update", f"jobid={numbers(folder)[0]}_0", "endtime=now")
    (outcome,) = waiting.outcomes()
    assert (outcome.end, outcome.machine["state"]) == (End.DEADLINE, "TIMEOUT"), outcome
    assert outcome.stdout == b"begun\n"


def begun_when_hurried(cluster: RealSlurm, folder: Path) -> bool:
    """Slurm lets a requeued job wait for two minutes, from a moment that comes after its node was lost."""
    if begun(folder):
        return True
    for number in numbers(folder):
        cluster.command("scontrol", "update", f"jobid={number}_0", "starttime=now", check=False)
    return False


def test_a_lost_node_means_one_requeue_and_then_a_lost_job(made: Made, debian_image: CheckedImage) -> None:  # noqa: F811
    cluster, runner, folder = made
    waiting = Waiting(runner, debian_image, Job(FOR_EVER, 600), Job(python("print('fine')"), 60))
    assert is_gone(lambda: not list(folder.glob("tasks-*/tasks/1/status.json")))
    nodes = []
    for _ in range(2):
        assert is_gone(lambda: not begun_when_hurried(cluster, folder)), cluster.log()
        node = next(path for path in folder.glob("tasks-*/tasks/0/node")).read_text().strip()
        nodes.append(node)
        cluster.lose(node)
        for path in folder.glob("tasks-*/tasks/0/run/started"):
            path.unlink()
    lost, fine = waiting.outcomes()
    assert (lost.end, lost.code) == (End.LOST, None)
    assert "lost" in lost.detail
    assert "requeue" in lost.detail or "twice" in lost.detail
    assert (fine.end, fine.stdout) == (End.EXITED, b"fine\n")
    # the second time it was another node: the first one was down
    assert sorted(nodes) == ["n1", "n2"]
    for node in nodes:
        cluster.bring_back(node)


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from runner_image import real_image
from test_slurm_array import jobs_of, site_at
from imagebuild.check.runners import open_runner
image = real_image(Path(sys.argv[2]))
open_runner("slurm", site=site_at(Path(sys.argv[3])), keep=True).run_many([(image, job) for job in jobs_of(Path(sys.argv[4]))])
"""


def jobs_of(shared: Path) -> list[Job]:
    """Jobs that count how often they ran; the last one waits until it may end."""
    from imagebuild.check.runner import Mount

    text = (
        "import os, sys, time\n"
        "name = sys.argv[1]\n"
        "open('/shared/' + name, 'a').write('x')\n"
        "while name == 'slow' and not os.path.exists('/shared/go'): time.sleep(0.05)\n"
        "print(name)\n"
    )
    mount = Mount(shared, "/shared", read_only=False)
    return [Job(python(text, name), 300, mounts=(mount,), name=name) for name in ("quick", "quick-too", "slow")]


def test_a_killed_submitter_is_resumed_and_nothing_runs_twice(
    made: Made, debian_image: CheckedImage, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    cluster, runner, folder = made
    shared = tmp_path / "shared"
    shared.mkdir()
    layout = Path(debian_image.source.location.removeprefix("oci:"))
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(layout), str(folder), str(shared)]
    process = subprocess.Popen(command, env={**os.environ, "SLURM_CONF": str(cluster.conf)})
    assert is_gone(
        lambda: len(list(folder.glob("tasks-*/tasks/*/status.json"))) < 2 or not (shared / "slow").exists(), 60
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    # as if it had died between sbatch's answer and writing it down
    for path in folder.glob("tasks-*/submissions/*.number"):
        path.unlink()
    waiting = Waiting(runner, debian_image, *jobs_of(shared))
    assert is_gone(lambda: not numbers(folder))
    (shared / "go").touch()
    assert [one.stdout for one in waiting.outcomes()] == [b"quick\n", b"quick-too\n", b"slow\n"]
    assert [(shared / name).read_text() for name in ("quick", "quick-too", "slow")] == ["x", "x", "x"]


def test_without_oci_conf_nothing_passes(
    tmp_path: Path,
    debian_image: CheckedImage,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """srun --container then starts the command on the node itself and answers 0."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as name,
        RealSlurm(Path(name), oci=False) as cluster,
    ):
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        said = cluster.command("srun", f"--container={tmp_path}", "/bin/sh", "-c", "readlink /proc/self/ns/mnt")
        assert said.strip() == os.readlink("/proc/self/ns/mnt")
        runner = open_runner("slurm", site=site_at(tmp_path / "jobs"))
        outcome = runner.run(debian_image, Job(("/bin/true",), 60))
        assert (outcome.end, outcome.code) == (End.NOT_STARTED, None)
        assert "did not run in the image" in outcome.detail
        assert "oci.conf" in outcome.detail
        runner.close()


def test_a_site_that_wants_too_much_time_is_told_so(made: Made, debian_image: CheckedImage, tmp_path: Path) -> None:  # noqa: F811
    long = Site("test", "slurm", container="oci", job_folder=str(tmp_path / "jobs"), time_limit=7200)
    runner = open_runner("slurm", site=long)
    outcome = runner.run(debian_image, Job(("/bin/true",), 7000))
    assert outcome.end is End.NOT_STARTED
    assert "PartitionTimeLimit" in outcome.detail
    runner.close()
