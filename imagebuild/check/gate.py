"""The accuracy gate of a target: every arm's run counts, both filters reach the threshold, and the paired comparisons of
the arms stay within the margin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any

from imagebuild.check import protocol
from imagebuild.check.compare import DEFAULT_LIMITS, AnswerLimits, Comparison, compare_runs, run_faults
from imagebuild.check.results import FILTERS, Run
from imagebuild.check.verdicts import Judgement, Verdict, worst
from imagebuild.content.strict_yaml import no_entries

AGAIN = "base-again"
ALIKE = ("model", "chat", "concurrency", "max_tokens", "shots", "lm_eval")
"""Settings of a run in which the arms of one gate may not differ."""


@dataclass(frozen=True, slots=True)
class Demands:
    """What the target asks for: `threshold` a fraction, `margin` in points, `arms` that must have run; `needs_proof`:
    the overlays have a switch, so an `on` run must prove that the switched branch ran; `dataset` the digest of the
    questions, `shots` that of the training questions from which the shots are drawn."""

    threshold: Decimal
    margin: Decimal
    arms: tuple[str, ...]
    limits: AnswerLimits = DEFAULT_LIMITS
    needs_proof: bool = True
    dataset: str = str(protocol.TEST_DIGEST)
    shots: str = str(protocol.TRAIN_DIGEST)

    def declared(self) -> dict[str, str]:
        """What a run writes down before its first question, so that nothing is loosened once its answers are known."""
        return {
            "threshold": str(self.threshold),
            "margin": str(self.margin),
            "max_null": str(self.limits.null),
            "max_truncated": str(self.limits.truncated),
        }


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One line of the gate."""

    name: str
    judgement: Judgement

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **self.judgement.to_json()}


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate's answer; `churn` compares base with base again where that ran, and judges nothing.  `acceptance` is the mean
    length of accepted drafts by arm, in tokens a step, where the engine told it."""

    target: str
    checks: tuple[GateCheck, ...]
    comparisons: Mapping[str, Comparison]
    churn: Comparison | None
    acceptance: Mapping[str, float] = field(default_factory=no_entries)

    @property
    def verdict(self) -> Verdict:
        return worst(check.judgement.verdict for check in self.checks)

    @property
    def reason(self) -> str:
        """The checks that made the verdict."""
        return "; ".join(
            f"{check.name}: {check.judgement.reason}"
            for check in self.checks
            if check.judgement.verdict is self.verdict
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "gsm8k-gate",
            "schemaVersion": 1,
            "target": self.target,
            "verdict": str(self.verdict),
            "reason": self.reason,
            "checks": [check.to_json() for check in self.checks],
            "comparisons": {name: one.to_json() for name, one in self.comparisons.items()},
            "churn": self.churn.to_json() if self.churn is not None else None,
            "mean_acceptance_length": {
                arm: {"tokens": length, "change_against_base": self.acceptance_change(arm)}
                for arm, length in self.acceptance.items()
            },
        }

    def acceptance_change(self, arm: str) -> float | None:
        """How much longer or shorter than base's, in tokens; None where either is not known."""
        if arm not in self.acceptance or "base" not in self.acceptance:
            return None
        return round(self.acceptance[arm] - self.acceptance["base"], 9)


def decide(target: str, runs: Mapping[str, Run], demands: Demands) -> Gate:
    """Judges the runs of a target by arm.  An arm without a run is `not-run`, and is never taken as good."""
    checks: list[GateCheck] = []
    for arm in demands.arms:
        run = runs.get(arm)
        if run is None:
            checks.append(GateCheck(arm, Judgement(Verdict.NOT_RUN, "no run of this arm")))
        else:
            checks += _of_arm(arm, run, demands)
    checks += _identities(runs, demands.arms)
    checks += _asked_alike({arm: runs[arm] for arm in demands.arms if arm in runs})
    comparisons = {
        f"{candidate} against {reference}": compare_runs(
            runs[candidate], runs[reference], demands.margin, demands.limits
        )
        for candidate, reference in (("off", "base"), ("on", "base"), ("on", "off"))
        if candidate in demands.arms and reference in demands.arms and candidate in runs and reference in runs
    }
    checks += [GateCheck(name, found.judgement) for name, found in comparisons.items()]
    churn = None
    if "base" in runs and AGAIN in runs:
        churn = compare_runs(runs[AGAIN], runs["base"], demands.margin, demands.limits)
    lengths = {arm: run.meta.get("mean_acceptance_length") for arm, run in runs.items()}
    acceptance = {arm: float(length) for arm, length in lengths.items() if isinstance(length, int | float)}
    return Gate(target, tuple(checks), comparisons, churn, acceptance)


