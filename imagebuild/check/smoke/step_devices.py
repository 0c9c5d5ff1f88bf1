"""Steps 4 and 8: the accelerators that the container sees, against the target's SKU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from imagebuild.check.runner import End, Outcome
from imagebuild.check.smoke.machine_faults import (
    ABSENT,
    BUSY,
    DRIVER_ERRORS,
    ENGINE_NOT_SET_UP,
    FORBIDDEN,
    HUNG,
    KERNEL_FAULT,
    MANAGEMENT_ERRORS,
    MISMATCH,
    NOT_PASSED_IN,
    WRONG_ARCHITECTURE,
    MachineFault,
    recognise,
)
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, StepResult, part
from imagebuild.check.smoke.step import StepJob, inside_job, read_inside, result_of
from imagebuild.check.verdicts import Verdict
from imagebuild.target.sku import Sku

STEP, AGAIN = "devices", "devices-again"
BARE = "without devices"
BUSY_BYTES, BUSY_PART = 2 << 30, 0.05
"""Memory in use before anything of ours ran, above which the accelerator counts as somebody else's."""
SHARED_MEMORY_LEAST = 1 << 30


def jobs(request: SmokeRequest) -> tuple[StepJob, ...]:
    return _jobs(request, STEP)


def jobs_again(request: SmokeRequest) -> tuple[StepJob, ...]:
    return _jobs(request, AGAIN)


def _jobs(request: SmokeRequest, step: str) -> tuple[StepJob, ...]:
    """The probe, and the same without devices: where the first does not start, it tells whether the machine has any."""
    sku = request.sku
    if sku is None:
        return ()
    # the second look differs in its request, so that it is really taken again
    arguments = {"vendor": sku.vendor, "look": step}
    one = inside_job(request, "devices", "devices", "devices", arguments, devices=request.devices)
    two = inside_job(request, "devices", BARE, "devices", arguments, after="devices")
    return tuple(StepJob(step, job.key, job.image, job.job, job.base, job.after) for job in (one, two))


def judge(request: SmokeRequest, outcomes: Mapping[str, Outcome]) -> StepResult:
    return _judge(request, STEP, outcomes)


def judge_again(request: SmokeRequest, outcomes: Mapping[str, Outcome]) -> StepResult:
    return _judge(request, AGAIN, outcomes)


def _judge(request: SmokeRequest, step: str, outcomes: Mapping[str, Outcome]) -> StepResult:
    sku, asked = request.sku, _jobs(request, step)
    if sku is None:
        why = part("devices", Verdict.NOT_RUN, "the target names no sku, so there is nothing to hold devices against")
        return result_of(request, step, asked, {}, [why])
    outcome = outcomes["devices"]
    if outcome.end is End.NOT_STARTED:
        return result_of(request, step, asked, outcomes, [_refused(request, asked, outcomes)])
    found = read_inside(request, asked[0], outcome)
    if found.faults:
        return result_of(request, step, asked, outcomes, list(found.faults))
    answer = found.answer
    fault = diagnose(answer)
    if fault is not None:
        parts = [Part("devices", fault[0].judgement(fault[1]))]
    else:
        parts = list(_fitting(request, sku, answer, found.machine))
    hardware = hardware_of(answer, found.machine)
    return result_of(request, step, asked, outcomes, parts, facts={"probe": dict(answer)}, hardware=hardware)


def _refused(request: SmokeRequest, asked: tuple[StepJob, ...], outcomes: Mapping[str, Outcome]) -> Part:
    """The engine would not start a container with devices.  Where the machine has none, that is no fault of its."""
    refused = read_inside(request, asked[0], outcomes["devices"]).faults[0]
    bare = outcomes.get(BARE)
    if bare is None or bare.end is not End.EXITED:
        return refused
    found = read_inside(request, asked[1], bare)
    if found.faults:
        return refused
    if not found.answer["pci"]:
        return Part("devices", ABSENT.judgement(outcomes["devices"].detail.strip()[-200:]))
    if recognise(outcomes["devices"].detail) is None:
        return Part("devices", ENGINE_NOT_SET_UP.judgement(outcomes["devices"].detail.strip()[-200:]))
    return refused


