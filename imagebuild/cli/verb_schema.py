"""Print the JSON Schema of a file that people write; editors complete and check with it.

The answer is the schema itself, with --json too: it is a document of another standard, and has no kind of ours.

Example:
  imagebuild schema target > target.schema.json
"""

from __future__ import annotations

import argparse
import json

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    from imagebuild.cli.schemas import SCHEMAS

    parser.add_argument("kind", choices=tuple(SCHEMAS), help="which file")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.schemas import SCHEMAS

    document = SCHEMAS[arguments.kind]()
    session.output.answer(document, json.dumps(document, indent=2, ensure_ascii=False), whole=True)
    return 0
