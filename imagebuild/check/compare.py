"""Two runs over the same questions: are they comparable, and is the candidate as good as the reference to a margin?

Validity comes first: a run that does not count, or prompts that differ, give `invalid`, whatever the figures.  The gate
is paired non-inferiority by Tango's one-sided bound at a margin declared beforehand; "not significantly different" is
never taken for "equal".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from imagebuild.check.paired import (
    BOOTSTRAP_DRAWS,
    BOOTSTRAP_SEED,
    CONFIDENCE,
    Interval,
    PairedTable,
    bootstrap_interval,
    mcnemar_exact,
    tango_bound,
    tango_interval,
)
from imagebuild.check.power import Power, power_table
from imagebuild.check.results import FILTERS, Run, Sample
from imagebuild.check.unpaired import Proportion, UnpairedDifference, unpaired_difference
from imagebuild.check.verdicts import Judgement, Verdict, worst
from imagebuild.errors import InputError

DEFAULT_MARGIN = Decimal("1.0")
_NAMED = 5
"""So many questions are named in a reason; the rest is a number."""


@dataclass(frozen=True, slots=True)
class FilterComparison:
    """One filter.  `changed_answers`: questions whose extracted answer differs (churn), right or wrong;
    `changed_responses`: whose whole text differs.  `lower` and `upper` are the one-sided bounds of the gate."""

    filter: str
    table: PairedTable
    changed_answers: int
    changed_responses: int
    p: float
    interval: Interval
    bootstrap: Interval
    lower: float
    upper: float
    judgement: Judgement

    def to_json(self) -> dict[str, Any]:
        table = self.table
        return {
            "filter": self.filter,
            "questions": table.total,
            "candidate": _figure(Proportion(table.both + table.candidate_only, table.total)),
            "reference": _figure(Proportion(table.both + table.reference_only, table.total)),
            "difference_points": _points(table.difference),
            "right_to_wrong": table.reference_only,
            "wrong_to_right": table.candidate_only,
            "changed_answers": self.changed_answers,
            "changed_responses": self.changed_responses,
            "mcnemar_exact_p": self.p,
            "tango_interval_points": _limits(self.interval),
            "bootstrap_interval_points": _limits(self.bootstrap),
            "bootstrap": {"draws": BOOTSTRAP_DRAWS, "seed": BOOTSTRAP_SEED, "stream": "splitmix64"},
            "one_sided_lower_points": _points(self.lower),
            "one_sided_upper_points": _points(self.upper),
            **self.judgement.to_json(),
        }


def _points(fraction: float) -> float:
    return round(100 * fraction, 9)


def _limits(interval: Interval) -> list[float]:
    return [_points(interval.lower), _points(interval.upper)]


def _figure(proportion: Proportion) -> dict[str, Any]:
    return {
        "right": proportion.right,
        "accuracy": round(proportion.value, 9),
        "standard_error": round(proportion.standard_error, 9),
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole answer; `filters` is empty where the runs cannot be paired.  `margin` in points."""

    candidate: Run
    reference: Run
    margin: Decimal
    filters: tuple[FilterComparison, ...]
    power: tuple[Power, ...]
    judgement: Judgement

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "gsm8k-comparison",
            "schemaVersion": 1,
            **self.judgement.to_json(),
            "margin_points": float(self.margin),
            "confidence": CONFIDENCE,
            "candidate": self.candidate.describe(),
            "reference": self.reference.describe(),
            "filters": [one.to_json() for one in self.filters],
            "power": [row.to_json() for row in self.power],
        }


def parse_margin(text: str) -> Decimal:
    """A margin in points.  Raises InputError `check.bad-margin`."""
    try:
        margin = Decimal(text)
    except ArithmeticError:
        margin = Decimal(0)
    if not margin.is_finite() or not 0 < margin < 100:
        raise InputError(
            "check.bad-margin", "the margin is no number of points", expected="above 0, below 100", found=text
        )
    return margin


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """How many answers may be null or empty, and how many cut off at the longest length, before a run is void."""

    null: int = 0
    truncated: int = 13


DEFAULT_LIMITS = AnswerLimits()


def run_faults(run: Run, name: str, limits: AnswerLimits = DEFAULT_LIMITS) -> Iterator[str]:
    """Why a run does not count, in words; nothing where it does."""
    for fault in run.faults:
        yield f"{name}: {fault}"
    counts = run.counts
    lost = max((counts.null or 0) + (counts.empty or 0), 0)
    if lost > limits.null:
        yield f"{name}: {lost} null or empty answers, at most {limits.null} allowed"
    if (counts.truncated or 0) > limits.truncated:
        yield f"{name}: {counts.truncated} answers cut off at the longest length, at most {limits.truncated} allowed"
    if counts.failed:
        yield f"{name}: {counts.failed} requests were never answered"
    if str(run.meta.get("acceptance", "real")) != "real":
        yield f"{name}: speculative decoding ran with {run.meta['acceptance']} acceptance, not with real one"
    if run.meta.get("eval_exit_code") not in (None, 0):
        yield f"{name}: the evaluation ended with exit code {run.meta['eval_exit_code']}"


def pairing_faults(candidate: Run, reference: Run) -> Iterator[str]:
    """Why two runs cannot be paired: other questions, or another document, prompt or target under the same number."""
    if candidate.folder.resolve() == reference.folder.resolve():
        yield "candidate and reference are the same run"
    for name in FILTERS:
        one, two = candidate.samples.get(name, {}), reference.samples.get(name, {})
        for label, extra in (("candidate", one.keys() - two.keys()), ("reference", two.keys() - one.keys())):
            if extra:
                yield f"{len(extra)} questions under {name} in the {label} only ({_some(extra)})"
        for field, word in (("doc_hash", "documents"), ("prompt_hash", "prompts"), ("target_hash", "targets")):
            unequal = [
                number
                for number in one.keys() & two.keys()
                if getattr(one[number], field) != getattr(two[number], field)
            ]
            if unequal:
                yield f"unequal {word} under {name} for {len(unequal)} questions ({_some(unequal)})"


