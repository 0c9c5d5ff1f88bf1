"""Two published figures: the check values of docs/how-to/accuracy.md, and scipy."""

import math

import pytest

from imagebuild.check.unpaired import Proportion, unpaired_difference, wilson_interval


def test_the_worked_example() -> None:
    on, off = Proportion(1295, 1319), Proportion(1292, 1319)
    assert (f"{on.value:.5f}", f"{on.standard_error:.5f}") == ("0.98180", "0.00368")
    assert (f"{off.value:.5f}", f"{off.standard_error:.5f}") == ("0.97953", "0.00390")
    found = unpaired_difference(on, off)
    assert (f"{found.z:.2f}", f"{found.p:.2f}") == ("0.42", "0.67")
    assert (f"{100 * found.wald.lower:+.2f}", f"{100 * found.wald.upper:+.2f}") == ("-0.82", "+1.28")


@pytest.mark.parametrize(
    ("x", "n", "y", "m"), [(1295, 1319, 1292, 1319), (56, 70, 48, 80), (9, 10, 3, 10), (3, 50, 0, 40)]
)
def test_agreement_with_scipy(x: int, n: int, y: int, m: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    found = unpaired_difference(Proportion(x, n), Proportion(y, m))
    chi2 = stats.chi2_contingency([[x, n - x], [y, m - y]], correction=False)
    assert found.z**2 == pytest.approx(chi2.statistic, abs=1e-9)
    assert found.p == pytest.approx(chi2.pvalue, abs=1e-9)
    limits = stats.binomtest(x, n).proportion_ci(method="wilson")
    ours = wilson_interval(Proportion(x, n))
    assert (ours.lower, ours.upper) == pytest.approx((limits.low, limits.high), abs=1e-9)


@pytest.mark.parametrize(
    ("x", "n", "y", "m", "low", "high"),
    [(56, 70, 48, 80, 0.0524, 0.3339), (9, 10, 3, 10, 0.1705, 0.8090), (10, 10, 0, 20, 0.6791, 1.0)],
)
def test_newcombe_1998_table(x: int, n: int, y: int, m: int, low: float, high: float) -> None:
    """Method 10 of table II in Newcombe, Statistics in Medicine 17 (1998) 873-890."""
    found = unpaired_difference(Proportion(x, n), Proportion(y, m)).newcombe
    assert (round(found.lower, 4), round(found.upper, 4)) == (low, high)


def test_figures_at_the_edge_divide_by_nothing() -> None:
    found = unpaired_difference(Proportion(5, 5), Proportion(7, 7))
    assert (found.z, found.p) == (0.0, 1.0)
    assert found.newcombe.lower < 0 < found.newcombe.upper
    assert Proportion(1, 1).standard_error == 0.0
    assert math.isclose(wilson_interval(Proportion(0, 4)).lower, 0.0)
    with pytest.raises(ValueError, match="no proportion"):
        Proportion(8, 7)
