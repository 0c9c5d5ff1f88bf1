"""Every row of the table of machine faults, by stand-in probes: what was seen, which row it is, which verdict it makes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from imagebuild.check import inside
from imagebuild.check.smoke.machine_faults import (
    ABSENT,
    BUSY,
    ENGINE_NOT_SET_UP,
    FAULTS,
    FORBIDDEN,
    HUNG,
    KERNEL_FAULT,
    MISMATCH,
    NOT_PASSED_IN,
    WRONG_ARCHITECTURE,
    MachineFault,
    recognise,
)
from imagebuild.check.smoke.step_devices import devices_of, diagnose, driver_of, firmware_of
from imagebuild.check.verdicts import Verdict

NODES = {"/dev/nvidia0": "open", "/dev/nvidiactl": "open", "/dev/nvidia-uvm": "open"}
H200 = {"name": "NVIDIA H200", "capability": "9.0", "memory": 150_000_000_000}
READY = {
    "state": "ended", "cuda": "ready", "nvml": "ready", "driver": "580.95.05", "devices": [H200],
    "memory": [{"used": 1 << 20, "total": 150_000_000_000}],
}  # fmt: skip
GOOD: Mapping[str, Any] = {
    "vendor": "nvidia",
    "pci": [{"address": "0000:01:00.0", "device": "0x2335", "class": "0x030200"}],
    "nodes": NODES,
    "kernel_driver": None,
    "smi": {"state": "ended", "code": 0, "output": ""},
    "libraries": READY,
}
AMD: Mapping[str, Any] = {
    "vendor": "amd",
    "pci": [{"address": "0000:01:00.0", "device": "0x75a0", "class": "0x120000"}],
    "nodes": {"/dev/kfd": "open", "/dev/dri/renderD128": "open"},
    "kernel_driver": "6.14.14",
    "smi": {"state": "missing"},
    "devices": [{"gfx": "gfx950", "name": "ip discovery", "minor": 128, "mec_firmware": 38, "units": 1024}],
    "cards": [
        {"minor": 128, "product": "AMD Instinct MI355X", "mec_firmware": "0x26", "used": "1000", "total": "300000000000",
         "uncorrectable": "ue: 0\nce: 3"}
    ],
}  # fmt: skip


def changed(base: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    return {**base, **keys}


def libraries(**keys: Any) -> dict[str, Any]:
    return changed(GOOD, libraries={**READY, **keys})


def card(**keys: Any) -> dict[str, Any]:
    return changed(AMD, cards=[{**AMD["cards"][0], **keys}])


SEEN: list[tuple[str, Mapping[str, Any], MachineFault | None]] = [
    ("nvidia ready", GOOD, None),
    ("amd ready", AMD, None),
    ("nothing on the bus", changed(GOOD, pci=[], nodes={}), ABSENT),
    ("amd, nothing on the bus", changed(AMD, pci=[], nodes={}), ABSENT),
    ("cuda says none", libraries(cuda="error", error=100, message="no CUDA-capable device is detected"), ABSENT),
    ("nodes, no driver library", libraries(cuda="missing"), ENGINE_NOT_SET_UP),
    ("fabric manager down", libraries(cuda="error", error=802, message="system not yet initialized"), ENGINE_NOT_SET_UP),
    ("on the bus, no node", changed(GOOD, nodes={}), NOT_PASSED_IN),
    ("control nodes only", changed(GOOD, nodes={"/dev/nvidiactl": "open"}), NOT_PASSED_IN),
    ("no kfd", changed(AMD, nodes={"/dev/dri/renderD128": "open"}), NOT_PASSED_IN),
    ("device cgroup", changed(GOOD, nodes={**NODES, "/dev/nvidia0": "EPERM"}), FORBIDDEN),
    ("group ids", changed(AMD, nodes={"/dev/kfd": "EACCES", "/dev/dri/renderD128": "open"}), FORBIDDEN),
    ("nvml no permission", libraries(nvml="error", nvml_error=4, nvml_message="Insufficient Permissions"), FORBIDDEN),
    (
        "nvml and driver differ",
        libraries(nvml="error", nvml_error=18, nvml_message="Driver/library version mismatch"),
        MISMATCH,
    ),
    ("cuda and driver differ", libraries(cuda="error", error=803, message="system has unsupported …"), MISMATCH),
    (
        "the tool tells of a mismatch",
        changed(GOOD, smi={"state": "ended", "code": 18, "output": "Failed to initialize NVML: Driver/library version mismatch"}),
        MISMATCH,
    ),
    ("amdgpu tells no topology", changed(AMD, kernel_driver=None, devices=[]), MISMATCH),
    ("memory in use", libraries(memory=[{"used": 90_000_000_000, "total": 150_000_000_000}]), BUSY),
    ("exclusive", libraries(devices=[{**H200, "error": 46, "message": "device(s) is/are busy or unavailable"}]), BUSY),
    ("amd memory in use", card(used="200000000000"), BUSY),
    ("the tool hangs", changed(GOOD, smi={"state": "hung", "seconds": 30}), HUNG),
    ("the library hangs", changed(GOOD, libraries={"state": "hung", "seconds": 30}), HUNG),
    ("reset required", libraries(nvml="error", nvml_error=16, nvml_message="GPU requires reset"), HUNG),
    ("fallen off the bus", changed(GOOD, nodes={**NODES, "/dev/nvidia0": "EIO"}), KERNEL_FAULT),
    ("gpu is lost", libraries(memory=[{"error": "GPU is lost"}]), KERNEL_FAULT),
    ("ecc", libraries(cuda="error", error=214, message="uncorrectable ECC error encountered"), KERNEL_FAULT),
    ("unknown error", libraries(cuda="error", error=999, message="unknown error"), KERNEL_FAULT),
    ("the library crashes", changed(GOOD, libraries={"state": "crashed", "output": "Segmentation fault"}), KERNEL_FAULT),
    ("uncorrectable memory errors", card(uncorrectable="ue: 2\nce: 3"), KERNEL_FAULT),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "row"), [row[1:] for row in SEEN], ids=[row[0] for row in SEEN])
def test_a_probe_s_answer_names_its_row(answer: Mapping[str, Any], row: MachineFault | None) -> None:
    found = diagnose(answer)
    assert (found[0] if found else None) is row, found
    if found is not None:
        assert found[1] in found[0].judgement(found[1]).reason


SAID = [
    ('could not select device driver "" with capabilities: [[gpu]]', ENGINE_NOT_SET_UP),
    ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", ENGINE_NOT_SET_UP),
    ("nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file", ENGINE_NOT_SET_UP),
    ("RuntimeError: No CUDA GPUs are available", ABSENT),
    ("error gathering device information while adding custom device \"/dev/kfd\": no such file", NOT_PASSED_IN),
    ("Unable to open /dev/kfd read-write: Permission denied", FORBIDDEN),
    ("Failed to initialize NVML: Driver/library version mismatch", MISMATCH),
    ("CUDA error: all CUDA-capable devices are busy or unavailable", BUSY),
    ("ValueError: Free memory on device (3.1/139.8 GiB) on startup is less than desired GPU memory utilization", BUSY),
    ("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", KERNEL_FAULT),
    ("HW Exception by GPU node-1", KERNEL_FAULT),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", WRONG_ARCHITECTURE),
    ("AssertionError: 2 != 3", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "row"), SAID)
def test_what_engines_and_runners_say_names_its_row(text: str, row: MachineFault | None) -> None:
    found = recognise(text)
    assert (found[0] if found else None) is row


def test_the_table_is_whole_and_honest() -> None:
    verdicts = {fault.name: fault.verdict for fault in FAULTS}
    assert verdicts == {
        "absent": Verdict.NOT_RUN,
        "engine not set up": Verdict.INFRASTRUCTURE,
        "not passed in": Verdict.INFRASTRUCTURE,
        "forbidden": Verdict.INFRASTRUCTURE,
        "mismatch": Verdict.INFRASTRUCTURE,
        "busy": Verdict.INFRASTRUCTURE,
        "hung": Verdict.INFRASTRUCTURE,
        "kernel fault": Verdict.INFRASTRUCTURE,
        "wrong architecture": Verdict.FAILED,
    }
    page = (Path(__file__).parents[3] / "docs/how-to/smoke-tests.md").read_text(encoding="utf-8")
    for fault in FAULTS:
        assert f"| {fault.name} | `{fault.verdict}` | {fault.meaning} | {fault.do} |" in page


def test_hardware_is_told_as_evidence_wants_it() -> None:
    assert devices_of(GOOD) == [
        {"name": "NVIDIA H200", "architecture": "sm_90", "capability": "9.0", "memory": 150_000_000_000}
    ]
    assert devices_of(AMD) == [{"name": "AMD Instinct MI355X", "architecture": "gfx950"}]
    assert (driver_of(GOOD), driver_of(AMD), firmware_of(AMD)) == ("580.95.05", "6.14.14", "38")


class Machine:
    """A stand-in for a machine: /sys and /dev below a folder, and a tool in PATH."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "root", folder / "bin"
        self.bin.mkdir(parents=True)
        self.root.mkdir()
        self.given, self.out = folder / "in", folder / "out"
        self.given.mkdir()
        self.out.mkdir()

    def file(self, path: str, text: str = "") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def tool(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def probe(self, vendor: str, deadline: float = 11.0) -> Any:
        arguments = {"vendor": vendor, "root": str(self.root)}
        (self.given / "request.json").write_text(json.dumps({"deadline": deadline, "arguments": arguments}))
        (self.given / "devices.py").write_bytes(inside.source("devices"))
        answer = self.out / "answer"
        environment = {**os.environ, "PATH": f"{self.bin}:/usr/bin:/bin", "IMAGEBUILD_IN": str(self.given)}
        subprocess.run(
            [sys.executable, str(self.given / "devices.py")],
            env={**environment, "IMAGEBUILD_ANSWER": str(answer)},
            check=True,
            timeout=60,
        )
        return json.loads(answer.read_text())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_probe_of_a_machine_without_any(machine: Machine) -> None:
    machine.file("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086")
    found = diagnose(machine.probe("nvidia"))
    assert found is not None
    assert found[0] is ABSENT


def test_the_probe_of_a_machine_whose_device_was_not_passed_in(machine: Machine) -> None:
    machine.file("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de")
    machine.file("sys/bus/pci/devices/0000:01:00.0/class", "0x030200")
    found = diagnose(machine.probe("nvidia"))
    assert found is not None
    assert found[0] is NOT_PASSED_IN


def test_a_tool_that_hangs_is_killed_and_told(machine: Machine) -> None:
    machine.file("dev/nvidia0")
    machine.tool("nvidia-smi", "exec sleep 600")
    answer = machine.probe("nvidia")
    assert answer["smi"]["state"] == "hung"
    assert answer["libraries"] == {"state": "not-asked"}
    found = diagnose(answer)
    assert found is not None
    assert found[0] is HUNG


def test_a_tool_that_tells_of_a_mismatch(machine: Machine) -> None:
    machine.file("dev/nvidia0")
    machine.tool("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    found = diagnose(machine.probe("nvidia"))
    assert found is not None
    assert found[0] is MISMATCH


def test_an_amd_machine_by_its_sysfs(machine: Machine) -> None:
    machine.file("dev/kfd")
    machine.file("dev/dri/renderD128")
    machine.file("sys/class/kfd/kfd/topology/nodes/0/properties", "simd_count 0\ngfx_target_version 0")
    text = "simd_count 1024\ngfx_target_version 90500\ndrm_render_minor 128\nfw_version 38"
    machine.file("sys/class/kfd/kfd/topology/nodes/1/properties", text)
    machine.file("sys/class/drm/renderD128/device/vendor", "0x1002")
    machine.file("sys/class/drm/renderD128/device/product_name", "AMD Instinct MI355X")
    machine.file("sys/class/drm/renderD128/device/fw_version/mec_fw_version", "0x00000026")
    machine.file("sys/module/amdgpu/version", "6.14.14")
    machine.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    answer = machine.probe("amd")
    assert diagnose(answer) is None
    assert devices_of(answer) == [{"name": "AMD Instinct MI355X", "architecture": "gfx950"}]
    assert (firmware_of(answer), answer["huge_pages"]) == ("38", "always [madvise] never")
