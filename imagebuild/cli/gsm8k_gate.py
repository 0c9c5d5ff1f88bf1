"""Judge the accuracy runs of a target: validity, threshold on both filters, paired verdicts of the arms.

The runs are those of `gsm8k run` below build/gsm8k/TARGET; threshold, margin and arms are the target's `checks.gsm8k`.

Example:
  imagebuild gsm8k gate b300-vllm
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a target's name")
    parser.add_argument("--runs", metavar="DIR", help="the folder with one folder an arm (build/gsm8k/TARGET)")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.check.gate import AGAIN, Demands, decide, gate_text
    from imagebuild.check.results import load_run
    from imagebuild.errors import InputError

    target = session.workspace.target(arguments.target)
    asked = target.checks.gsm8k if target.checks is not None else None
    if asked is None:
        raise InputError(
            "check.no-gate",
            f"the target {target.name} asks for no accuracy check",
            hint="declare checks.gsm8k in its target.yaml",
        )
    folder = Path(arguments.runs) if arguments.runs else session.workspace.root / "build" / "gsm8k" / target.name
    runs = {arm: load_run(folder / arm) for arm in (*asked.arms, AGAIN) if (folder / arm / "summary.json").is_file()}
    switched = any(overlay.switch is not None for overlay in session.workspace.series(target))
    gate = decide(
        target.name,
        runs,
        Demands(asked.threshold, asked.margin, asked.arms, asked.max_null, needs_proof=switched),
    )
    session.output.answer(gate.to_json(), gate_text(gate))
    return gate.verdict.exit_code
