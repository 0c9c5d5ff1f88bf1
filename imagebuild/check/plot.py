"""A picture of a comparison, PNG or SVG: each arm with its interval, and the difference against the margin.

matplotlib is an extra and is imported only here, when a picture is asked for.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from imagebuild.check.compare import Comparison
from imagebuild.check.unpaired import Proportion, wilson_interval
from imagebuild.content.files import atomic_write
from imagebuild.errors import InputError, UnavailableError

FORMATS = (".png", ".svg")


def require_plot(path: Path) -> None:
    """Raises InputError `check.plot-format` or UnavailableError `check.no-matplotlib`, before anything is computed."""
    if path.suffix.lower() not in FORMATS:
        raise InputError("check.plot-format", f"{path}: unknown kind of picture", expected=" or ".join(FORMATS))
    _library()


def _library() -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: F401
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnavailableError(
            "check.no-matplotlib",
            "pictures need matplotlib, which is not installed",
            hint="pip install 'imagebuild[report]'",
        ) from error
    return Figure


def store_plot(found: Comparison, path: Path) -> None:
    """Writes the picture of a comparison whose runs could be paired."""
    require_plot(path)
    if not found.filters:
        raise InputError("check.nothing-to-plot", "the runs could not be paired, so there is nothing to draw")
    figure = _library()(figsize=(8, 4.5), layout="constrained")
    arms, differences = figure.subplots(1, 2)
    for row, one in enumerate(found.filters):
        table = one.table
        for offset, colour, name, right in (
            (0.12, "tab:blue", "candidate", table.both + table.candidate_only),
            (-0.12, "tab:gray", "reference", table.both + table.reference_only),
        ):
            figure_ = Proportion(right, table.total)
            interval = wilson_interval(figure_)
            _whisker(
                arms, row + offset, figure_.value, interval.lower, interval.upper, colour, name if not row else None
            )
        interval = one.interval
        _whisker(differences, row, 100 * table.difference, 100 * interval.lower, 100 * interval.upper, "tab:blue", None)
        differences.plot([100 * one.lower] * 2, [row - 0.15, row + 0.15], color="tab:orange")
    names = [one.filter for one in found.filters]
    for axes in (arms, differences):
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(-0.6, len(names) - 0.4)
    arms.set_xlabel("accuracy, Wilson 95 %")
    arms.legend(loc="best")
    differences.axvline(0, color="black", linewidth=0.8)
    differences.axvline(-float(found.margin), color="tab:red", linestyle="--", label=f"margin {found.margin} points")
    differences.set_xlabel("difference in points, Tango 95 % (orange: one-sided bound)")
    differences.legend(loc="best")
    figure.suptitle(str(found.judgement.verdict))
    buffer = io.BytesIO()
    kind = path.suffix.lower()[1:]
    # no date and no random ids: the same runs give the same picture
    with _settings({"svg.hashsalt": "imagebuild"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    atomic_write(path, buffer.getvalue())


def _settings(values: Any) -> Any:
    from matplotlib import rc_context

    return rc_context(values)


def _whisker(axes: Any, row: float, at: float, lower: float, upper: float, colour: str, label: str | None) -> None:
    axes.errorbar([at], [row], xerr=[[at - lower], [upper - at]], fmt="o", color=colour, capsize=4, label=label)
