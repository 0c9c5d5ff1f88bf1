"""Step 6b: with the switch off the patched engine gives the base's tokens and logprobs; with it on, how far it is from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuild.check.runner import Outcome
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import Part, StepResult, part
from imagebuild.check.smoke.step import StepJob, read_inside, result_of
from imagebuild.check.smoke.step_engine import (
    BASE,
    BASE_AGAIN,
    OFF,
    OFF_AGAIN,
    ON,
    PATCHED,
    arms_of,
    command_of,
    engine_job,
    not_declared,
    served,
    shows,
)
from imagebuild.check.smoke.step_switch import switches_of
from imagebuild.check.verdicts import Verdict

STEP = "parity"


@dataclass(frozen=True, slots=True)
class Distance:
    """How far the answers of one arm are from another's.  `largest` and `mean` are of absolute differences of logprobs,
    over the `tokens` up to the first that differs in each prompt; `diverged` maps a prompt's number to the position of its
    first other token; `faults` say why the two cannot be compared."""

    tokens: int
    largest: float
    mean: float
    diverged: Mapping[int, int]
    faults: tuple[str, ...] = ()

    @property
    def zero(self) -> bool:
        return not self.faults and not self.diverged and self.largest == 0.0

    def within(self, spread: Distance) -> bool:
        """Whether it is no farther than a spread: no larger difference, and other tokens only where, and no earlier than,
        the spread has them."""
        if self.faults or self.largest > spread.largest:
            return False
        return all(spread.diverged.get(number, position + 1) <= position for number, position in self.diverged.items())

    def to_json(self) -> dict[str, Any]:
        first = min(self.diverged.items()) if self.diverged else None
        return {
            "tokens": self.tokens,
            "largest": self.largest,
            "mean": self.mean,
            "diverged_prompts": len(self.diverged),
            "first_diverging": None if first is None else {"prompt": first[0], "token": first[1]},
            "faults": list(self.faults),
        }

    @property
    def words(self) -> str:
        if self.faults:
            return self.faults[0]
        if self.zero:
            return f"equal in all {self.tokens} tokens and logprobs"
        text = f"logprobs differ by {self.largest:.3g} at most, {self.mean:.3g} in the mean, over {self.tokens} tokens"
        if self.diverged:
            number, position = min(self.diverged.items())
            text += f"; {len(self.diverged)} prompts diverge, first prompt {number} at token {position}"
        return text


def distance(one: Sequence[Mapping[str, Any]], two: Sequence[Mapping[str, Any]]) -> Distance:
    """Compares answers prompt by prompt.  A missing logprob on one side only, or no tokens at all, is a fault."""
    faults: list[str] = []
    differences: list[float] = []
    diverged: dict[int, int] = {}
    if len(one) != len(two):
        faults.append(f"{len(one)} answers against {len(two)}")
    for number, (left, right) in enumerate(zip(one, two, strict=False)):
        tokens = (left.get("tokens") or [], right.get("tokens") or [])
        logprobs = (left.get("logprobs") or [], right.get("logprobs") or [])
        if not tokens[0] or not tokens[1]:
            faults.append(f"prompt {number} has no token ids")
            continue
        if any(len(logprobs[side]) != len(tokens[side]) for side in (0, 1)):
            faults.append(f"prompt {number} has not a logprob for each token")
            continue
        count = min(len(tokens[0]), len(tokens[1]))
        at = next((n for n in range(count) if tokens[0][n] != tokens[1][n]), None)
        if at is None and len(tokens[0]) != len(tokens[1]):
            at = count
        if at is not None:
            diverged[number] = at
        for a, b in zip(logprobs[0][:at], logprobs[1][:at], strict=False):
            if isinstance(a, (int, float)) and isinstance(b, (int, float)):
                differences.append(abs(a - b))
            elif a != b:
                faults.append(f"prompt {number} has the logprobs {a} and {b}")
            else:
                differences.append(0.0)
    largest = max(differences, default=0.0)
    mean = sum(differences) / len(differences) if differences else 0.0
    return Distance(len(differences), largest, mean, diverged, tuple(faults))


def jobs(request: SmokeRequest) -> tuple[StepJob, ...]:
    """The base twice, so that its own spread is measured; and the patched image in the same arms as the engine step."""
    if command_of(request) is None or request.base is None:
        return ()
    names = [one.env for one in switches_of(request)]
    bases = [{"name": name, "env": {}, "unset": names} for name in (BASE, BASE_AGAIN)]
    return (
        engine_job(request, STEP, "base", bases, base=True),
        engine_job(request, STEP, "patched", arms_of(request)),
    )


def judge(request: SmokeRequest, outcomes: Mapping[str, Outcome]) -> StepResult:
    asked = jobs(request)
    if not asked:
        why = not_declared(request)
        if command_of(request) is not None:
            why = part("base", Verdict.NOT_RUN, "the unpatched base is not at hand to compare with")
        return result_of(request, STEP, asked, {}, [why])
    parts: list[Part] = []
    arms: dict[str, Mapping[str, Any]] = {}
    for one in asked:
        found = read_inside(request, one, outcomes[one.key])
        parts += found.faults
        arms.update({arm["name"]: arm for arm in found.answer.get("arms", ())})
    if parts:
        return result_of(request, STEP, asked, outcomes, parts)
    wanted = [BASE, BASE_AGAIN, *(arm["name"] for arm in arms_of(request))]
    for name in wanted:
        if name not in arms:
            parts.append(part(name, Verdict.INVALID, "the program ended before this arm"))
        else:
            parts += [one for one in served(arms[name], request) if one.judgement.verdict is not Verdict.PASSED]
    if parts:
        return result_of(request, STEP, asked, outcomes, parts)
    answers = {name: arms[name]["answers"] for name in wanted}
    spread = distance(answers[BASE], answers[BASE_AGAIN])
    facts = {"spread": spread.to_json(), "prompts": len(answers[BASE])}
    parts += [_unproven_base(request, arms)]
    if spread.faults:
        parts.append(part("base", Verdict.INVALID, f"base against itself: {spread.words}"))
        return result_of(request, STEP, asked, outcomes, parts, facts=facts)
    parts.append(part("base", Verdict.PASSED, f"against itself {spread.words}"))
    found_distances = {name: _nearest(answers[name], answers) for name in wanted if name not in (BASE, BASE_AGAIN)}
    facts |= {name: one.to_json() for name, one in found_distances.items()}
    parts += _verdicts(request, found_distances, spread)
    return result_of(request, STEP, asked, outcomes, parts, facts=facts)


def _nearest(answers: Any, known: Mapping[str, Any]) -> Distance:
    """The distance from the nearer of the base's two runs."""
    both = [distance(known[name], answers) for name in (BASE, BASE_AGAIN)]
    return min(both, key=lambda one: (len(one.faults), len(one.diverged), one.largest))


