"""Write, render and check waivers: what is patched, why, and until when.

Examples:
  imagebuild waiver new 4878 --target b300-vllm
  imagebuild waiver render 4878
  imagebuild waiver check 4878
  imagebuild waiver check docs/waiver/2508.md
"""

from __future__ import annotations

import argparse
from importlib import import_module

from imagebuild.cli.options import Parser
from imagebuild.cli.session import Session

ACTIONS = {
    "new": "start the file that people write, from what the lock and the overlays say",
    "render": "write the English and the Chinese page",
    "check": "judge a waiver, or a page that somebody wrote by hand",
}


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    subparsers = []
    for action, summary in ACTIONS.items():
        module = import_module(f"imagebuild.cli.waiver_{action}")
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
    code: int = import_module(f"imagebuild.cli.waiver_{arguments.action}").run(arguments, session)
    return code
