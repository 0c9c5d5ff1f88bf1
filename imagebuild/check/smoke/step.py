"""Steps as values: the jobs that one needs, and what comes back of a job that ran one of the programs inside the image."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuild.check import inside
from imagebuild.check.runner import CheckedImage, Devices, End, Job, Outcome
from imagebuild.check.runners.loading import child_of
from imagebuild.check.smoke.machine_faults import recognise
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, StepResult, part
from imagebuild.check.verdicts import Verdict
from imagebuild.content.canonical import load_json
from imagebuild.errors import ImagebuildError, clean

BOOT = (
    "import os,sys;sys.dont_write_bytecode=True;p=os.environ['IMAGEBUILD_IN']+'/launch.py';"
    "exec(compile(open(p,'rb').read(),p,'exec'))"
)
RAN_AS = "ranAs"
"""In what an outcome tells of the machine: the name of the equal job that ran."""
SHARED_MEMORY = 8 << 30
"""Bytes of /dev/shm that jobs with accelerators ask for: collective libraries and engines exchange data there."""


@dataclass(frozen=True, slots=True)
class StepJob:
    """One job of a step.  `key` is its name within the step; `base` tells that it runs in the unpatched image; one with
    `after` runs only where the job of that key could not be started."""

    step: str
    key: str
    image: CheckedImage
    job: Job
    base: bool = False
    after: str | None = None

    @property
    def command(self) -> str:
        """For people: the program, not its text."""
        words = ["launch.py" if word == BOOT else word for word in self.job.command]
        return shlex.join(words) + f"  # {self.job.name}, in {self.image.digest}"


def inside_job(
    request: SmokeRequest,
    step: str,
    key: str,
    program: str,
    arguments: Mapping[str, Any],
    *,
    also: tuple[str, ...] = (),
    files: Mapping[str, bytes] | None = None,
    devices: Devices | None = None,
    base: bool = False,
    after: str | None = None,
) -> StepJob:
    """A job that starts `program` through `launch` by the image's own Python, `also` naming programs that it starts."""
    image = request.base if base else request.image
    assert image is not None
    deadline = request.deadline(step)
    expected = request.expected
    question = {
        "program": program,
        "deadline": max(1.0, deadline - min(20.0, deadline / 5)),
        "arguments": arguments,
        "proof": {
            "provenance": sorted(expected.provenance),
            "files": [one.path for one in expected.paths],
            "relocate": request.relocated,
            "roots": [{"name": one.name, "folder": one.folder, "site": one.site} for one in expected.roots],
        },
    }
    names = dict.fromkeys(("launch", program, *also))
    inputs = {f"{name}.py": inside.source(name) for name in names}
    inputs["request.json"] = json.dumps(question, sort_keys=True).encode()
    inputs.update(files or {})
    job = Job(
        (request.settings.python, "-B", "-c", BOOT),
        deadline,
        environment=dict(request.environment),
        inputs=inputs,
        mounts=request.mounts,
        devices=devices,
        shared_memory=SHARED_MEMORY if devices is not None else 1 << 30,
        name=f"smoke-{step}" if key == step else f"smoke-{step}-{key}",
    )
    return StepJob(step, key, image, job, base, after)


@dataclass(frozen=True, slots=True)
class Inside:
    """What a job brought back.  `faults` is not empty where it does not count; `answer` is the program's own document
    then, perhaps unfinished where it was stopped."""

    faults: tuple[Part, ...]
    answer: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    program: Mapping[str, Any] = field(default_factory=dict)


def read_inside(request: SmokeRequest, asked: StepJob, outcome: Outcome) -> Inside:
    """Judges how the job ended and whether it ran in the image, before anything that it says is believed."""
    name = asked.key
    raw = outcome.files.get("answer.json")
    if outcome.end is End.LOST:
        return Inside((part(name, Verdict.INFRASTRUCTURE, f"the machine was lost: {_short(outcome.detail)}"),))
    if outcome.end is End.NOT_STARTED:
        return Inside((_not_started(name, outcome, asked),))
    if raw is None:
        return Inside((_silent(name, outcome, asked),))
    try:
        told = load_json(raw, "answer.json")
        proof, program = told["proof"], told["program"]
        machine, answer = told["machine"], told["answer"]
        if told["kind"] != "imagebuild-inside" or not isinstance(proof["files"], dict):
            raise ValueError("another kind")
    except (ImagebuildError, KeyError, TypeError, ValueError):
        return Inside((part(name, Verdict.INVALID, "what came back is no answer of the program that was sent"),))
    faults = [part(name, Verdict.INVALID, why) for why in _disproved(request, asked, proof, outcome)]
    if faults:
        return Inside(tuple(faults), machine=machine)
    if program is None or program["ended"] == "deadline" or outcome.end is End.DEADLINE:
        stuck = ", and cannot be killed" if program is not None and program.get("stuck") else ""
        why = f"hung: {asked.job.name} did not end within {asked.job.deadline:g} s{stuck}"
        return Inside((part(name, Verdict.INFRASTRUCTURE, why),), answer or {}, machine, program or {})
    if not isinstance(answer, dict):
        said = _short((outcome.stderr or outcome.stdout).decode("utf-8", "replace"))
        why = f"{program['name']} ended with {program['code']} and without an answer: {said}"
        return Inside((part(name, Verdict.INVALID, why),), machine=machine, program=program)
    return Inside((), answer, machine, program)


