"""Verbs that have actions (`overlay import`, `gsm8k compare`): one module an action, named after verb and action."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module

from imagebuild.cli.options import HelpFormatter, Parser
from imagebuild.cli.session import Session


def configure_actions(parser: argparse.ArgumentParser, verb: str, actions: Mapping[str, str]) -> None:
    """Gives `parser` one sub-parser for each action (name to its one line); the common options go to those."""
    choices = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    subparsers = []
    for action, summary in actions.items():
        module = import_module(_module(verb, action))
        sub = choices.add_parser(
            action,
            help=summary,
            description=module.__doc__,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        module.configure(sub)
        subparsers.append(sub)
    parser.subparsers_of_verb = subparsers  # type: ignore[attr-defined]


def run_action(verb: str, arguments: argparse.Namespace, session: Session) -> int:
    """Runs the chosen action; its exit code."""
    code: int = import_module(_module(verb, arguments.action)).run(arguments, session)
    return code


def _module(verb: str, action: str) -> str:
    return f"imagebuild.cli.{verb}_{action.replace('-', '_')}"
