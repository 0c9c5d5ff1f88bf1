"""The devices steps in a whole run: absent, refused, hung, wrong, gone bad meanwhile; what the other steps then do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from smoke_bench import Bench, UnpackedRunner, outcome

from imagebuild.check.runner import CheckedImage, End, Job, Outcome
from imagebuild.check.smoke import SmokeRequest, SmokeResult, run_smoke
from imagebuild.check.verdicts import Verdict

READY = {
    "state": "ended", "cuda": "ready", "nvml": "ready", "driver": "580.95.05",
    "devices": [{"name": "NVIDIA H200", "capability": "9.0", "memory": 150_000_000_000}],
    "memory": [{"used": 1 << 20, "total": 150_000_000_000}],
}  # fmt: skip
GOOD: dict[str, Any] = {
    "vendor": "nvidia",
    "pci": [{"address": "0000:01:00.0", "device": "0x2335", "class": "0x030200"}],
    "nodes": {"/dev/nvidia0": "open", "/dev/nvidiactl": "open"},
    "kernel_driver": None,
    "smi": {"state": "ended", "code": 0, "output": ""},
    "libraries": READY,
    "shared_memory": 8 << 30,
    "memlock": "unlimited",
}
KERNEL = {
    "torch": "2.11", "why": "", "tolerance": 0.01, "built_for": "13.0", "available": True, "devices": 1,
    "products": [{"device": "NVIDIA H200", "error": 0.002, "finite": True}],
    "reduction": {"ranks": 1, "backend": "nccl", "hung": [], "same": [True], "errors": {}},
}  # fmt: skip


class Accelerated(UnpackedRunner):
    """Proofs are read from the unpacked image as ever; what probes of accelerators say is made up.

    `probes` are the answers of the devices probe in turn (a callable makes an outcome of its own).
    """

    def __init__(self, folder: Path, *probes: Any) -> None:
        super().__init__(folder)
        self.probes = list(probes)
        self.asked: list[Job] = []

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        self.asked.append(job)
        if job.name == "smoke-devices":
            probe = self.probes.pop(0)
            if isinstance(probe, Outcome):
                return probe
            return told(super().run(image, job), probe)
        if job.name == "smoke-kernel":
            return told(super().run(image, job), KERNEL)
        return super().run(image, job)


def told(ran: Outcome, answer: Mapping[str, Any]) -> Outcome:
    document = json.loads(ran.files["answer.json"])
    document["answer"] = dict(answer)
    document["machine"]["architecture"] = "x86_64"
    return replace(ran, files={**ran.files, "answer.json": json.dumps(document).encode()})


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("devices"))


def request_of(bench: Bench, *steps: str, sku: str = "h200", **keys: Any) -> SmokeRequest:
    made = bench.request(steps=steps)
    return replace(made, target=replace(made.target, sku=sku, **keys))


def words(result: SmokeResult) -> dict[str, str]:
    return {one.step: str(one.verdict) for one in result.steps}


def reason(result: SmokeResult, step: str) -> str:
    return next(one.judgement.reason for one in result.steps if one.step == step)


def test_a_good_machine_is_looked_at_twice(bench: Bench, tmp_path: Path) -> None:
    runner = Accelerated(tmp_path, GOOD, GOOD)
    result = run_smoke(request_of(bench, "devices", "kernel"), runner)
    assert words(result) == {"devices": "passed", "kernel": "passed", "devices-again": "passed"}
    assert runner.probes == []
    assert result.hardware["driver"] == "580.95.05"
    assert result.hardware["accelerators"][0]["architecture"] == "sm_90"
    assert all(job.devices is not None and job.devices.vendor == "nvidia" for job in runner.asked)


def test_a_device_that_went_bad_meanwhile_voids_the_run(bench: Bench, tmp_path: Path) -> None:
    bad = {**GOOD, "libraries": {"state": "hung", "seconds": 30}}
    result = run_smoke(request_of(bench, "devices", "kernel"), Accelerated(tmp_path, GOOD, bad))
    assert words(result) == {"devices": "passed", "kernel": "passed", "devices-again": "infrastructure"}
    assert result.judgement.verdict is Verdict.INFRASTRUCTURE


def test_a_probe_that_hangs_is_the_machine_s_fault_and_stops_the_rest(bench: Bench, tmp_path: Path) -> None:
    hung = outcome(end=End.DEADLINE, code=None, seconds=120.0)
    result = run_smoke(request_of(bench, "devices", "kernel", "engine"), Accelerated(tmp_path, hung))
    assert words(result)["devices"] == "infrastructure"
    assert reason(result, "devices").startswith("hung")
    assert words(result)["kernel"] == words(result)["engine"] == "not-run"


def test_no_accelerator_is_not_run_and_own_checks_run_without(bench: Bench, tmp_path: Path) -> None:
    """An engine refuses devices in the same words on a machine that has none: the bus decides."""
    refused = outcome(
        end=End.NOT_STARTED, code=None, detail='could not select device driver "" with capabilities: [[gpu]]'
    )
    runner = Accelerated(tmp_path, refused)
    runner.answers = {}
    result = run_smoke(request_of(bench, "devices", "kernel", "engine", "overlay"), Bare(runner, pci=[]))
    assert words(result) == {
        "devices": "not-run", "kernel": "not-run", "engine": "not-run", "overlay": "passed", "devices-again": "not-run",
    }  # fmt: skip
    assert reason(result, "devices").startswith("absent")
    assert runner.asked[-1].devices is None


def test_an_engine_that_is_not_set_up_on_a_machine_that_has_one(bench: Bench, tmp_path: Path) -> None:
    refused = outcome(end=End.NOT_STARTED, code=None, detail='could not select device driver "" with capabilities')
    result = run_smoke(request_of(bench, "devices", "kernel"), Bare(Accelerated(tmp_path, refused), pci=GOOD["pci"]))
    assert words(result)["devices"] == "infrastructure"
    assert reason(result, "devices").startswith("engine not set up")


class Bare:
    """Answers the probe without devices with a bus of its own making."""

    name = "stand-in"

    def __init__(self, below: Accelerated, pci: list[Any]) -> None:
        self.below, self.pci = below, pci

    def available(self) -> str | None:
        return None

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        if "without devices" in job.name:
            assert job.devices is None
            return told(UnpackedRunner.run(self.below, image, job), {**GOOD, "nodes": {}, "pci": self.pci})
        return self.below.run(image, job)

    serve: Callable[..., Any]

    def close(self) -> None:
        pass


OTHER_MACHINES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "another architecture": (
        {**GOOD, "libraries": {**READY, "devices": [{"name": "NVIDIA B200", "capability": "10.0"}]}},
        {}, "failed", "wrong architecture: the accelerator is not the one that the target is for (NVIDIA B200 is sm_100",
    ),
    "the same architecture of another product": (
        {**GOOD, "libraries": {**READY, "devices": [{"name": "NVIDIA H100 80GB HBM3", "capability": "9.0"}]}},
        {}, "failed", "NVIDIA H100 80GB HBM3 is no H200",
    ),
    "little shared memory": ({**GOOD, "shared_memory": 64 << 20}, {}, "infrastructure", "64 MiB"),
    "a driver that is too old": (
        GOOD, {"requires_host": {"driver": ">=600"}}, "infrastructure", "the machine has driver 580.95.05",
    ),
    "a requirement that nothing tells": (GOOD, {"requires_host": {"mec_firmware": ">=38"}}, "not-run", "mec_firmware"),
    "nothing tells the driver": (
        {**GOOD, "libraries": {**READY, "driver": None}}, {}, "not-proven", "nothing tells its version",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_MACHINES)
def test_a_machine_that_is_not_the_target_s(bench: Bench, tmp_path: Path, case: str) -> None:
    probe, keys, verdict, said = OTHER_MACHINES[case]
    result = run_smoke(request_of(bench, "devices", **keys), Accelerated(tmp_path, probe))
    assert words(result)["devices"] == verdict
    assert said in reason(result, "devices")


def test_fewer_devices_than_expected_fail(bench: Bench, tmp_path: Path) -> None:
    made = request_of(bench, "devices")
    object.__setattr__(made.settings, "expected_devices", 8)
    result = run_smoke(made, Accelerated(tmp_path, GOOD))
    assert words(result)["devices"] == "failed"
    assert "1 accelerators, the target expects 8" in reason(result, "devices")


def test_a_target_for_no_accelerator_has_nothing_to_hold_them_against(bench: Bench, tmp_path: Path) -> None:
    result = run_smoke(bench.request(steps=("devices", "kernel")), UnpackedRunner(tmp_path))
    assert words(result) == {"devices": "not-run", "kernel": "not-run"}
