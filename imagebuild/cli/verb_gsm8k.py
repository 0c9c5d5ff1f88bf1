"""GSM8K accuracy: run it against an endpoint, compare two runs question by question, decide.

Examples:
  imagebuild gsm8k run b300-vllm --arm on --endpoint http://127.0.0.1:8000 --data gsm8k
  imagebuild gsm8k gate b300-vllm
  imagebuild gsm8k compare build/gsm8k/demo/on build/gsm8k/demo/base --margin 1.0
  imagebuild gsm8k compare --unpaired 1295/1319 1292/1319
"""

from __future__ import annotations

import argparse

from imagebuild.cli.actions import configure_actions, run_action
from imagebuild.cli.session import Session

ACTIONS = {
    "run": "ask a running engine every question and keep every answer",
    "compare": "pair two runs question by question and judge the difference by a margin",
    "gate": "judge the runs of a target: validity, threshold, paired verdicts",
}


def configure(parser: argparse.ArgumentParser) -> None:
    configure_actions(parser, "gsm8k", ACTIONS)


def run(arguments: argparse.Namespace, session: Session) -> int:
    return run_action("gsm8k", arguments, session)
