"""The docker runner against an engine that is made to fail: whatever happens, no container stays and nothing is made up."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any

import pytest

from imagebuild.check.runner import CheckedImage, End, Job
from imagebuild.check.runners import docker as module
from imagebuild.check.runners import owner
from imagebuild.check.runners.docker import DockerRunner
from imagebuild.check.runners.loading import REPOSITORY
from imagebuild.check.runners.place import Place
from imagebuild.content.digest import Digest
from imagebuild.errors import UnavailableError
from imagebuild.oci.docker_engine import EngineImage
from imagebuild.oci.platform import Platform
from imagebuild.testing.images import ImageSpec, LayerSpec, make_image
from imagebuild.testing.memory import MemorySource

MADE = make_image(ImageSpec((LayerSpec(()),)))
IMAGE = CheckedImage("test", MADE.digest, Platform("linux", "amd64"), MemorySource(MADE))
CONFIG = Digest.parse(json.loads(MADE.raw)["config"]["digest"])
STARTED = "2026-01-01T00:00:00Z"


def failed(status: int | None, found: str = "engine's words") -> UnavailableError:
    return UnavailableError("oci.engine-failed", "failed", found=found, details={"status": status})


class FakeImages:
    def __init__(self, identity: str = "") -> None:
        self.identity = identity or str(CONFIG)
        self.closed = 0

    address = "fake"

    def image(self, name: str) -> EngineImage | None:
        return EngineImage(self.identity, (), "linux", "amd64", {})

    def layer_stacks(self) -> list[tuple[str, ...]]:
        return []

    def takes_part_archives(self) -> bool:
        return False

    def load(self, parts: Iterator[bytes]) -> None:
        raise AssertionError("it is there already")

    def close(self) -> None:
        self.closed += 1


class FakeContainers:
    """One container whose states are told one after another, the last one for ever."""

    address = "fake"

    def __init__(self, *states: Mapping[str, Any] | BaseException | None, refuse: BaseException | None = None) -> None:
        self.states = list(states)
        self.refuse = refuse
        self.calls: list[str] = []
        self.there: dict[str, Mapping[str, str]] = {}
        self.images: dict[str, str] = {}
        self.gone = False

    def info(self) -> Mapping[str, Any]:
        return {"ServerVersion": "1.2"}

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        self.there[name] = config["Labels"]
        return name

    def start(self, container: str) -> None:
        if self.refuse is not None:
            raise self.refuse

    def state(self, container: str) -> Mapping[str, Any] | None:
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        if isinstance(state, BaseException):
            raise state
        return state

    def logs(self, container: str, *, stdout: bool, stderr: bool, limit: int) -> bytes:
        return b"out" if stdout else b"err"

    def log_tail(self, container: str, lines: int) -> bytes:
        return b"tail"

    def kill(self, container: str) -> None:
        self.calls.append("kill")

    def stop(self, container: str, grace: int) -> None:
        self.calls.append("stop")

    def put(self, container: str, archive: bytes) -> None:
        self.calls.append("put")

    @contextmanager
    def get(self, container: str, path: str) -> Iterator[IO[bytes]]:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            member = tarfile.TarInfo("out/left")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
        out.seek(0)
        yield out

    def remove(self, container: str) -> None:
        self.there.pop(container, None)

    def labelled(self, label: str) -> list[tuple[str, Mapping[str, str]]]:
        return list(self.there.items())

    def image_names(self, repository: str) -> list[tuple[str, str]]:
        return [(identity, name) for name, identity in self.images.items()]

    def tag_image(self, image: str, name: str) -> bool:
        if self.gone:
            return False
        self.images[name] = image
        return True

    def remove_image(self, name: str) -> None:
        del self.images[name]

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that passes by sleeping alone."""
    at = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: at[0])
    monkeypatch.setattr(module, "sleep", lambda seconds: at.__setitem__(0, at[0] + seconds))


