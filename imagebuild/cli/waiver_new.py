"""Start a waiver: waivers/N.yaml with what is known already, and marks where a person must write.

Example:
  imagebuild waiver new 4878 --target b300-vllm
"""

from __future__ import annotations

import argparse

from imagebuild.cli.session import Session
from imagebuild.errors import InputError


def waiver_number(text: str) -> int:
    """A pull request's number, `#` allowed before it."""
    digits = text.removeprefix("#")
    if not (digits.isascii() and digits.isdecimal()) or int(digits) < 1 or len(digits) > 9:
        raise InputError(
            "waiver.bad-number",
            f"{text[:80]!r} is not the number of a pull request",
            expected="a number, for example 4878",
            found=text[:80],
        )
    return int(digits)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=waiver_number, metavar="N", help="the pull request that introduces the patch")
    parser.add_argument(
        "--target", action="append", required=True, metavar="T", help="a target that it covers; may be repeated"
    )


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.content.files import atomic_write
    from imagebuild.waiver.start import start_waiver

    workspace = session.workspace
    path = workspace.waiver_path(arguments.number)
    if path.exists():
        raise InputError(
            "waiver.exists",
            f"{workspace.shown(path)} is there already",
            hint=f"edit it, then `imagebuild waiver render {arguments.number}`",
            details={"file": str(path)},
        )
    text = start_waiver(workspace, arguments.number, tuple(dict.fromkeys(arguments.target)))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())
    shown = workspace.shown(path)
    session.output.note(f"write what stands in <…>, then: imagebuild waiver render {arguments.number}")
    session.output.answer({"kind": "waiver-new", "schemaVersion": 1, "path": shown}, shown)
    return 0