def diagnose(answer: Mapping[str, Any]) -> tuple[MachineFault, str] | None:
    """The machine's fault that a probe's answer shows, and the words for it; None where accelerators are there and ready."""
    nodes: Mapping[str, str] = answer["nodes"]
    if not nodes:
        if answer["pci"]:
            return NOT_PASSED_IN, f"{len(answer['pci'])} on the bus, no node in /dev"
        return ABSENT, f"nothing of {answer['vendor']} on the bus and no node in /dev"
    numbered = [path for path in nodes if re.search(r"(?:nvidia[0-9]+|renderD[0-9]+|dxg)$", path)]
    refused = {path: word for path, word in nodes.items() if word in ("EACCES", "EPERM")}
    if refused:
        path, word = next(iter(refused.items()))
        return FORBIDDEN, f"{path}: {word}"
    gone = {path: word for path, word in nodes.items() if word in ("ENXIO", "ENODEV", "EIO")}
    if gone:
        path, word = next(iter(gone.items()))
        return KERNEL_FAULT, f"{path}: {word}"
    if not numbered:
        return NOT_PASSED_IN, "control nodes only: " + ", ".join(nodes)
    smi = answer["smi"]
    if smi["state"] == "hung":
        return HUNG, f"the vendor's tool did not answer within {smi.get('seconds', 0):.0f} s"
    known = recognise(smi.get("output", "")) if smi.get("code") != 0 else None
    if known is not None:
        return known
    return _nvidia_fault(answer) if answer["vendor"] == "nvidia" else _amd_fault(answer)


def _nvidia_fault(answer: Mapping[str, Any]) -> tuple[MachineFault, str] | None:
    libraries = answer["libraries"]
    if libraries["state"] == "hung":
        return HUNG, f"the driver's library did not answer within {libraries.get('seconds', 0):.0f} s"
    if libraries["state"] == "crashed":
        return KERNEL_FAULT, f"the driver's library ended the process: {libraries.get('output', '')[-200:]}"
    if libraries.get("nvml") == "error":
        row = MANAGEMENT_ERRORS.get(libraries["nvml_error"], KERNEL_FAULT)
        return row, f"NVML {libraries['nvml_error']}: {libraries['nvml_message']}"
    if libraries.get("cuda") == "missing":
        return ENGINE_NOT_SET_UP, "nodes are there, and libcuda.so.1 is not"
    if libraries.get("cuda") == "error":
        row = DRIVER_ERRORS.get(libraries["error"], KERNEL_FAULT)
        return row, f"CUDA {libraries['error']}: {libraries['message']}"
    for number, memory in enumerate(libraries.get("memory", ())):
        if "error" in memory:
            return KERNEL_FAULT, f"accelerator {number}: {memory['error']}"
        if memory["used"] > max(BUSY_BYTES, BUSY_PART * memory["total"]):
            return BUSY, f"accelerator {number} has {memory['used'] >> 20} MiB of {memory['total'] >> 20} MiB in use"
    for number, one in enumerate(libraries.get("devices", ())):
        if "error" in one:
            return DRIVER_ERRORS.get(
                one["error"], KERNEL_FAULT
            ), f"accelerator {number}, CUDA {one['error']}: {one['message']}"
    if not libraries.get("devices"):
        return NOT_PASSED_IN, "the driver lists no accelerator"
    return None


def _amd_fault(answer: Mapping[str, Any]) -> tuple[MachineFault, str] | None:
    if "/dev/kfd" not in answer["nodes"]:
        return NOT_PASSED_IN, "/dev/dri is there, /dev/kfd is not"
    if answer["kernel_driver"] is None and not answer["devices"]:
        return MISMATCH, "/dev/kfd is there and amdgpu tells no topology"
    for card in answer["cards"]:
        wrong = re.search(r"ue:\s*([1-9][0-9]*)", card.get("uncorrectable") or "")
        if wrong is not None:
            return KERNEL_FAULT, f"renderD{card['minor']}: {wrong.group(1)} uncorrectable memory errors"
        used, total = int(card["used"] or 0), int(card["total"] or 0)
        if used > max(BUSY_BYTES, BUSY_PART * total):
            return BUSY, f"renderD{card['minor']} has {used >> 20} MiB of {total >> 20} MiB in use"
    if not answer["devices"]:
        return NOT_PASSED_IN, "the topology lists no accelerator"
    return None


