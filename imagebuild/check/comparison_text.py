"""A comparison in words, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from imagebuild.check.compare import Comparison, FilterComparison, UnpairedComparison
from imagebuild.check.unpaired import Proportion


def comparison_text(found: Comparison) -> str:
    """Validity, figures and power of a paired comparison; the last line is the verdict."""
    return "\n".join([*_lines(found), f"{found.judgement.verdict}: {found.judgement.reason}"])


def _lines(found: Comparison) -> Iterator[str]:
    for name, run in (("candidate", found.candidate), ("reference", found.reference)):
        recorded = ", ".join(
            f"{word} {'not recorded' if count is None else count}" for word, count in run.counts.to_json().items()
        )
        yield f"{name:<10} {run.folder}  {run.questions} questions; {recorded}; unsigned, image {run.origin}"
    for one in found.filters:
        yield from _filter(one)
    if found.filters:
        yield "power of a pair of runs with equally good arms (verdict non-inferior):"
        margins = sorted({row.margin for row in found.power})
        yield "  discordant  " + "  ".join(f"{100 * margin:>5.1f} points" for margin in margins)
        for share in sorted({row.discordance for row in found.power}):
            cells = [row.power for row in found.power if row.discordance == share]
            yield f"  {share:>10.0%}  " + "  ".join(f"{power:>12.1%}" for power in cells)


def _filter(one: FilterComparison) -> Iterator[str]:
    table = one.table
    yield f"{one.filter}"
    yield f"  candidate  {figure_text(Proportion(table.both + table.candidate_only, table.total))}"
    yield f"  reference  {figure_text(Proportion(table.both + table.reference_only, table.total))}"
    yield (
        f"  difference {100 * table.difference:+.2f} points; right to wrong {table.reference_only}, "
        f"wrong to right {table.candidate_only}; other answer {one.changed_answers}, other text {one.changed_responses}"
    )
    yield (
        f"  Tango 95 % {_limits(one.interval.lower, one.interval.upper)}, bootstrap 95 % "
        f"{_limits(one.bootstrap.lower, one.bootstrap.upper)}, McNemar exact p = {one.p:.3g}"
    )
    yield f"  {one.judgement.verdict}: {one.judgement.reason}"


def _limits(lower: float, upper: float) -> str:
    return f"{100 * lower:+.2f}…{100 * upper:+.2f} points"


def figure_text(proportion: Proportion) -> str:
    """`1295/1319 = 0.98180 ± 0.00368`."""
    return f"{proportion.right}/{proportion.total} = {proportion.value:.5f} ± {proportion.standard_error:.5f}"


def unpaired_text(found: UnpairedComparison) -> str:
    """The same for figures alone."""
    numbers = found.found
    return "\n".join(
        [
            f"candidate  {figure_text(found.candidate)}",
            f"reference  {figure_text(found.reference)}",
            f"difference {100 * numbers.difference:+.2f} points, z = {numbers.z:.2f}, p = {numbers.p:.2f}",
            f"Wald 95 % {_limits(numbers.wald.lower, numbers.wald.upper)}, "
            f"Newcombe 95 % {_limits(numbers.newcombe.lower, numbers.newcombe.upper)}",
            f"{found.judgement.verdict}: {found.judgement.reason}",
        ]
    )