RUNNING = {"Running": True, "StartedAt": STARTED}
DONE = {"Running": False, "StartedAt": STARTED, "ExitCode": 3}


def runner_of(engine: FakeContainers) -> DockerRunner:
    return DockerRunner(Place(), connect=lambda: engine, images=FakeImages)


def test_a_job_that_exits() -> None:
    engine = FakeContainers(RUNNING, RUNNING, DONE)
    outcome = runner_of(engine).run(IMAGE, Job(("x",), 60))
    assert (outcome.end, outcome.code, outcome.stdout, outcome.stderr) == (End.EXITED, 3, b"out", b"err")
    assert outcome.files == {"left": b"1"}
    assert outcome.machine == {"runner": "docker", "version": "1.2", "imageId": str(CONFIG)}
    assert engine.there == {}


def test_an_image_whose_source_went_away_meanwhile_costs_no_outcome() -> None:
    """A registry that does not answer any more when a long job is over."""
    source = MemorySource(MADE)

    class Engine(FakeContainers):
        def start(self, container: str) -> None:
            source.blobs.clear()

    outcome = runner_of(Engine(RUNNING, DONE)).run(replace(IMAGE, source=source), Job(("x",), 60))
    assert (outcome.end, outcome.code) == (End.EXITED, 3)
    assert outcome.machine["imageId"] == str(CONFIG)


def test_an_id_of_the_engines_own_is_no_proof_of_the_image() -> None:
    engine = FakeContainers(DONE)
    runner = DockerRunner(Place(), connect=lambda: engine, images=lambda: FakeImages("sha256:of-the-engine"))
    machine = runner.run(IMAGE, Job(("x",), 60)).machine
    assert "imageId" not in machine
    assert machine["engineImageId"] == "sha256:of-the-engine"


def test_a_job_out_of_memory_says_so() -> None:
    outcome = runner_of(FakeContainers({**DONE, "ExitCode": 137, "OOMKilled": True})).run(IMAGE, Job(("x",), 60))
    assert (outcome.end, outcome.code, outcome.detail) == (End.EXITED, 137, "out of memory")


def test_a_job_that_is_too_long_is_killed() -> None:
    engine = FakeContainers(RUNNING)
    outcome = runner_of(engine).run(IMAGE, Job(("x",), 5))
    assert (outcome.end, outcome.code) == (End.DEADLINE, None)
    assert outcome.seconds == pytest.approx(5)
    assert "kill" in engine.calls
    assert engine.there == {}


def test_an_engine_that_starts_nothing_is_quoted() -> None:
    engine = FakeContainers(DONE, refuse=failed(400, "no such file"))
    outcome = runner_of(engine).run(IMAGE, Job(("x",), 5))
    assert (outcome.end, outcome.code, outcome.detail) == (End.NOT_STARTED, None, "no such file")
    assert engine.there == {}


def test_a_container_that_ended_without_a_start_never_ran() -> None:
    state = {"Running": False, "StartedAt": "0001-01-01T00:00:00Z", "Error": "exec failed"}
    outcome = runner_of(FakeContainers(state)).run(IMAGE, Job(("x",), 5))
    assert (outcome.end, outcome.detail) == (End.NOT_STARTED, "exec failed")


@pytest.mark.parametrize("gone", [None, failed(500), UnavailableError("oci.engine-unreachable", "nobody answers")])
def test_an_engine_that_goes_away_under_a_job_is_no_exit(gone: Any) -> None:
    engine = FakeContainers(RUNNING, gone)
    outcome = runner_of(engine).run(IMAGE, Job(("x",), 60))
    assert (outcome.end, outcome.code) == (End.LOST, None)
    assert outcome.detail