def _fitting(request: SmokeRequest, sku: Sku, answer: Mapping[str, Any], machine: Mapping[str, Any]) -> Iterator[Part]:
    """Count, architecture, name, processor, shared memory, and what the target requires of its host."""
    seen = devices_of(answer)
    wanted = request.settings.expected_devices
    if wanted is not None and len(seen) != wanted:
        yield part("count", Verdict.FAILED, f"{len(seen)} accelerators, the target expects {wanted}")
    else:
        yield part("count", Verdict.PASSED, str(len(seen)))
    others = [one for one in seen if one["architecture"] != sku.architecture]
    if others:
        one = others[0]
        yield Part(
            "architecture",
            WRONG_ARCHITECTURE.judgement(f"{one['name']} is {one['architecture']}, {sku.name} is {sku.architecture}"),
        )
    else:
        yield part("architecture", Verdict.PASSED, sku.architecture)
        yield _name(sku, [str(one["name"]) for one in seen])
    if machine["architecture"] != sku.platform.machine:
        yield part(
            "processor", Verdict.FAILED, f"{machine['architecture']}, {sku.name} hosts are {sku.platform.machine}"
        )
    else:
        yield part("processor", Verdict.PASSED, str(machine["architecture"]))
    if answer["shared_memory"] < SHARED_MEMORY_LEAST:
        why = f"shared memory is {answer['shared_memory'] >> 20} MiB, collective libraries want {SHARED_MEMORY_LEAST >> 20}"
        yield part("shared memory", Verdict.INFRASTRUCTURE, why)
    else:
        yield part("shared memory", Verdict.PASSED, f"{answer['shared_memory'] >> 20} MiB")
    yield part("memlock", Verdict.PASSED, str(answer["memlock"]))
    driver = driver_of(answer)
    yield part("driver", Verdict.PASSED if driver else Verdict.NOT_PROVEN, driver or "nothing tells its version")
    for key, value in request.target.requires_host.items():
        yield _required(key, value, answer)


def _name(sku: Sku, names: list[str]) -> Part:
    """The product's name, since an architecture is shared by several; virtual machines may hide it."""
    told = [name for name in names if name]
    if not told:
        return part("name", Verdict.PASSED, "the machine does not tell it; the architecture is right")
    wrong = [name for name in told if re.search(rf"\b{sku.name}\b", name, re.IGNORECASE) is None]
    if wrong:
        return part("name", Verdict.FAILED, f"{wrong[0]} is no {sku.name.upper()}")
    return part("name", Verdict.PASSED, told[0])


def _required(key: str, value: str, answer: Mapping[str, Any]) -> Part:
    """One of the target's `requires.host`."""
    told = {"mec_firmware": firmware_of(answer), "driver": driver_of(answer)}
    name = f"requires {key}"
    found = told.get(key)
    if key not in told:
        return part(name, Verdict.NOT_RUN, f"nothing here can tell {key}")
    if not found:
        return part(name, Verdict.NOT_RUN, f"the machine does not tell its {key}")
    try:
        good = found in SpecifierSet(value) if value[0] in "<>=!~" else found == value
    except (InvalidSpecifier, InvalidVersion):
        return part(name, Verdict.NOT_RUN, f"{value} and {found} cannot be compared")
    if good:
        return part(name, Verdict.PASSED, found)
    return part(name, Verdict.INFRASTRUCTURE, f"the machine has {key} {found}, the target requires {value}")


def devices_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name, architecture and capability of each accelerator, as evidence lists them."""
    if answer["vendor"] == "nvidia":
        listed = (answer.get("libraries") or {}).get("devices") or ()
        return [
            {
                "name": one["name"],
                "architecture": "sm_" + one["capability"].replace(".", ""),
                "capability": one["capability"],
                "memory": one.get("memory"),
            }
            for one in listed
        ]
    products = {card["minor"]: card.get("product") for card in answer.get("cards", ())}
    nodes = {f"/dev/dri/renderD{one['minor']}" for one in answer["devices"]}
    # the topology lists the whole machine's, the nodes in /dev those that are ours
    ours = [one for one in answer["devices"] if f"/dev/dri/renderD{one['minor']}" in answer["nodes"] or not nodes]
    return [{"name": products.get(one["minor"]) or "", "architecture": one["gfx"]} for one in ours]


def driver_of(answer: Mapping[str, Any]) -> str | None:
    """The kernel driver's version."""
    told = (answer.get("libraries") or {}).get("driver")
    if told:
        return str(told)
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)*)\b", answer.get("kernel_driver") or "")
    return found.group(1) if found is not None else answer.get("kernel_driver")


def firmware_of(answer: Mapping[str, Any]) -> str | None:
    """The lowest MEC firmware version of the AMD accelerators, as a decimal number."""
    told = [int(card["mec_firmware"], 0) for card in answer.get("cards", ()) if card.get("mec_firmware")]
    told = told or [one["mec_firmware"] for one in answer.get("devices", ()) if one.get("mec_firmware")]
    return str(min(told)) if told else None


def hardware_of(answer: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """What evidence says of the machine."""
    out: dict[str, Any] = {
        "accelerators": devices_of(answer) if answer.get("nodes") else [],
        "driver": driver_of(answer),
        "cpu": machine.get("architecture"),
        "kernel": machine.get("kernel"),
    }
    if answer["vendor"] == "amd":
        out |= {"mec_firmware": firmware_of(answer), "huge_pages": answer.get("huge_pages")}
    return out
