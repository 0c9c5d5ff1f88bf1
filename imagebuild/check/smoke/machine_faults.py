"""What can be wrong with the machine under a check: symptom, verdict, what to do.  Data; the how-to page shows the table.

`symptoms` are regular expressions over what probes, engines and runners say; a fault without any is told by the structure of
the devices probe's answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebuild.check.verdicts import Judgement, Verdict


@dataclass(frozen=True, slots=True)
class MachineFault:
    """One row.  `meaning` is the reason that a result gives; `do` what its reader can do."""

    name: str
    verdict: Verdict
    meaning: str
    do: str
    symptoms: tuple[str, ...] = ()

    def judgement(self, detail: str = "") -> Judgement:
        return Judgement(self.verdict, f"{self.name}: {self.meaning}" + (f" ({detail})" if detail else ""))


ABSENT = MachineFault(
    "absent",
    Verdict.NOT_RUN,
    "the machine has no such accelerator",
    "run it on a machine that has one (--site, --runner slurm), or leave the step out",
    (
        r"nvidia-container-cli: .*no devices found",
        r"No CUDA GPUs are available",
        r"no CUDA-capable device is detected",
        r"Failed to infer device type",
        r"Found no NVIDIA driver on your system",
        r"No HIP GPUs are available",
        r"devices of \w+ are asked for, and this machine shows 0",
    ),
)
ENGINE_NOT_SET_UP = MachineFault(
    "engine not set up",
    Verdict.INFRASTRUCTURE,
    "the container engine does not know how to pass accelerators in",
    "install the vendor's container toolkit, or write a CDI specification (nvidia-ctk cdi generate)",
    (
        r"could not select device driver",
        r"unresolvable CDI devices?",
        r"CDI device injection failed",
        r"unknown or invalid runtime name: nvidia",
        r"nvidia-container-(?:cli|runtime)[^\n]*(?:not found|no such file)",
        r"libnvidia-ml\.so[^\n]*cannot open shared object",
        r"no CDI specification",
    ),
)
NOT_PASSED_IN = MachineFault(
    "not passed in",
    Verdict.INFRASTRUCTURE,
    "the machine has the accelerator, and the container has no device node of it",
    "ask the runner for devices; under Slurm ask for gres and let the container see its nodes",
    (r"error gathering device information while adding custom device", r"Failed to initialize NVML: Unknown Error"),
)
FORBIDDEN = MachineFault(
    "forbidden",
    Verdict.INFRASTRUCTURE,
    "a device node is there and may not be opened",
    "give the container the node's group (AMD: the numeric ids of video and render) or the device rule",
    (
        r"Failed to initialize NVML: Insufficient Permissions",
        r"(?:/dev/kfd|/dev/dri|/dev/nvidia)[^\n]*(?:Permission denied|Operation not permitted)",
        r"Unable to open /dev/kfd",
    ),
)
MISMATCH = MachineFault(
    "mismatch",
    Verdict.INFRASTRUCTURE,
    "driver and libraries are of different versions",
    "reload the kernel driver or reboot, and see that the container gets the libraries of this driver",
    (
        r"Driver/library version mismatch",
        r"system has unsupported display driver / cuda driver combination",
        r"CUDA driver version is insufficient for CUDA runtime version",
        r"forward compatibility was attempted on non supported HW",
        r"The NVIDIA driver on your system is too old",
        r"couldn't communicate with the NVIDIA driver",
    ),
)
BUSY = MachineFault(
    "busy",
    Verdict.INFRASTRUCTURE,
    "somebody else uses the accelerator",
    "wait, end what runs there (nvidia-smi, rocm-smi), or take another machine",
    (
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        r"all CUDA-capable devices are busy or unavailable",
        r"Free memory on device [^\n]* is less than desired GPU memory utilization",
    ),
)
HUNG = MachineFault(
    "hung",
    Verdict.INFRASTRUCTURE,
    "the driver did not answer within the deadline",
    "take the machine out of service and reset or reboot it; nothing that ran on it counts",
    (r"GPU requires reset", r"NVRM: GPU [^\n]* has stopped responding"),
)
KERNEL_FAULT = MachineFault(
    "kernel fault",
    Verdict.INFRASTRUCTURE,
    "the accelerator or its kernel driver reported a fault",
    "look at the kernel's log (Xid, amdgpu), take the machine out of service, run again elsewhere",
    (
        r"GPU has fallen off the bus",
        r"GPU is lost",
        r"\bXid\b",
        r"uncorrectable ECC error",
        r"HW Exception by GPU node",
        r"Unable to determine the device handle for GPU",
        r"CUDA error: unknown error",
        r"hardware stack error",
        r"CUDA_ERROR_(?:ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|HARDWARE_STACK_ERROR)",
    ),
)
WRONG_ARCHITECTURE = MachineFault(
    "wrong architecture",
    Verdict.FAILED,
    "the accelerator is not the one that the target is for",
    "run on the machine that `sku` names, or correct `sku`",
    (r"no kernel image is available for execution on the device", r"HIP error: invalid device function"),
)
FAULTS = (
    ABSENT, ENGINE_NOT_SET_UP, NOT_PASSED_IN, FORBIDDEN, MISMATCH, BUSY, HUNG, KERNEL_FAULT, WRONG_ARCHITECTURE,
)  # fmt: skip
"""The rows, in the order in which a reader looks."""

DRIVER_ERRORS: dict[int, MachineFault] = {
    2: BUSY,  # out of memory while making a context
    3: MISMATCH,  # not initialised
    34: MISMATCH,  # stub library
    35: MISMATCH,
    46: BUSY,  # device unavailable
    100: ABSENT,
    101: NOT_PASSED_IN,  # invalid device ordinal
    201: KERNEL_FAULT,
    214: KERNEL_FAULT,  # uncorrectable ECC error
    220: KERNEL_FAULT,  # uncorrectable NVLink error
    700: KERNEL_FAULT,
    714: KERNEL_FAULT,
    719: KERNEL_FAULT,
    802: ENGINE_NOT_SET_UP,  # system not ready: the fabric manager does not run
    803: MISMATCH,
    804: MISMATCH,
    999: KERNEL_FAULT,
}
"""CUresult of cuInit, cuDeviceGetCount and of making a context, where nothing of an image has run yet."""

MANAGEMENT_ERRORS: dict[int, MachineFault] = {4: FORBIDDEN, 9: MISMATCH, 15: KERNEL_FAULT, 16: HUNG, 18: MISMATCH}
"""nvmlReturn_t: no permission, driver not loaded, GPU is lost, reset required, library and driver differ."""


def recognise(text: str) -> tuple[MachineFault, str] | None:
    """The row that a symptom in `text` names, with the words that named it; None where no symptom is known."""
    for fault in FAULTS:
        for symptom in fault.symptoms:
            found = re.search(symptom, text, re.IGNORECASE)
            if found is not None:
                return fault, found.group(0)[:200]
    return None