def _not_started(name: str, outcome: Outcome, asked: StepJob) -> Part:
    known = recognise(outcome.detail)
    if known is not None:
        fault, words = known
        return Part(name, fault.judgement(words))
    if _no_python(outcome.detail, asked):
        return part(name, Verdict.NOT_RUN, _without_python(asked))
    return part(name, Verdict.INFRASTRUCTURE, f"it did not start: {_short(outcome.detail)}")


def _silent(name: str, outcome: Outcome, asked: StepJob) -> Part:
    said = (outcome.stderr + b"\n" + outcome.stdout).decode("utf-8", "replace").strip()
    if outcome.end is End.DEADLINE:
        return part(name, Verdict.INFRASTRUCTURE, f"hung: {asked.job.name} was stopped after {outcome.seconds:.0f} s")
    if outcome.code in (126, 127) and _no_python(said, asked):
        return part(name, Verdict.NOT_RUN, _without_python(asked))
    known = recognise(said)
    if known is not None:
        return Part(name, known[0].judgement(known[1]))
    why = f"exit code {outcome.code} and no answer: nothing proves that it ran in the image: {_short(said)}"
    return part(name, Verdict.INVALID, why)


def _no_python(text: str, asked: StepJob) -> bool:
    return asked.job.command[0] in text and ("not found" in text.lower() or "no such file" in text.lower())


def _without_python(asked: StepJob) -> str:
    return f"{asked.job.command[0]} is not in the image; name its interpreter as checks.smoke.python"


def _disproved(request: SmokeRequest, asked: StepJob, proof: Mapping[str, Any], outcome: Outcome) -> list[str]:
    """Why the job did not run in the image it was meant for; [] where it did."""
    expected, out = request.expected, []
    said = outcome.machine.get("imageId")
    if said is not None and said not in _names_of(asked.image):
        out.append(f"the engine started another image: {said}, not {asked.image.digest}")
    told, files = proof["provenance"], proof["files"]
    if asked.base:
        patched = [path for path, found in told.items() if found.get("content_id") == str(expected.content_id)]
        if patched:
            out.append(f"it ran in the patched image, not in its base: {patched[0]} is there")
        changed = [one.path for one in expected.paths if not one.is_base(files.get(one.path, {}))]
        if changed:
            out.append(f"it did not run in the base: {changed[0]} is not the base's ({len(changed)} such paths)")
        return out
    for path, digest in expected.provenance.items():
        found = told.get(path, {})
        if found.get("state") != "file" or "content_id" not in found:
            out.append(f"it did not run in the image: {path}, which tells the content id, is not there")
        elif found["content_id"] != str(expected.content_id):
            out.append(f"it ran in an image of another content: {found['content_id']}, not {expected.content_id}")
        elif found.get("sha256") != str(digest):
            out.append(f"{path} is not the image's: {found.get('sha256')}, not {digest}")
    wrong = [one for one in expected.paths if not one.agrees(files.get(one.path, {}))]
    for one in wrong[:3]:
        found = files.get(one.path, {})
        shown = found.get("sha256") or found.get("state", "not looked at")
        out.append(f"{one.path} is not the image's: {shown}, not {one.after or one.link or 'absent'}")
    if len(wrong) > 3:
        out.append(f"{len(wrong) - 3} more changed paths are not the image's")
    return out


def _names_of(image: CheckedImage) -> set[str]:
    """What engines call an image: by its config, its manifest or its index."""
    return {str(child_of(image).manifest.config.digest), str(image.digest), str(image.index)}


def result_of(
    request: SmokeRequest,
    step: str,
    jobs: tuple[StepJob, ...],
    outcomes: Mapping[str, Outcome],
    parts: list[Part],
    *,
    facts: Mapping[str, Any] | None = None,
    hardware: Mapping[str, Any] | None = None,
) -> StepResult:
    """A step's result, with the raw outputs of its jobs."""
    outputs: dict[str, bytes] = {}
    for key, outcome in outcomes.items():
        for name, data in (("stdout.txt", outcome.stdout), ("stderr.txt", outcome.stderr), *outcome.files.items()):
            if data:
                outputs[f"{key}/{name}"] = data
    ran = [one for one in jobs if one.key in outcomes]
    return StepResult(
        step,
        tuple(parts),
        sum(outcome.seconds for outcome in outcomes.values()),
        request.deadline(step.removesuffix("-again")),
        tuple(_command(one, outcomes[one.key]) for one in ran),
        dict(facts or {}),
        dict(hardware or {}),
        outputs,
    )


def _command(asked: StepJob, outcome: Outcome) -> str:
    before = outcome.machine.get(RAN_AS)
    return asked.command if before is None else f"{asked.command}: run once, as {before}"


def _short(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return clean(" / ".join(lines[-4:]), 600) or "it said nothing"