def test_an_interrupted_job_leaves_no_container() -> None:
    engine = FakeContainers(RUNNING, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        runner_of(engine).run(IMAGE, Job(("x",), 60))
    assert engine.there == {}


def test_stale_containers_go_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeContainers(DONE)
    engine.there = {"old": {**owner.labels(0), owner.UNTIL: "1"}, "mine": owner.labels(60), "strange": {}}
    runner = runner_of(engine)
    assert runner.available() is None
    assert list(engine.there) == ["old", "mine", "strange"]
    runner.run(IMAGE, Job(("x",), 60))
    assert list(engine.there) == ["mine", "strange"]


def test_an_image_of_somebody_else_is_neither_held_nor_removed() -> None:
    engine = FakeContainers(DONE)
    runner = runner_of(engine)
    runner.run(IMAGE, Job(("x",), 60))
    assert engine.images == {}
    runner.close()


def test_an_image_that_another_process_brought_is_held_until_the_end() -> None:
    engine = FakeContainers(DONE)
    live = f"{REPOSITORY}:{owner.image_tag('a' * 32)}"
    dead = ".".join((*live.split(".")[:4], "1", live.split(".")[5]))
    kept = f"{REPOSITORY}:{'a' * 32}"
    engine.images = {live: str(CONFIG), dead: str(CONFIG), kept: str(CONFIG)}
    runner = runner_of(engine)
    runner.run(IMAGE, Job(("x",), 60))
    runner.run(IMAGE, Job(("x",), 60))
    # what a killed process held may be what this one needs: it goes when this one does
    assert {live, dead, kept} < set(engine.images)
    assert len(engine.images) == 4
    runner.close()
    assert set(engine.images) == {live, kept}


def test_an_engine_that_goes_away_before_the_end_takes_no_result_along(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeContainers(DONE)
    runner = runner_of(engine)
    assert runner.run(IMAGE, Job(("x",), 60)).code == 3

    def silent(repository: str) -> list[tuple[str, str]]:
        raise UnavailableError("oci.engine-unreachable", "nobody answers")

    monkeypatch.setattr(engine, "image_names", silent)
    runner.close()
    assert "close" in engine.calls


def test_an_image_that_goes_while_it_is_looked_at_is_brought_again() -> None:
    engine = FakeContainers(DONE)
    engine.images = {f"{REPOSITORY}:x": str(CONFIG)}
    engine.gone = True
    with pytest.raises(AssertionError, match="it is there already"):
        runner_of(engine).run(IMAGE, Job(("x",), 60))


def test_no_engine_is_a_reason_and_no_error() -> None:
    def connect() -> FakeContainers:
        raise UnavailableError("oci.engine-unreachable", "no Docker engine answers", found="there is no such socket")

    runner = DockerRunner(Place(), connect=connect, images=FakeImages)
    assert runner.available() == "no Docker engine answers: there is no such socket"
    with pytest.raises(UnavailableError, match=r"check\.no-runner"):
        runner.run(IMAGE, Job(("x",), 1))


def test_a_server_is_stopped_once_and_its_end_is_kept() -> None:
    engine = FakeContainers(RUNNING, RUNNING, DONE)
    server = runner_of(engine).serve(IMAGE, Job(("x",), 60), 8000)
    assert server.address == ("127.0.0.1", 8000)
    assert server.ended() is None
    assert server.log_tail(3) == "ail"
    outcome = server.stop()
    assert (outcome.end, outcome.code, outcome.detail) == (End.EXITED, 3, "stopped on request")
    assert server.stop() is outcome
    assert engine.calls.count("stop") == 1
    assert engine.there == {}


def test_a_server_whose_engine_goes_away_is_lost() -> None:
    engine = FakeContainers(RUNNING, failed(None))
    server = runner_of(engine).serve(IMAGE, Job(("x",), 60), 8000)
    assert server.ended() is None
    outcome = server.ended()
    assert outcome is not None
    assert outcome.end is End.LOST


def test_closing_a_runner_stops_its_servers() -> None:
    engine = FakeContainers(RUNNING, RUNNING, DONE)
    runner = runner_of(engine)
    server = runner.serve(IMAGE, Job(("x",), 60), 8000)
    runner.close()
    assert "stop" in engine.calls
    assert server.ended() is not None
