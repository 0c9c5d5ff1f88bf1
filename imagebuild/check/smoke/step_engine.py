"""Step 6: the engine's server starts with a tiny model, answers, and shows its proof with the switch on and only then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from imagebuild.check.runner import Outcome
from imagebuild.check.smoke.machine_faults import recognise
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, StepResult, part
from imagebuild.check.smoke.step import StepJob, inside_job, read_inside, result_of
from imagebuild.check.smoke.step_switch import switches_of
from imagebuild.check.verdicts import Verdict
from imagebuild.errors import clean

STEP = "engine"
OFF, ON, OFF_AGAIN, PATCHED = "off", "on", "off-again", "patched"
BASE, BASE_AGAIN = "base", "base-again"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "vllm": (
        "{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--host", "127.0.0.1",
        "--port", "{port}", "--load-format", "dummy",
    ),
    "sglang": (
        "{python}", "-m", "sglang.launch_server", "--model-path", "{model}", "--host", "127.0.0.1",
        "--port", "{port}", "--load-format", "dummy",
    ),
}  # fmt: skip
"""What starts each engine; dynamo's workers are vllm, and its frontend takes no part in this."""
PROMPTS: tuple[tuple[int, ...], ...] = (
    (2,), (5, 3), (11, 12, 13, 14), (40, 41, 7, 9, 8, 30, 22), (100, 90, 80, 70, 60, 50, 40, 30, 20, 10),
    tuple(range(2, 34)), tuple(range(97, 33, -1)), (7,) * 48,
)  # fmt: skip
"""Token ids of the parity prompts where the target names no file; below 128, so that a small vocabulary has them all."""


def command_of(request: SmokeRequest) -> tuple[str, ...] | None:
    """What starts the server, None where nothing says."""
    tiny, serve = request.settings.engine, request.target.serve
    if tiny is None:
        return None
    if tiny.command:
        return (*tiny.command, *tiny.args)
    engine = serve.engine if serve is not None else None
    if engine == "openai" and serve is not None:
        return (*serve.command, *tiny.args)
    command = COMMANDS.get("vllm" if engine in ("vllm", "dynamo-vllm") else engine or "")
    return (*command, *tiny.args) if command is not None else None


def arms_of(request: SmokeRequest) -> list[dict[str, Any]]:
    """Off (unset), on, off again (by the default's value); one arm alone where nothing switches."""
    switches = switches_of(request)
    names = [one.env for one in switches]
    if not switches:
        return [{"name": PATCHED, "env": {}, "unset": []}]
    return [
        {"name": OFF, "env": {}, "unset": names},
        {"name": ON, "env": {one.env: one.on for one in switches}, "unset": []},
        {"name": OFF_AGAIN, "env": {one.env: one.default for one in switches}, "unset": []},
    ]


def proofs_of(request: SmokeRequest) -> list[dict[str, Any]]:
    return [
        {"overlay": one.name, "log": one.proof.log, "counter": one.proof.counter}
        for one in request.overlays
        if one.proof is not None
    ]


def engine_job(
    request: SmokeRequest, step: str, key: str, arms: list[dict[str, Any]], *, base: bool = False
) -> StepJob:
    """A job that starts the server for each arm in turn; equal arms and settings make equal jobs, whatever the step."""
    tiny, command = request.settings.engine, command_of(request)
    assert tiny is not None
    assert command is not None
    arguments = {
        "arms": arms,
        "command": list(command),
        "env": dict(tiny.env),
        "config": dict(tiny.config),
        "tokens": tiny.tokens,
        "prompts": [list(prompt) for prompt in request.prompts or PROMPTS],
        "ready": tiny.ready_deadline,
        "proofs": proofs_of(request),
    }
    return inside_job(request, step, key, "engine", arguments, devices=request.devices, base=base)


def jobs(request: SmokeRequest) -> tuple[StepJob, ...]:
    if command_of(request) is None:
        return ()
    return (engine_job(request, STEP, STEP, arms_of(request)),)


def not_declared(request: SmokeRequest) -> Part:
    tiny = request.settings.engine
    why = (
        "the target declares no tiny engine: checks.smoke.engine"
        if tiny is None
        else "nothing says what starts the engine"
    )
    return part("engine", Verdict.NOT_RUN, why)


