"""Judge the accuracy runs of a target: validity, threshold on both filters, paired verdicts of the arms.

The runs are those of `gsm8k run` below build/gsm8k/TARGET; threshold, margin and arms are the target's `checks.gsm8k`.  The
judgement is written beside them: gate.json, and statement.json, the in-toto test result of the patched image, where the
verdict is one that can be attested.

Examples:
  imagebuild gsm8k gate b300-vllm
  imagebuild gsm8k gate b300-vllm --junit build/gsm8k/b300-vllm/junit.xml
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a target's name")
    parser.add_argument(
        "--runs", metavar="DIR",
        help="the folder with one folder an arm (build/gsm8k/TARGET, with several platforms build/gsm8k/TARGET/ARCH)",
    )  # fmt: skip
    parser.add_argument(
        "--platform", metavar="PLATFORM", help="which platform's runs (default: the SKU's, else this machine's)"
    )
    parser.add_argument("--junit", metavar="FILE", help="also write the checks as JUnit XML")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.check.gate import AGAIN, decide, gate_text
    from imagebuild.check.gate_record import demands_of, gate_junit, gate_statement, store_gate
    from imagebuild.check.run_folders import load_runs
    from imagebuild.cli.gsm8k_engines import arms_folder
    from imagebuild.content.files import atomic_write
    from imagebuild.errors import InputError
    from imagebuild.host import clock
    from imagebuild.target.lock import load_lock

    target = session.workspace.target(arguments.target)
    asked = target.checks.gsm8k if target.checks is not None else None
    if asked is None:
        raise InputError(
            "check.no-gate",
            f"the target {target.name} asks for no accuracy check",
            hint="declare checks.gsm8k in its target.yaml",
        )
    folder = arms_folder(arguments.runs, arguments.platform, target, session)
    runs = load_runs(folder, (*asked.arms, AGAIN))
    demands = demands_of(target, session.workspace.series(target))
    gate = decide(target.name, runs, demands)
    lock = load_lock(session.workspace.lock_path(target.name))
    statement = gate_statement(gate, runs, demands, clock.now(), lock)
    stored = store_gate(folder, gate, statement) if runs else None
    if arguments.junit is not None:
        atomic_write(Path(arguments.junit), gate_junit(gate))
    if stored is not None:
        session.output.note(f"{target.name}: the test result is at {session.workspace.shown(stored)}")
    document = {**gate.to_json(), "statement": str(stored) if stored is not None else None}
    session.output.answer(document, gate_text(gate))
    return gate.verdict.exit_code
