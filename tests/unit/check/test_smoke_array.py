"""Smoke tests as job arrays, with a cluster that runs each task here: what costs much waits for what costs little."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from smoke_bench import Bench, UnpackedRunner, outcome

from imagebuild.check.runner import CheckedImage, End, Job, Outcome
from imagebuild.check.slurm.smoke import run_smoke_array
from imagebuild.check.smoke import SmokeResult
from imagebuild.check.verdicts import Verdict

NO_ACCELERATOR = outcome(end=End.NOT_STARTED, detail="could not select device driver with capabilities: [[gpu]]")


class Cluster(UnpackedRunner):
    """Keeps the names of the jobs of each array, and which of them asked for accelerators."""

    name = "slurm"

    def __init__(self, folder: Path, **answers: Outcome) -> None:
        super().__init__(folder, {name.replace("_", "-"): answer for name, answer in answers.items()})
        self.arrays: list[list[str]] = []
        self.accelerated: set[str] = set()
        self.kept = 0

    def run_many(self, jobs: Sequence[tuple[CheckedImage, Job]], *, keep: bool = False) -> tuple[Outcome, ...]:
        self.arrays.append([job.name for _, job in jobs])
        self.accelerated |= {job.name for _, job in jobs if job.devices is not None}
        self.kept += keep
        return tuple(self.run(image, job) for image, job in jobs)

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        ran = super().run(image, job)
        if job.name == "smoke-devices-without devices":
            # whatever is on the bus of this machine
            document = json.loads(ran.files["answer.json"])
            document["answer"]["pci"] = []
            return replace(ran, files={"answer.json": json.dumps(document).encode()})
        return ran

    def forget(self, jobs: Sequence[tuple[CheckedImage, Job]]) -> None:
        self.kept -= 1


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("array"))


def verdicts(result: SmokeResult) -> dict[str, str]:
    return {one.step: str(one.verdict) for one in result.steps}


def test_cheap_steps_go_out_first_and_equal_jobs_once(bench: Bench, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    one, two = run_smoke_array([bench.request(), bench.request()], cluster)  # type: ignore[arg-type]
    assert set(verdicts(one).values()) == {"passed"}
    assert verdicts(one) == verdicts(two)
    cheap, costly = cluster.arrays
    assert cheap == ["smoke-python", "smoke-switch"]
    assert [name for name in costly if "overlay" not in name] == ["smoke-engine", "smoke-parity-base"]
    assert cluster.kept == 0
    # each image's evidence tells the time of what it stands on, once
    assert all(result.steps[3].seconds == cluster.seconds["smoke-engine"] for result in (one, two))
    assert all(result.steps[4].seconds == cluster.seconds["smoke-parity-base"] for result in (one, two))


def test_nothing_costly_goes_out_after_a_step_that_failed(bench: Bench, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, smoke_python=outcome(code=3))
    (result,) = run_smoke_array([bench.request()], cluster)  # type: ignore[arg-type]
    assert cluster.arrays == [["smoke-python", "smoke-switch"]]
    # what went out with it is told as it came back
    assert verdicts(result)["python"] == "invalid"
    assert verdicts(result)["switch"] == "passed"
    later = [one for one in result.steps if one.step in ("engine", "parity", "overlay")]
    assert {one.judgement.reason for one in later} == {"python is invalid"}
    assert {one.verdict for one in later} == {Verdict.NOT_RUN}
    assert cluster.kept == 0


def test_without_an_accelerator_those_steps_do_not_go_out_that_need_one(bench: Bench, tmp_path: Path) -> None:
    made = bench.request()
    steps = ("python", "switch", "devices", "engine", "parity", "overlay")
    request = replace(made, target=replace(made.target, sku="h200"), steps=steps)
    cluster = Cluster(tmp_path, smoke_devices=NO_ACCELERATOR)
    (result,) = run_smoke_array([request], cluster)  # type: ignore[arg-type]
    told = verdicts(result)
    assert told["devices"] == "not-run"
    assert "smoke-devices-without devices" in cluster.arrays[1]
    assert not [name for names in cluster.arrays for name in names if "engine" in name or "parity" in name]
    assert told["engine"] == told["parity"] == told["devices-again"] == "not-run"
    # an overlay's own checks say for themselves what they can do without
    assert told["overlay"] == "passed"
    assert cluster.accelerated == {"smoke-devices"}
