"""Handing in, waiting and taking up again, with a cluster of values; time moves when somebody waits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from imagebuild.check.images import checked_image
from imagebuild.check.runner import CheckedImage, End, Job
from imagebuild.check.slurm.array import Batch
from imagebuild.check.slurm.client import SlurmClient, TaskState
from imagebuild.check.slurm.container import PyxisContainer, squash_address
from imagebuild.check.slurm.script import job_script
from imagebuild.check.slurm.task import Task, plain_path
from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.oci.platform import Platform
from imagebuild.target.site import Site
from imagebuild.testing.images import File, ImageSpec, LayerSpec, make_image
from imagebuild.testing.memory import MemorySource

STATUS = '{"end":"exited","code":%d,"detail":"","srun":0,"milliseconds":1500,"node":"n1","job":"7","restarts":0}'


class Cluster(SlurmClient):
    """Answers by `plan`: for each look at the queue the states of all tasks, the last one for ever."""

    def __init__(self, plan: Sequence[Mapping[int, TaskState] | None] = ()) -> None:
        self.plan = list(plan)
        self.submitted: list[tuple[str, tuple[int, ...]]] = []
        self.cancelled: list[tuple[str, int | None]] = []
        self.known: dict[str, str] = {}
        self.looks = 0

    def submit(self, script: Path, tasks: Sequence[int], name: str) -> str:
        assert script.is_file()
        assert (script.parent / "manifest.json").is_file()
        self.submitted.append((name, tuple(tasks)))
        number = str(11 + len(self.submitted))
        self.known[name] = number
        return number

    def named(self, name: str) -> tuple[str, ...]:
        return (self.known[name],) if name in self.known else ()

    def states(self, number: str) -> Mapping[int, TaskState] | None:
        self.looks += 1
        return self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]

    def cancel(self, number: str, task: int | None = None) -> None:
        self.cancelled.append((number, task))


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def image() -> CheckedImage:
    platform = Platform("linux", "amd64")
    made = make_image(ImageSpec((LayerSpec((File("etc/x", b"1"),)),), platform))
    return checked_image(MemorySource(made), made.digest, platform, reference="registry.example/r/engine:v1")


def tasks_of(image: CheckedImage, count: int = 2) -> list[Task]:
    return [Task(image, Job(("/bin/true", str(number)), 60, {"TOKEN": "secret"})) for number in range(count)]


def site_of(folder: Path) -> Site:
    return Site("lab", "slurm", squash_folder=str(folder / "squash"), queue_limit=3600)


def batch(folder: Path, client: Cluster, time: Time | None = None) -> Batch:
    time = time or Time()
    site = site_of(folder)
    return Batch(site, folder / "jobs", PyxisContainer(site), client, clock=time.clock, pause=time.pause)


class Running(Cluster):
    """Tasks write their result when the queue is looked at for the second time."""

    def __init__(self, folder: Path, codes: Mapping[int, int]) -> None:
        super().__init__()
        self.folder = folder
        self.codes = codes

    def states(self, number: str) -> Mapping[int, TaskState]:
        self.looks += 1
        if self.looks < 2:
            return dict.fromkeys(self.codes, TaskState("RUNNING"))
        for index, code in self.codes.items():
            task = next((self.folder / "jobs").glob(f"tasks-*/tasks/{index}"))
            (task / "status.json").write_text(STATUS % code)
            (task / "stdout").write_text(f"of {index}")
            (task / "out" / "file").write_text("left")
        return dict.fromkeys(self.codes, TaskState("COMPLETED"))


def test_outcomes_in_order_and_nothing_left(tmp_path: Path, image: CheckedImage) -> None:
    client = Running(tmp_path, {0: 0, 1: 5})
    first, second = batch(tmp_path, client).run(tasks_of(image))
    assert (first.end, first.code, first.stdout) == (End.EXITED, 0, b"of 0")
    assert (second.code, second.files, second.seconds) == (5, {"file": b"left"}, 1.5)
    assert second.machine["node"] == "n1"
    assert [tasks for _, tasks in client.submitted] == [(0, 1)]
    assert not list((tmp_path / "jobs").glob("tasks-*/"))


def test_a_process_that_died_before_sbatch_answered_hands_in_anew(tmp_path: Path, image: CheckedImage) -> None:
    client = Running(tmp_path, {0: 0, 1: 0})
    client.submit = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt())  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        batch(tmp_path, client).run(tasks_of(image))
    again = Running(tmp_path, {0: 0, 1: 0})
    batch(tmp_path, again).run(tasks_of(image))
    assert [tasks for _, tasks in again.submitted] == [(0, 1)]


def test_only_what_neither_ended_nor_waits_is_handed_in_again(tmp_path: Path, image: CheckedImage) -> None:
    tasks = tasks_of(image, 3)
    client = Cluster([None])
    with pytest.raises(UnavailableError) as silent:
        batch(tmp_path, client).run(tasks)
    assert silent.value.code == "check.slurm-unreachable"
    folder = next((tmp_path / "jobs").glob("tasks-*/"))
    (folder / "tasks" / "0" / "status.json").write_text(STATUS % 3)
    # Slurm knows task 1 alone; 0 is over, 2 was forgotten with the controller's state
    states = {1: TaskState("COMPLETED"), 2: TaskState("CANCELLED")}
    again = Cluster([{1: TaskState("RUNNING")}, states])
    (folder / "tasks" / "1" / "status.json").write_text(STATUS % 4)
    outcomes = batch(tmp_path, again).run(tasks)
    assert [one[1] for one in again.submitted] == [(2,)]
    assert [one.code for one in outcomes] == [3, 4, None]
    assert outcomes[2].end is End.LOST


def test_the_manifest_tells_no_secret(tmp_path: Path, image: CheckedImage) -> None:
    with pytest.raises(UnavailableError):
        batch(tmp_path, Cluster([None])).run(tasks_of(image))
    folder = next((tmp_path / "jobs").glob("tasks-*/"))
    assert "secret" not in (folder / "manifest.json").read_text()
    assert json.loads((folder / "manifest.json").read_bytes())["kind"] == "slurm-tasks"
    assert folder.stat().st_mode & 0o077 == 0


def test_a_wait_beyond_the_queue_limit_ends(tmp_path: Path, image: CheckedImage) -> None:
    client = Cluster([{0: TaskState("PENDING", reason="Priority")}])
    time = Time()
    (outcome,) = batch(tmp_path, client, time).run(tasks_of(image, 1))
    assert outcome.end is End.NOT_STARTED
    assert "queue_limit" in outcome.detail
    assert 3600 < time.now < 3700
    assert client.cancelled == [("12", 0)]


def test_last_words_may_come_late(tmp_path: Path, image: CheckedImage) -> None:
    class Late(Cluster):
        def states(self, number: str) -> Mapping[int, TaskState]:
            self.looks += 1
            if self.looks == 4:
                (next((tmp_path / "jobs").glob("tasks-*/tasks/0")) / "status.json").write_text(STATUS % 6)
            return {0: TaskState("COMPLETED")}

    (outcome,) = batch(tmp_path, Late()).run(tasks_of(image, 1))
    assert (outcome.end, outcome.code) == (End.EXITED, 6)


def test_no_last_words_at_all(tmp_path: Path, image: CheckedImage) -> None:
    time = Time()
    (outcome,) = batch(tmp_path, Cluster([{0: TaskState("COMPLETED")}]), time).run(tasks_of(image, 1))
    assert outcome.end is End.NOT_STARTED
    assert time.now >= 30


def test_two_that_wait_for_the_same_tasks(tmp_path: Path, image: CheckedImage) -> None:
    mine = batch(tmp_path, Running(tmp_path, {0: 0}))
    with mine.folder_of(tasks_of(image, 1)).locked(), pytest.raises(RefusedError) as busy:
        mine.run(tasks_of(image, 1))
    assert busy.value.code == "check.slurm-busy"


def test_an_image_in_no_registry_cannot_be_imported(image: CheckedImage) -> None:
    from dataclasses import replace

    assert squash_address(image) == f"docker://registry.example#r/engine:{image.digest}"
    with pytest.raises(InputError) as nowhere:
        squash_address(replace(image, reference="oci:/data/image"))
    assert nowhere.value.code == "check.slurm-needs-registry"


@pytest.mark.parametrize("path", ["/a b", "/a%j", "/a'b", "/a$b", "/a,b"])
def test_paths_that_a_directive_cannot_hold(path: str, image: CheckedImage) -> None:
    with pytest.raises(InputError, match="job folder"):
        job_script(Site("a", "slurm", squash_folder="/s"), "n", "c", path, tasks_of(image))
    with pytest.raises(InputError):
        plain_path(path, "it")
