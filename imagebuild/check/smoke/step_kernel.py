"""Step 5: a bf16 matrix product on every accelerator against the CPU, and one all-reduce over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from imagebuild.check.runner import Outcome
from imagebuild.check.smoke.machine_faults import ABSENT, KERNEL_FAULT, recognise
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, StepResult, part
from imagebuild.check.smoke.step import StepJob, inside_job, read_inside, result_of
from imagebuild.check.verdicts import Verdict
from imagebuild.errors import clean

STEP = "kernel"


def jobs(request: SmokeRequest) -> tuple[StepJob, ...]:
    if request.devices is None:
        return ()
    return (inside_job(request, STEP, STEP, "kernel", {}, devices=request.devices),)


def judge(request: SmokeRequest, outcomes: Mapping[str, Outcome]) -> StepResult:
    asked = jobs(request)
    if not asked:
        why = part(STEP, Verdict.NOT_RUN, "the target names no sku, so no accelerator is asked for")
        return result_of(request, STEP, asked, {}, [why])
    found = read_inside(request, asked[0], outcomes[STEP])
    if found.faults:
        return result_of(request, STEP, asked, outcomes, list(found.faults))
    facts = {
        key: found.answer.get(key) for key in ("torch", "built_for", "devices", "products", "reduction", "tolerance")
    }
    return result_of(request, STEP, asked, outcomes, list(judged(found.answer)), facts=facts)


def judged(answer: Mapping[str, Any]) -> Iterator[Part]:
    """The parts of what the program found."""
    if answer["torch"] is None:
        yield part("torch", Verdict.NOT_RUN, f"torch is not in the image: {clean(answer['why'], 200)}")
        return
    if "error" in answer:
        yield failure("torch", answer["error"])
        return
    if not answer["available"] or not answer["devices"]:
        yield Part("torch", ABSENT.judgement(f"torch {answer['torch']} for {answer['built_for']} sees none"))
        return
    for number, one in enumerate(answer.get("products", ())):
        name = f"product on {number}"
        if "failure" in one:
            yield failure(name, one["failure"])
        elif not one["finite"] or one["error"] > answer["tolerance"]:
            why = "not finite" if not one["finite"] else f"off by {one['error']:.2e} of its norm"
            yield part(name, Verdict.FAILED, f"{one['device']}: {why}, tolerance {answer['tolerance']}")
        else:
            yield part(name, Verdict.PASSED, f"{one['device']}: relative error {one['error']:.2e}")
    yield _reduction(answer.get("reduction"))


def _reduction(found: Mapping[str, Any] | None) -> Part:
    name = "all-reduce"
    if found is None:
        return part(name, Verdict.INVALID, "the program ended before it")
    if found["errors"]:
        rank, said = next(iter(found["errors"].items()))
        known = recognise(said)
        if known is not None:
            return Part(name, known[0].judgement(known[1]))
        if found["hung"]:
            why = f"ranks {found['hung']} of {found['ranks']} did not end by their deadline"
            return part(name, Verdict.INFRASTRUCTURE, f"hung: {why}")
        return failure(name, f"rank {rank}: {said}")
    if not all(found["same"]) or len(found["same"]) != found["ranks"]:
        return part(name, Verdict.FAILED, f"{found['same'].count(False)} of {found['ranks']} ranks have a wrong sum")
    return part(name, Verdict.PASSED, f"{found['ranks']} ranks over {found['backend']}")


def failure(name: str, said: str) -> Part:
    """What went wrong on an accelerator in code that is none of ours: the machine's fault where a symptom says so."""
    known = recognise(said)
    last = clean(said.strip().splitlines()[-1] if said.strip() else "it said nothing", 300)
    if known is not None:
        return Part(name, known[0].judgement(known[1]))
    if "CUDA error" in said or "HIP error" in said or "Memory access fault by GPU" in said:
        return Part(name, KERNEL_FAULT.judgement(last))
    return part(name, Verdict.FAILED, last)
