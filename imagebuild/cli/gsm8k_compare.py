"""Pair two runs question by question and judge the difference by a margin declared beforehand.

A is the candidate, B the reference; the difference is A minus B.  Both are folders with lm-eval's result and samples
files, made by `gsm8k run`, by lm-eval itself or by InferenceX.  With --unpaired they are published figures RIGHT/TOTAL,
and the answer is never more than not-proven.

Examples:
  imagebuild gsm8k compare build/gsm8k/demo/on build/gsm8k/demo/base --margin 1.0 --plot on.svg
  imagebuild gsm8k compare --unpaired 1295/1319 1292/1319
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("candidate", metavar="A", help="the candidate: a folder, or a figure with --unpaired")
    parser.add_argument("reference", metavar="B", help="the reference: a folder, or a figure with --unpaired")
    parser.add_argument("--margin", metavar="PTS", default="1.0", help="margin of non-inferiority in points (1.0)")
    parser.add_argument("--unpaired", action="store_true", help="A and B are published figures RIGHT/TOTAL")
    parser.add_argument(
        "--max-null", metavar="N", type=int, default=0, help="null or empty answers above which a run is void (0)"
    )
    parser.add_argument(
        "--max-truncated", metavar="N", type=int, default=13, help="answers cut off above which a run is void (13)"
    )
    parser.add_argument("--concurrency", metavar="N", type=int, help="which run of a batched InferenceX artefact")
    parser.add_argument("--plot", metavar="FILE", help="also draw it: FILE.png or FILE.svg (extra `report`)")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.check.compare import AnswerLimits, compare_figures, compare_runs, parse_margin
    from imagebuild.check.comparison_text import comparison_text, unpaired_text
    from imagebuild.check.plot import require_plot, store_plot
    from imagebuild.check.results import load_run
    from imagebuild.errors import InputError

    if arguments.unpaired:
        if arguments.plot is not None:
            raise InputError("cli.usage", "--plot draws paired runs", hint="leave --plot or --unpaired out")
        figures = compare_figures(arguments.candidate, arguments.reference)
        session.output.answer(figures.to_json(), unpaired_text(figures))
        return figures.judgement.verdict.exit_code
    margin = parse_margin(arguments.margin)
    plot = Path(arguments.plot) if arguments.plot is not None else None
    if plot is not None:
        require_plot(plot)
    candidate, reference = (
        load_run(Path(folder), concurrency=arguments.concurrency)
        for folder in (arguments.candidate, arguments.reference)
    )
    found = compare_runs(candidate, reference, margin, AnswerLimits(arguments.max_null, arguments.max_truncated))
    if plot is not None and found.filters:
        store_plot(found, plot)
    elif plot is not None:
        session.output.warn("the runs could not be paired: no picture was drawn")
    session.output.answer(found.to_json(), comparison_text(found))
    return found.judgement.verdict.exit_code