def _some(numbers: Any) -> str:
    shown = sorted(numbers)
    return ", ".join(map(str, shown[:_NAMED])) + (", …" if len(shown) > _NAMED else "")


def paired_table(one: Mapping[int, Sample], two: Mapping[int, Sample]) -> PairedTable:
    """The table of the questions that both have; the first is the candidate."""
    counts = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for number in one.keys() & two.keys():
        counts[one[number].correct, two[number].correct] += 1
    return PairedTable(counts[True, True], counts[True, False], counts[False, True], counts[False, False])


def judge(table: PairedTable, margin: Decimal) -> tuple[float, float, Judgement]:
    """The one-sided bounds of the difference, and what they say of the margin (in points)."""
    lower, upper = tango_bound(table), tango_bound(table, upper=True)
    limit = -float(margin) / 100
    level = f"one-sided {CONFIDENCE:.0%}"
    if lower > limit:
        verdict, reason = (
            Verdict.NON_INFERIOR,
            (f"at worst {100 * lower:+.2f} points ({level}), within the margin of {margin} points"),
        )
    elif upper < limit:
        verdict, reason = (
            Verdict.INFERIOR,
            (f"at best {100 * upper:+.2f} points ({level}), beyond the margin of {margin} points"),
        )
    else:
        verdict, reason = (
            Verdict.INCONCLUSIVE,
            (
                f"between {100 * lower:+.2f} and {100 * upper:+.2f} points ({level} each): the margin of {margin} points "
                f"lies between, {table.total} questions with {table.discordant} discordant pairs do not settle it"
            ),
        )
    return lower, upper, Judgement(verdict, reason)


def compare_filter(
    name: str, one: Mapping[int, Sample], two: Mapping[int, Sample], margin: Decimal
) -> FilterComparison:
    table = paired_table(one, two)
    lower, upper, judgement = judge(table, margin)
    return FilterComparison(
        name,
        table,
        sum(one[number].answer != two[number].answer for number in one),
        sum(one[number].response != two[number].response for number in one),
        mcnemar_exact(table),
        tango_interval(table),
        bootstrap_interval(table),
        lower,
        upper,
        judgement,
    )


def compare_runs(
    candidate: Run, reference: Run, margin: Decimal = DEFAULT_MARGIN, limits: AnswerLimits = DEFAULT_LIMITS
) -> Comparison:
    """The comparison with its verdict: that of the worse filter, `invalid` where either run does not count."""
    unpaired = list(pairing_faults(candidate, reference))
    faults = [*run_faults(candidate, "candidate", limits), *run_faults(reference, "reference", limits), *unpaired]
    filters: tuple[FilterComparison, ...] = ()
    if not unpaired and all(run.samples.get(name) for name in FILTERS for run in (candidate, reference)):
        filters = tuple(
            compare_filter(name, candidate.samples[name], reference.samples[name], margin) for name in FILTERS
        )
    if faults:
        judgement = Judgement(Verdict.INVALID, "; ".join(faults))
    else:
        verdict = worst(one.judgement.verdict for one in filters)
        reasons = [f"{one.filter}: {one.judgement.reason}" for one in filters if one.judgement.verdict is verdict]
        judgement = Judgement(verdict, "; ".join(reasons))
    questions = max(candidate.questions, reference.questions, 1)
    return Comparison(candidate, reference, margin, filters, power_table(questions), judgement)


@dataclass(frozen=True, slots=True)
class UnpairedComparison:
    """Published figures alone.  Its verdict is always `not-proven`: no question is known, so neither pairing nor equal
    prompts can be shown."""

    candidate: Proportion
    reference: Proportion
    found: UnpairedDifference

    @property
    def judgement(self) -> Judgement:
        return Judgement(
            Verdict.NOT_PROVEN,
            "figures alone: nothing shows that questions and prompts were the same, and an unpaired test settles less "
            "than a paired one; no significant difference is not equality",
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "gsm8k-comparison",
            "schemaVersion": 1,
            "paired": False,
            **self.judgement.to_json(),
            "candidate": {**_figure(self.candidate), "questions": self.candidate.total},
            "reference": {**_figure(self.reference), "questions": self.reference.total},
            "difference_points": _points(self.found.difference),
            "z": self.found.z,
            "p": self.found.p,
            "wald_interval_points": _limits(self.found.wald),
            "newcombe_interval_points": _limits(self.found.newcombe),
        }


def compare_figures(candidate: str, reference: str) -> UnpairedComparison:
    """Two figures `RIGHT/TOTAL`.  Raises InputError `check.bad-figure`."""
    one, two = parse_figure(candidate), parse_figure(reference)
    return UnpairedComparison(one, two, unpaired_difference(one, two))


def parse_figure(text: str) -> Proportion:
    """`1295/1319`.  Raises InputError `check.bad-figure`."""
    right, _, total = text.partition("/")
    try:
        if not (right.isascii() and right.isdigit() and total.isascii() and total.isdigit()):
            raise ValueError(text)
        return Proportion(int(right), int(total))
    except ValueError as error:
        raise InputError(
            "check.bad-figure", "no figure of right answers", expected="RIGHT/TOTAL, as 1295/1319", found=text
        ) from error
