"""Paired statistics against published examples, scipy and slow obvious models."""

import math
import random

import pytest

from imagebuild.check.paired import (
    PairedTable,
    SplitMix64,
    binomial_probabilities,
    bootstrap_interval,
    mcnemar_exact,
    tango_bound,
    tango_interval,
    tango_statistic,
)
from imagebuild.check.power import non_inferiority_power, power_table


def random_tables(count: int, seed: int = 7) -> list[PairedTable]:
    draw = random.Random(seed)
    tables = [PairedTable(0, 0, 0, 5), PairedTable(0, 5, 0, 0), PairedTable(0, 0, 5, 0), PairedTable(3, 0, 1, 0)]
    while len(tables) < count:
        big = draw.choice([2, 20, 300, 1500])
        cells = [
            draw.randint(0, big),
            *(draw.randint(0, draw.choice([1, 8, 40])) for _ in range(2)),
            draw.randint(0, 30),
        ]
        if sum(cells):
            tables.append(PairedTable(*cells))
    return tables


def test_tango_1998_contact_lens_example() -> None:
    """Cross-over trial of two disinfection systems, 44 pairs (43, 0, 1, 0): Z = 1.709, p = 0.044 at a margin of 0.1."""
    table = PairedTable(43, 0, 1, 0)
    z = tango_statistic(table, -0.1)
    assert round(z, 3) == 1.709
    assert round(math.erfc(z / math.sqrt(2)) / 2, 3) == 0.044


def test_airway_reactivity_example() -> None:
    """21 children before and after transplantation, (1, 1, 7, 12): Fagerland, Lydersen, Laake (2014) give Tango's
    interval as (-0.517, -0.026)."""
    interval = tango_interval(PairedTable(1, 1, 7, 12))
    assert (round(interval.lower, 3), round(interval.upper, 3)) == (-0.517, -0.026)


def restricted_likelihood_statistic(table: PairedTable, difference: float) -> float:
    """Tango's statistic with the restricted estimate found by maximising the likelihood, not by its formula."""
    from scipy.optimize import brentq

    n, x, y = table.total, table.candidate_only, table.reference_only
    rest = n - x - y

    def slope(q: float) -> float:
        return (
            (x / (q + difference) if x else 0.0)
            + (y / q if y else 0.0)
            - (2 * rest / (1 - 2 * q - difference) if rest else 0.0)
        )

    low, high = max(0.0, -difference), (1 - difference) / 2
    pad = 1e-15
    if slope(low + pad) <= 0:
        q = low
    elif slope(high - pad) >= 0:
        q = high
    else:
        q = brentq(slope, low + pad, high - pad, xtol=1e-16, rtol=1e-15)
    return (x - y - n * difference) / math.sqrt(n * (2 * q + difference * (1 - difference)))


def test_tango_agrees_with_an_independent_root_finder_on_random_tables() -> None:
    pytest.importorskip("scipy")
    from scipy.optimize import brentq
    from scipy.stats import norm

    checked = 0
    for table in random_tables(60):
        for confidence in (0.90, 0.95):
            z = norm.ppf((1 + confidence) / 2)
            interval = tango_interval(table, confidence)
            for limit, sign, (low, high) in (
                (interval.lower, 1, (-1.0, table.difference)),
                (interval.upper, -1, (table.difference, 1.0)),
            ):
                if low == high:
                    assert limit == table.difference
                    continue
                pad = 1e-12
                found = brentq(
                    lambda d, t=table, s=sign * z: restricted_likelihood_statistic(t, d) - s,
                    low + pad,
                    high - pad,
                    xtol=1e-14,
                    rtol=1e-14,
                )
                assert limit == pytest.approx(found, abs=1e-9)
                checked += 1
    assert checked > 200


