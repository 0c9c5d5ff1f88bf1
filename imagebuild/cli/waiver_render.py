"""Write the English and the Chinese page of a waiver beside its file.

What is patched comes from the lock, the overlays and the evidence on record; the same facts give the same bytes.

Example:
  imagebuild waiver render 4878
"""

from __future__ import annotations

import argparse

from imagebuild.cli.session import Session
from imagebuild.cli.waiver_new import waiver_number


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=waiver_number, metavar="N", help="the waiver's number")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.content.files import atomic_write
    from imagebuild.waiver.gather import gather
    from imagebuild.waiver.render import page_name, render_page

    workspace = session.workspace
    facts = gather(workspace, arguments.number)
    languages = (False, True) if facts.waiver.zh is not None else (False,)
    if facts.waiver.zh is None:
        session.output.warn(f"waivers/{arguments.number}.yaml has no `zh`: the Chinese page is not written")
    written = []
    for chinese in languages:
        path = workspace.waivers / page_name(arguments.number, chinese=chinese)
        atomic_write(path, render_page(facts, chinese=chinese).encode())
        written.append(workspace.shown(path))
    session.output.answer({"kind": "waiver-pages", "schemaVersion": 1, "paths": written}, "\n".join(written))
    return 0
