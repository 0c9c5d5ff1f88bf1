"""Statistics of paired binary outcomes: two arms answered the same questions, and each answer is right or wrong.

Differences are fractions in -1…1, candidate minus reference: positive is better.  Nothing here needs more than Python's
own library; the normal quantile is `statistics.NormalDist` (Wichura's AS 241, good to 1e-16).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import comb, exp, lgamma, log, log1p, sqrt
from statistics import NormalDist

CONFIDENCE = 0.95
BOOTSTRAP_DRAWS = 10_000
BOOTSTRAP_SEED = 1234
_STEPS = 200
"""Halvings of an interval of length 2: more than a double can tell apart, so the search ends at neighbouring numbers."""


@dataclass(frozen=True, slots=True)
class PairedTable:
    """Counts of questions: right in both arms, in the candidate only, in the reference only, in neither."""

    both: int
    candidate_only: int
    reference_only: int
    neither: int

    def __post_init__(self) -> None:
        if min(self.both, self.candidate_only, self.reference_only, self.neither) < 0:
            raise ValueError("counts are not negative")
        if self.total == 0:
            raise ValueError("a table of no question at all")

    @property
    def total(self) -> int:
        return self.both + self.candidate_only + self.reference_only + self.neither

    @property
    def discordant(self) -> int:
        """Questions that one arm got right and the other wrong."""
        return self.candidate_only + self.reference_only

    @property
    def difference(self) -> float:
        """Accuracy of the candidate minus that of the reference."""
        return (self.candidate_only - self.reference_only) / self.total


@dataclass(frozen=True, slots=True)
class Interval:
    """Limits, as fractions, at a two-sided `confidence`."""

    lower: float
    upper: float
    confidence: float


def normal_quantile(probability: float) -> float:
    """The standard normal quantile, 0 < probability < 1."""
    return NormalDist().inv_cdf(probability)


def tango_statistic(table: PairedTable, difference: float) -> float:
    """Tango's score statistic for the hypothesis that the true difference is `difference`, -1 < difference < 1.

    Tango, Statistics in Medicine 17 (1998) 891-908: the standardised distance between observed and supposed difference,
    its variance from the maximum-likelihood estimate of the reference-only probability under the hypothesis.  Standard
    normal there; falls as `difference` grows.
    """
    distance, deviation = _distance_and_deviation(table.candidate_only, table.reference_only, table.total, difference)
    if deviation == 0:
        return 0.0 if distance == 0 else (float("inf") if distance > 0 else float("-inf"))
    return distance / deviation


def _distance_and_deviation(gained: int, lost: int, total: int, difference: float) -> tuple[float, float]:
    a = 2.0 * total
    b = (2 * total - gained + lost) * difference - gained - lost
    c = -lost * difference * (1 - difference)
    root = sqrt(max(0.0, b * b - 4 * a * c))
    # the larger root of a q² + b q + c, in the form that does not subtract two near numbers
    if b > 0:
        q = -2 * c / (b + root)
    else:
        q = (root - b) / (2 * a)
    variance = total * (2 * q + difference * (1 - difference))
    return gained - lost - total * difference, sqrt(max(0.0, variance))


def tango_bound(table: PairedTable, confidence: float = CONFIDENCE, *, upper: bool = False) -> float:
    """The one-sided lower (or upper) limit of the difference at `confidence`, 0.5 < confidence < 1: the difference at
    which Tango's statistic equals the normal quantile.  Found by halving, to the last bit of a double."""
    z = _critical(confidence)
    gained, lost, total = table.candidate_only, table.reference_only, table.total
    low, high = (table.difference, 1.0) if upper else (-1.0, table.difference)
    for _ in range(_STEPS):
        middle = low + (high - low) / 2
        if middle in (low, high):
            break
        distance, deviation = _distance_and_deviation(gained, lost, total, middle)
        if distance > (-z if upper else z) * deviation:
            low = middle
        else:
            high = middle
    return high if upper else low


def _critical(confidence: float) -> float:
    if not 0.5 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} is not between 0.5 and 1")
    return normal_quantile(confidence)


def tango_interval(table: PairedTable, confidence: float = CONFIDENCE) -> Interval:
    """Tango's score interval of the difference, two-sided."""
    one_sided = (1 + confidence) / 2
    return Interval(tango_bound(table, one_sided), tango_bound(table, one_sided, upper=True), confidence)


def mcnemar_exact(table: PairedTable) -> float:
    """The two-sided p of McNemar's exact test: the discordant pairs against a fair coin.  No discordant pair: 1."""
    pairs, fewer = table.discordant, min(table.candidate_only, table.reference_only)
    tail = sum(comb(pairs, k) for k in range(fewer + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**pairs)))


class SplitMix64:
    """The random stream of the bootstrap, the same on every Python: the state grows by 0x9E3779B97F4A7C15 a draw and is
    mixed by two multiplications (Steele, Lea, Flood 2014); a draw is the upper 53 bits over 2^53, in 0 ≤ u < 1."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def uniform(self) -> float:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / 2**53


_MASK = (1 << 64) - 1


def binomial_probabilities(total: int, probability: float) -> list[float]:
    """P(X = k) for k in 0…total."""
    if probability <= 0:
        return [1.0] + [0.0] * total
    if probability >= 1:
        return [0.0] * total + [1.0]
    ahead = lgamma(total + 1)
    on, off = log(probability), log1p(-probability)
    return [exp(ahead - lgamma(k + 1) - lgamma(total - k + 1) + k * on + (total - k) * off) for k in range(total + 1)]


def _inverse(total: int, probability: float) -> Callable[[float], int]:
    cumulated, sum_ = [], 0.0
    for mass in binomial_probabilities(total, probability):
        sum_ += mass
        cumulated.append(sum_)
    # rounding leaves the last sum a little off 1
    cumulated[-1] = 1.0
    return lambda u: bisect_left(cumulated, u)


def bootstrap_interval(
    table: PairedTable,
    confidence: float = CONFIDENCE,
    draws: int = BOOTSTRAP_DRAWS,
    seed: int = BOOTSTRAP_SEED,
) -> Interval:
    """The percentile interval of the difference when questions are drawn again with replacement, `draws` times.

    Resampling pairs makes the two discordant counts multinomial; they are drawn as such: candidate-only from a binomial
    of all questions, then reference-only from a binomial of the rest, by inversion of one uniform each of SplitMix64.
    Limits are the order statistics floor(draws·α/2) and ceil(draws·(1-α/2)) - 1, counted from 0.
    """
    total, gained, lost = table.total, table.candidate_only, table.reference_only
    stream = SplitMix64(seed)
    first = _inverse(total, gained / total)
    rest: dict[int, Callable[[float], int]] = {}
    share = lost / (total - gained) if gained < total else 0.0
    found = []
    for _ in range(draws):
        up = first(stream.uniform())
        if up not in rest:
            rest[up] = _inverse(total - up, share)
        found.append(up - rest[up](stream.uniform()))
    found.sort()
    tail = (1 - confidence) / 2
    low = int(draws * tail)
    return Interval(found[low] / total, found[draws - 1 - low] / total, confidence)