def test_the_bound_is_the_statistic_turned_round() -> None:
    for table in random_tables(60):
        lower, upper = tango_bound(table), tango_bound(table, upper=True)
        assert -1 <= lower <= table.difference <= upper <= 1
        mirrored = PairedTable(table.both, table.reference_only, table.candidate_only, table.neither)
        assert tango_bound(mirrored, upper=True) == pytest.approx(-lower, abs=1e-12)
        if -0.999 < lower < table.difference:
            assert tango_statistic(table, lower) == pytest.approx(1.6448536269514722, abs=1e-6)


def test_mcnemar_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for table in random_tables(200):
        if table.discordant:
            expected = stats.binomtest(table.candidate_only, table.discordant, 0.5).pvalue
            assert mcnemar_exact(table) == pytest.approx(expected, abs=1e-9)


def test_no_discordant_pair_gives_one() -> None:
    """huggingface/evaluate#795: two runs that agree everywhere; no division by zero, p = 1, and limits that still
    allow a difference."""
    table = PairedTable(1290, 0, 0, 29)
    assert mcnemar_exact(table) == 1.0
    assert tango_bound(table) == pytest.approx(-(1.6448536269514722**2) / (1319 + 1.6448536269514722**2))
    interval = bootstrap_interval(table, draws=100)
    assert (interval.lower, interval.upper) == (0.0, 0.0)


def test_binomial_probabilities_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for total, probability in ((1, 0.3), (40, 0.5), (1319, 0.02), (1319, 0.0), (3, 1.0)):
        expected = stats.binom.pmf(range(total + 1), total, probability)
        assert binomial_probabilities(total, probability) == pytest.approx(list(expected), abs=1e-10)


def test_the_random_stream_is_the_published_one() -> None:
    """SplitMix64 from state 1234567: the first outputs of the reference implementation."""
    stream = SplitMix64(1234567)
    assert [int(stream.uniform() * 2**53) for _ in range(3)] == [
        number >> 11 for number in (6457827717110365317, 3203168211198807973, 9817491932198370423)
    ]


def test_the_bootstrap_is_repeatable_and_near_the_resampling_of_pairs() -> None:
    table = PairedTable(180, 8, 4, 8)
    interval = bootstrap_interval(table)
    assert interval == bootstrap_interval(table)
    assert interval != bootstrap_interval(table, seed=5)
    draw = random.Random(3)
    values = [1] * 8 + [-1] * 4 + [0] * 188
    slow = sorted(sum(draw.choices(values, k=200)) / 200 for _ in range(4000))
    assert interval.lower == pytest.approx(slow[100], abs=0.0051)
    assert interval.upper == pytest.approx(slow[3899], abs=0.0051)


def test_a_table_is_checked_on_construction() -> None:
    with pytest.raises(ValueError, match="negative"):
        PairedTable(1, -1, 0, 0)
    with pytest.raises(ValueError, match="no question"):
        PairedTable(0, 0, 0, 0)
    with pytest.raises(ValueError, match="confidence"):
        tango_bound(PairedTable(1, 0, 0, 0), 0.4)


def test_power_is_the_share_of_simulated_runs_that_pass() -> None:
    draw = random.Random(11)
    passed = 0
    for _ in range(3000):
        outcome = draw.choices((0, 1, 2), (0.9, 0.05, 0.05), k=150)
        gained, lost = outcome.count(1), outcome.count(2)
        passed += tango_bound(PairedTable(150 - gained - lost, gained, lost, 0)) > -0.05
    assert non_inferiority_power(150, 0.10, 0.05) == pytest.approx(passed / 3000, abs=0.03)


def test_what_the_full_set_can_settle() -> None:
    """At 1319 questions and 2 % discordance a pair of runs settles 2 points, nearly 1 point, not 0.5."""
    power = {row.margin: row.power for row in power_table(1319, (0.02,), (0.005, 0.01, 0.02))}
    assert power[0.02] > 0.99
    assert 0.75 < power[0.01] < 0.95
    assert power[0.005] < 0.5
