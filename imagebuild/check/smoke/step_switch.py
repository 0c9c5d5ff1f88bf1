"""Step 3: each overlay's switch is registered with the engine, off when unset and by default, on with its value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from imagebuild.check.runner import Outcome
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, StepResult, part
from imagebuild.check.smoke.step import StepJob, inside_job, read_inside, result_of
from imagebuild.check.verdicts import Verdict
from imagebuild.errors import clean
from imagebuild.overlay.document import Switch

STEP = "switch"
REGISTRIES = {"vllm": "vllm.envs:environment_variables"}
"""Where engines register their environment variables, by the package's import name."""


def switches_of(request: SmokeRequest) -> tuple[Switch, ...]:
    """The switches of the series, each variable once."""
    named = {overlay.switch.env: overlay.switch for overlay in request.overlays if overlay.switch is not None}
    return tuple(named.values())


def registry_of(request: SmokeRequest) -> str | None:
    """`MODULE:ATTRIBUTE`: the declared one, or that of an engine that is known."""
    if request.settings.registry is not None:
        return request.settings.registry
    names = [root.name for root in request.expected.roots]
    return next((REGISTRIES[name] for name in names if name in REGISTRIES), None)


def jobs(request: SmokeRequest) -> tuple[StepJob, ...]:
    switches, registry = switches_of(request), registry_of(request)
    if not switches or registry is None:
        return ()
    arguments = {
        "registry": registry,
        "switches": [{"env": one.env, "default": one.default, "on": one.on} for one in switches],
    }
    return (inside_job(request, STEP, STEP, "switch", arguments),)


def judge(request: SmokeRequest, outcomes: Mapping[str, Outcome]) -> StepResult:
    asked = jobs(request)
    if not asked:
        why = (
            part("switch", Verdict.PASSED, "no overlay has a switch: the change is always on")
            if not switches_of(request)
            else part("switch", Verdict.NOT_RUN, "no registry of environment variables is known: checks.smoke.registry")
        )
        return result_of(request, STEP, asked, {}, [why])
    found = read_inside(request, asked[0], outcomes[STEP])
    if found.faults:
        return result_of(request, STEP, asked, outcomes, list(found.faults))
    parts: list[Part] = []
    for one in found.answer["switches"]:
        parts += _switch(one, found.answer["registry"])
    facts = {"registry": found.answer["registry"], "switches": found.answer["switches"]}
    return result_of(request, STEP, asked, outcomes, parts, facts=facts)


def _switch(one: Mapping[str, Any], registry: str) -> Iterator[Part]:
    name = one["env"]
    asked = {key: one[key] for key in ("unset", "off", "on", "control")}
    broken = {key: told for key, told in asked.items() if "error" in told}
    if broken:
        key, told = next(iter(broken.items()))
        last = clean(told["error"].strip().splitlines()[-1], 300)
        verdict = (
            Verdict.INFRASTRUCTURE if told.get("hung") else Verdict.NOT_RUN if told.get("missing") else Verdict.FAILED
        )
        yield part(name, verdict, f"{registry} could not be asked ({key}): {last}")
        return
    control = one["control"]
    if control["registered"] or control["attribute"]:
        yield part(name, Verdict.INVALID, f"control: the registry knows {control['env']} too, which is made up")
        return
    if control.get("environment_refused") is False and one["on"].get("environment_refused") is not None:
        yield part(name, Verdict.INVALID, f"control: the engine accepts {control['env']}, which is made up")
        return
    if not one["unset"]["registered"]:
        yield part(name, Verdict.FAILED, f"{name} is not among the {one['unset']['variables']} variables of {registry}")
        return
    faults = []
    if one["unset"]["value"] != one["off"]["value"]:
        faults.append(f"unset it is {one['unset']['value']}, by its default {one['off']['value']}")
    if one["on"]["value"] == one["off"]["value"]:
        faults.append(f"on and off have one value, {one['on']['value']}")
    if one["unset"]["true"]:
        faults.append(f"unset it is on ({one['unset']['value']})")
    if not one["on"]["true"]:
        faults.append(f"switched on it is {one['on']['value']}")
    if one["on"].get("environment_refused"):
        faults.append("the engine's own validation of its environment refuses it")
    if faults:
        yield part(name, Verdict.FAILED, "; ".join(faults))
        return
    how = "" if one["on"]["how"] == "imported" else f" (by {clean(one['on']['how'], 160)})"
    yield part(name, Verdict.PASSED, f"off: {one['unset']['value']}, on: {one['on']['value']}{how}")
