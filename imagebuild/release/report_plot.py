"""Accuracy with its intervals as an inline drawing: each arm by Wilson, each difference by Tango against the margin.

The table beside it holds every number that is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from imagebuild.check.unpaired import Proportion, wilson_interval
from imagebuild.release.report_checks import AccuracyResult
from imagebuild.release.report_markup import Child, Markup, element, table

WIDTH, ROW, TOP, LEFT, RIGHT = 700, 34, 16, 280, 24


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: a value between the ends of its interval, in the drawing's unit; `detail` is what a reader is told."""

    label: str
    value: float
    lower: float
    upper: float
    detail: str


def arm_bars(result: AccuracyResult) -> tuple[Bar, ...]:
    """Accuracy of each arm under each filter, per cent."""
    found: dict[tuple[str, str], Bar] = {}
    for name, comparison in result.comparisons.items():
        candidate, _, reference = name.partition(" against ")
        for one in _filters(comparison):
            for side, arm in (("reference", reference), ("candidate", candidate)):
                figure, total = one.get(side), one.get("questions")
                right = figure.get("right") if isinstance(figure, dict) else None
                if not (_whole(right) and _whole(total)) or total <= 0 or not 0 <= right <= total:
                    continue
                part = Proportion(right, total)
                interval = wilson_interval(part)
                bar = Bar(
                    f"{arm}, {one.get('filter')}",
                    100 * part.value,
                    100 * interval.lower,
                    100 * interval.upper,
                    f"{right} of {total}",
                )
                found.setdefault((arm, str(one.get("filter"))), bar)
    return tuple(found.values())


def difference_bars(result: AccuracyResult) -> tuple[Bar, ...]:
    """Differences in points, candidate minus reference."""
    out = []
    for name, comparison in result.comparisons.items():
        for one in _filters(comparison):
            value, limits = one.get("difference_points"), one.get("tango_interval_points")
            if not (_number(value) and isinstance(limits, list) and len(limits) == 2 and all(map(_number, limits))):
                continue
            detail = f"{one.get('right_to_wrong')} right to wrong, {one.get('wrong_to_right')} wrong to right"
            out.append(Bar(f"{name}, {one.get('filter')}", float(value), float(limits[0]), float(limits[1]), detail))
    return tuple(out)


def margin_of(result: AccuracyResult) -> float | None:
    """The margin in points, where the judgement names one."""
    for comparison in result.comparisons.values():
        margin = comparison.get("margin_points")
        if _number(margin):
            return float(margin)
    return None


def plots(result: AccuracyResult, number: int) -> Markup | None:
    """The drawings and tables of one judgement; None where it compares nothing."""
    arms, differences = arm_bars(result), difference_bars(result)
    if not arms and not differences:
        return None
    margin = margin_of(result)
    parts: list[Child] = []
    if arms:
        parts.append(
            _figure(arms, f"arms-{number}", "Accuracy of each arm in per cent, with its 95 % interval (Wilson)", None)
        )
        rows = [[bar.label, bar.detail, f"{bar.value:.2f}", f"{bar.lower:.2f} to {bar.upper:.2f}"] for bar in arms]
        parts.append(table("Accuracy of each arm", ["Arm and filter", "Right", "Per cent", "95 % interval"], rows))
    if differences:
        name = "Differences in points, with their 95 % interval (Tango)"
        parts.append(_figure(differences, f"differences-{number}", name, None if margin is None else -margin))
        rows = [
            [bar.label, f"{bar.value:+.2f}", f"{bar.lower:+.2f} to {bar.upper:+.2f}", bar.detail] for bar in differences
        ]
        caption = "Differences" if margin is None else f"Differences; the margin is {margin:g} points"
        parts.append(table(caption, ["Comparison", "Points", "95 % interval", "Questions"], rows))
    return element("div", *parts)


def _figure(bars: Sequence[Bar], name: str, title: str, limit: float | None) -> Markup:
    ends = [end for bar in bars for end in (bar.lower, bar.upper)] + ([limit, 0.0] if limit is not None else [])
    low, high = min(ends), max(ends)
    pad = max((high - low) * 0.08, 0.05)
    low, high = low - pad, high + pad
    height = TOP + ROW * len(bars) + 34

    def at(value: float) -> float:
        return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 2)

    words = "; ".join(f"{bar.label}: {bar.value:.2f}, {bar.lower:.2f} to {bar.upper:.2f}" for bar in bars)
    if limit is not None:
        words += f"; margin at {limit:g}"
    parts: list[Child] = [element("title", title, id=f"{name}-title"), element("desc", words, id=f"{name}-words")]
    bottom = TOP + ROW * len(bars)
    if limit is not None:
        for value, kind, text in ((0.0, "zero", "equal"), (limit, "limit", f"margin {limit:g}")):
            parts.append(_element("line", x1=at(value), y1=TOP - 6, x2=at(value), y2=bottom, class_=kind))
            parts.append(_element("text", text, x=at(value), y=bottom + 28, text_anchor="middle", class_="tick"))
    for value in (low + pad, (low + high) / 2, high - pad):
        parts.append(_element("text", f"{value:.2f}", x=at(value), y=bottom + 14, text_anchor="middle", class_="tick"))
    for row, bar in enumerate(bars):
        y = TOP + ROW * row + ROW // 2
        parts.append(_element("text", bar.label, x=LEFT - 12, y=y + 4, text_anchor="end", class_="label"))
        parts.append(_element("line", x1=at(bar.lower), y1=y, x2=at(bar.upper), y2=y, class_="interval"))
        for end in (bar.lower, bar.upper):
            parts.append(_element("line", x1=at(end), y1=y - 6, x2=at(end), y2=y + 6, class_="interval"))
        parts.append(_element("circle", cx=at(bar.value), cy=y, r=4.5, class_="point"))
    drawing = element(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby=f"{name}-title {name}-words",
        class_="plot",
    )
    return element("figure", drawing, element("figcaption", title))


def _element(name: str, /, *children: Child, **attributes: str | float) -> Markup:
    return element(name, *children, **{key: str(value) for key, value in attributes.items()})


def _filters(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = comparison.get("filters")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e6