def _of_arm(arm: str, run: Run, demands: Demands) -> Iterator[GateCheck]:
    faults = [*run_faults(run, arm, demands.limits), *_other_protocol(arm, run, demands), *_loosened(arm, run, demands)]
    if None in run.counts.to_json().values():
        faults.append(f"{arm}: nobody counted null, empty, cut and failed answers")
    if arm == "on" and demands.needs_proof and not run.meta.get("switch_proof"):
        faults.append("on: nothing in this run proves that the switched branch ran")
    if faults:
        yield GateCheck(f"{arm} counts", Judgement(Verdict.INVALID, "; ".join(faults)))
    for name in FILTERS:
        total = len(run.samples.get(name, {}))
        if not total:
            continue
        right = run.right(name)
        good = Decimal(right) >= demands.threshold * total
        words = f"{right}/{total} = {right / total:.5f}, threshold {demands.threshold}"
        yield GateCheck(f"{arm} {name}", Judgement(Verdict.PASSED if good else Verdict.FAILED, words))


def _other_protocol(arm: str, run: Run, demands: Demands) -> Iterator[str]:
    settings = run.meta.get("settings")
    data = settings.get("dataset") if isinstance(settings, dict) else None
    if not isinstance(data, dict):
        yield f"{arm}: meta_env.json does not say which questions were asked"
    elif data.get("test") != demands.dataset:
        yield f"{arm}: other questions than the pinned ones ({data.get('test')})"
    elif data.get("train") != demands.shots:
        yield f"{arm}: shots from other training questions than the pinned ones ({data.get('train')})"
    else:
        for name in FILTERS:
            if len(run.samples.get(name, {})) != data.get("questions"):
                yield f"{arm}: {len(run.samples.get(name, {}))} of {data.get('questions')} questions under {name}"
    if isinstance(settings, dict) and settings.get("max_tokens_asked") is not None:
        yield f"{arm}: answers were cut at {settings['max_tokens_asked']} tokens, which is not the protocol's length"


def _loosened(arm: str, run: Run, demands: Demands) -> Iterator[str]:
    """What the target asks for now, and asked for more strictly when the run was begun."""
    settings = run.meta.get("settings")
    before = settings.get("declared") if isinstance(settings, dict) else None
    for key, now in demands.declared().items():
        try:
            then = Decimal(str(before[key])) if isinstance(before, dict) and key in before else None
        except ArithmeticError:
            then = None
        if then is not None and (Decimal(now) < then if key == "threshold" else Decimal(now) > then):
            yield f"{arm}: {key} was declared as {then} before the run, and is {now} now"


def _identities(runs: Mapping[str, Run], arms: tuple[str, ...]) -> Iterator[GateCheck]:
    """Which image each arm served: told for each, one for off and on, another for base."""
    digests = {arm: runs[arm].meta.get("image_digest") for arm in arms if arm in runs}
    silent = [arm for arm, digest in digests.items() if not digest]
    if silent:
        yield GateCheck(
            "images", Judgement(Verdict.NOT_PROVEN, f"nothing says which image was served for {', '.join(silent)}")
        )
        return
    patched = [digests[arm] for arm in ("off", "on") if arm in digests]
    if any(one != two for one, two in pairwise(patched)):
        yield GateCheck("images", Judgement(Verdict.INVALID, "off and on served different images"))
    elif digests.get("base") in patched:
        yield GateCheck("images", Judgement(Verdict.INVALID, "base served the patched image"))


def _asked_alike(runs: Mapping[str, Run]) -> Iterator[GateCheck]:
    """Whether the arms differ in what they serve and in nothing else that their runs tell."""
    settings = {arm: run.meta.get("settings") for arm, run in runs.items()}
    for key in ALIKE:
        found = {arm: one.get(key) for arm, one in settings.items() if isinstance(one, dict)}
        if any(one != two for one, two in pairwise(found.values())):
            words = ", ".join(f"{arm} {value}" for arm, value in found.items())
            yield GateCheck("settings", Judgement(Verdict.INVALID, f"the arms were asked differently: {key}: {words}"))


def gate_text(gate: Gate) -> str:
    """The gate in words; the last line is the verdict."""
    width = max(len(check.name) for check in gate.checks)
    lines = [f"{check.name:<{width}}  {check.judgement.verdict}: {check.judgement.reason}" for check in gate.checks]
    if gate.churn is not None:
        lines += [
            f"churn of the base itself, {one.filter}: {one.changed_answers} answers, {one.table.discordant} discordant pairs"
            for one in gate.churn.filters
        ]
    for arm, length in gate.acceptance.items():
        change = gate.acceptance_change(arm)
        beside = f" ({change:+.3f} against base)" if change is not None and arm != "base" else ""
        lines.append(f"mean acceptance length, {arm}: {length:.3f} tokens a step{beside}")
    return "\n".join([*lines, f"{gate.verdict}: {gate.target}: {gate.reason}"])
