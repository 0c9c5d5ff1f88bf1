"""Statistics of two published figures, x of n right: all that is left where no question's answer is known.

Two runs over the same questions are paired, and an unpaired test throws that away; it stands here for figures alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, sqrt

from imagebuild.check.paired import CONFIDENCE, Interval, normal_quantile


@dataclass(frozen=True, slots=True)
class Proportion:
    """`right` of `total` questions."""

    right: int
    total: int

    def __post_init__(self) -> None:
        if self.total < 1 or not 0 <= self.right <= self.total:
            raise ValueError(f"{self.right} of {self.total} is no proportion")

    @property
    def value(self) -> float:
        return self.right / self.total

    @property
    def standard_error(self) -> float:
        """Of the mean of zeros and ones with the sample's own variance (divisor total - 1), as lm-eval prints it; 0 for
        one question."""
        if self.total == 1:
            return 0.0
        return sqrt(self.value * (1 - self.value) / (self.total - 1))


def wilson_interval(proportion: Proportion, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of one proportion."""
    z = normal_quantile((1 + confidence) / 2)
    n, p = proportion.total, proportion.value
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(max(0.0, centre - half), min(1.0, centre + half), confidence)


@dataclass(frozen=True, slots=True)
class UnpairedDifference:
    """Candidate minus reference of two independent samples: `z` with the pooled variance, its two-sided `p`, the
    interval of Wald (unpooled) and that of Newcombe (1998, method 10: from Wilson's intervals)."""

    difference: float
    z: float
    p: float
    wald: Interval
    newcombe: Interval


def unpaired_difference(
    candidate: Proportion, reference: Proportion, confidence: float = CONFIDENCE
) -> UnpairedDifference:
    """Two figures compared.  Equal figures of all or nothing right give z = 0, p = 1."""
    one, two = candidate, reference
    difference = one.value - two.value
    pooled = (one.right + two.right) / (one.total + two.total)
    error = sqrt(pooled * (1 - pooled) * (1 / one.total + 1 / two.total))
    z = difference / error if error > 0 else 0.0
    half = normal_quantile((1 + confidence) / 2) * sqrt(
        one.value * (1 - one.value) / one.total + two.value * (1 - two.value) / two.total
    )
    first, second = wilson_interval(one, confidence), wilson_interval(two, confidence)
    newcombe = Interval(
        difference - sqrt((one.value - first.lower) ** 2 + (second.upper - two.value) ** 2),
        difference + sqrt((first.upper - one.value) ** 2 + (two.value - second.lower) ** 2),
        confidence,
    )
    return UnpairedDifference(
        difference, z, erfc(abs(z) / sqrt(2)), Interval(difference - half, difference + half, confidence), newcombe
    )