def judge(request: SmokeRequest, outcomes: Mapping[str, Outcome]) -> StepResult:
    asked = jobs(request)
    if not asked:
        return result_of(request, STEP, asked, {}, [not_declared(request)])
    found = read_inside(request, asked[0], outcomes[STEP])
    arms = list(found.answer.get("arms", ()))
    facts = {"arms": [summary(one) for one in arms]}
    if found.faults:
        return result_of(request, STEP, asked, outcomes, list(found.faults), facts=facts)
    parts: list[Part] = []
    for arm in arms:
        parts += served(arm, request)
    missing = [one["name"] for one in arms_of(request) if one["name"] not in {arm["name"] for arm in arms}]
    parts += [part(name, Verdict.INVALID, "the program ended before this arm") for name in missing]
    if not missing and all(one.judgement.verdict is Verdict.PASSED for one in parts):
        parts += _proofs(request, arms)
    return result_of(request, STEP, asked, outcomes, parts, facts=facts)


def served(arm: Mapping[str, Any], request: SmokeRequest) -> Iterator[Part]:
    """Whether one arm's server came up and answered."""
    name = arm["name"]
    if not arm["ready"] or arm.get("error"):
        said = arm.get("tail", "") + "\n" + arm.get("error", "")
        known = recognise(said)
        if known is not None:
            yield Part(name, known[0].judgement(known[1]))
            return
        lines = [line for line in said.strip().splitlines() if line.strip()]
        last = clean(" / ".join(lines[-3:]), 500) or "it said nothing"
        tiny = request.settings.engine
        patience = tiny.ready_deadline if tiny is not None else 0
        if arm.get("exit") is not None:
            yield part(name, Verdict.FAILED, f"the server ended with {arm['exit']}: {last}")
        elif not arm["ready"] and not arm.get("error"):
            yield part(name, Verdict.FAILED, f"no answer on /health within {patience} s: {last}")
        else:
            yield part(name, Verdict.FAILED, last)
        return
    if not arm.get("models"):
        yield part(name, Verdict.FAILED, f"/v1/models answers {arm.get('models_status')} and names no model")
        return
    bad = [one for one in arm["answers"] if one["status"] != 200]
    if bad or not arm["answers"]:
        shown = f"{bad[0]['status']}: {clean(bad[0].get('error', ''), 300)}" if bad else "no completion was asked for"
        yield part(name, Verdict.FAILED, f"/v1/completions answers {shown}")
        return
    yield part(name, Verdict.PASSED, f"up after {arm['seconds_to_ready']} s, {len(arm['answers'])} completions")


def _proofs(request: SmokeRequest, arms: list[Any]) -> Iterator[Part]:
    """Each declared proof: found with the switch on, absent with it off."""
    by_name = {arm["name"]: arm for arm in arms}
    for overlay in request.overlays:
        if overlay.switch is None:
            continue
        name = f"proof of {overlay.name}"
        if overlay.proof is None:
            yield part(name, Verdict.NOT_PROVEN, "it has a switch and declares no proof that the switched branch ran")
            continue
        shown = overlay.proof.log or overlay.proof.counter
        seen = {arm: shows(by_name[arm], overlay.proof.log, overlay.proof.counter) for arm in (OFF, ON, OFF_AGAIN)}
        if not seen[ON]:
            yield part(name, Verdict.FAILED, f"with the switch on nothing shows {shown!r}")
        elif seen[OFF] or seen[OFF_AGAIN]:
            which = OFF if seen[OFF] else OFF_AGAIN
            yield part(name, Verdict.FAILED, f"{shown!r} is shown with the switch off too ({which})")
        else:
            yield part(name, Verdict.PASSED, f"on: {clean(seen[ON], 200)}; absent with it off")


def shows(arm: Mapping[str, Any], log: str | None, counter: str | None) -> str:
    """What of an arm shows the proof, "" for nothing."""
    if log is not None:
        found = arm.get("logs", {}).get(log, {"count": 0, "lines": []})
        return str(found["lines"][0]) if found["count"] else ""
    value = arm.get("counters", {}).get(counter)
    return f"{counter} {value:g}" if value else ""


def summary(arm: Mapping[str, Any]) -> dict[str, Any]:
    """An arm for the evidence, without the answers' every number (they are in the raw output)."""
    kept = (
        "name",
        "env",
        "ready",
        "seconds_to_ready",
        "seconds",
        "health",
        "models",
        "logs",
        "counters",
        "exit",
        "error",
    )
    first = next(iter(arm.get("answers", ())), None)
    return {**{key: arm[key] for key in kept if key in arm}, "completions": len(arm.get("answers", ())), "first": first}