def _unproven_base(request: SmokeRequest, arms: Mapping[str, Any]) -> Part:
    """No overlay's proof shows in the base."""
    for overlay in request.overlays:
        for name in (BASE, BASE_AGAIN):
            proof = overlay.proof
            if proof is not None and shows(arms[name], proof.log, proof.counter):
                return part(
                    "base shows no proof", Verdict.INVALID, f"the unpatched base shows {proof.log or proof.counter!r}"
                )
    return part("base shows no proof", Verdict.PASSED)


def _verdicts(request: SmokeRequest, found: Mapping[str, Distance], spread: Distance) -> Iterator[Part]:
    claims = {overlay.numerics for overlay in request.overlays}
    exact = claims == {"bitwise"}
    for name, one in found.items():
        if one.faults:
            yield part(name, Verdict.INVALID, one.words)
        elif one.zero or one.within(spread):
            within = "" if one.zero else ", within the base's own spread"
            yield part(name, Verdict.PASSED, one.words + within)
        elif name in (OFF, OFF_AGAIN):
            yield part(
                name, Verdict.FAILED, f"with the switch off it is not the base: {one.words}; base: {spread.words}"
            )
        elif exact:
            yield part(name, Verdict.FAILED, f"its overlays claim to be bitwise: {one.words}; base: {spread.words}")
        elif name == ON or claims <= {"reordered", "lower-precision", "bitwise"}:
            claimed = ", as its overlays claim other numerics" if claims & {"reordered", "lower-precision"} else ""
            yield part(name, Verdict.PASSED, f"reported{claimed}: {one.words}")
        else:
            assert name == PATCHED
            why = "nothing says whether that may be (numerics of the overlay)"
            yield part(name, Verdict.NOT_PROVEN, f"{one.words}; {why}")
