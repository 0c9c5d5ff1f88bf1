"""Explain an error code.

Examples:
  imagebuild explain overlay.preimage-mismatch
  imagebuild explain                     lists every code
"""

from __future__ import annotations

import argparse
from difflib import get_close_matches

from imagebuild.cli.codes import load_codes
from imagebuild.cli.session import Session
from imagebuild.content.text import table
from imagebuild.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", metavar="CODE", help="a code as errors and findings show it in brackets")


def run(arguments: argparse.Namespace, session: Session) -> int:
    codes = load_codes()
    if arguments.code is None:
        session.output.answer(
            {"kind": "codes", "schemaVersion": 1, "codes": {code: entry.title for code, entry in codes.items()}},
            table([[code, entry.title] for code, entry in codes.items()], ["CODE", "MEANING"]),
        )
        return 0
    entry = codes.get(arguments.code)
    if entry is None:
        near = get_close_matches(arguments.code, codes, 1)
        raise InputError(
            "cli.unknown-code",
            f"there is no code {arguments.code!r}",
            hint=f"did you mean: imagebuild explain {near[0]}" if near else "imagebuild explain lists all",
        )
    session.output.answer(
        {
            "kind": "code",
            "schemaVersion": 1,
            "code": entry.code,
            "title": entry.title,
            "meaning": entry.meaning,
            "do": entry.do,
        },
        f"{entry.code}: {entry.title}\n\n{entry.meaning}\n\nWhat to do: {entry.do}",
    )
    return 0
