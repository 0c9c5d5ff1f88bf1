"""How often a pair of runs would settle a margin, if the arms were in truth equally good."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuild.check.paired import CONFIDENCE, PairedTable, binomial_probabilities, normal_quantile, tango_statistic

_NEGLIGIBLE = 1e-12
MARGINS = (0.005, 0.01, 0.02)
DISCORDANCES = (0.01, 0.02, 0.05, 0.10)


@dataclass(frozen=True, slots=True)
class Power:
    """`power`: the probability of the verdict non-inferior at `margin` (a fraction), for `questions` questions of which
    a share `discordance` comes out differently in two runs of equally good arms."""

    questions: int
    discordance: float
    margin: float
    power: float

    def to_json(self) -> dict[str, Any]:
        return {
            "questions": self.questions,
            "discordance": self.discordance,
            "margin_points": round(100 * self.margin, 6),
            "power": round(self.power, 6),
        }


def non_inferiority_power(questions: int, discordance: float, margin: float, confidence: float = CONFIDENCE) -> float:
    """The exact power of the gate when the true difference is 0: the sum over every table, not an approximation.

    The number of discordant pairs is binomial(questions, discordance), and each goes either way with equal chance.
    """
    z = normal_quantile(confidence)
    total = 0.0
    for pairs, mass in enumerate(binomial_probabilities(questions, discordance)):
        if mass < _NEGLIGIBLE:
            continue
        total += mass * _at_least_half_coin(pairs, _fewest_gained(questions, pairs, margin, z))
    return min(1.0, total)


def _fewest_gained(questions: int, pairs: int, margin: float, z: float) -> int:
    """The least number of candidate-only pairs, of `pairs`, with which the gate says non-inferior; pairs + 1 for none."""
    low, high = 0, pairs + 1
    while low < high:
        gained = (low + high) // 2
        table = PairedTable(questions - pairs, gained, pairs - gained, 0)
        if tango_statistic(table, -margin) > z:
            high = gained
        else:
            low = gained + 1
    return low


def _at_least_half_coin(pairs: int, least: int) -> float:
    """P(X ≥ least) for X binomial(pairs, 1/2)."""
    if least <= 0:
        return 1.0
    if least > pairs:
        return 0.0
    return sum(binomial_probabilities(pairs, 0.5)[least:])


def power_table(
    questions: int, discordances: Iterable[float] = DISCORDANCES, margins: Sequence[float] = MARGINS
) -> tuple[Power, ...]:
    return tuple(
        Power(questions, discordance, margin, non_inferiority_power(questions, discordance, margin))
        for discordance in discordances
        for margin in margins
    )
