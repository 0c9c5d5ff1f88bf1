"""GSM8K accuracy: run it against an endpoint, compare two runs question by question, decide.

Examples:
  imagebuild gsm8k run b300-vllm --arm on --endpoint http://127.0.0.1:8000 --data gsm8k
  imagebuild gsm8k gate b300-vllm
  imagebuild gsm8k compare build/gsm8k/demo/on build/gsm8k/demo/base --margin 1.0
  imagebuild gsm8k compare --unpaired 1295/1319 1292/1319
"""

from __future__ import annotations

import argparse
from importlib import import_module

from imagebuild.cli.options import Parser
from imagebuild.cli.session import Session

ACTIONS = {
    "run": "ask a running engine every question and keep every answer",
    "compare": "pair two runs question by question and judge the difference by a margin",
    "gate": "judge the runs of a target: validity, threshold, paired verdicts",
}


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    subparsers = []
    for action, summary in ACTIONS.items():
        module = import_module(f"imagebuild.cli.gsm8k_{action}")
        sub = actions.add_parser(
            action,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.configure(sub)
        subparsers.append(sub)
    parser.subparsers_of_verb = subparsers  # type: ignore[attr-defined]


def run(arguments: argparse.Namespace, session: Session) -> int:
    code: int = import_module(f"imagebuild.cli.gsm8k_{arguments.action}").run(arguments, session)
    return code
