"""Record what was changed in the work folder as the overlay's patch, with new guards.

Example:
  imagebuild overlay refresh my-fix
"""

from __future__ import annotations

import argparse
import shutil

from imagebuild.cli.session import Session, shown_here


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--target", metavar="TARGET", help="the target whose base is meant (default: the only one that lists it)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the work folder where it is")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.build.base_access import ask_base
    from imagebuild.cli.overlay_edit import work_folder
    from imagebuild.cli.overlay_target import earlier_overlays, target_for
    from imagebuild.cli.targets import artefacts_of, contents_of, facts_of
    from imagebuild.content.files import io_faults
    from imagebuild.overlay.document import FILE_NAME
    from imagebuild.overlay.editing import load_session
    from imagebuild.overlay.refreshing import refresh_overlay, store_refreshed

    overlay = session.workspace.overlay(arguments.name)
    target = target_for(session, arguments.name, arguments.target)
    earlier = earlier_overlays(session, target, arguments.name)
    work = work_folder(session, arguments.name)
    edits = load_session(work, arguments.name)
    with io_faults(overlay.folder / FILE_NAME, "reading"):
        text = (overlay.folder / FILE_NAME).read_bytes().decode("utf-8")
    opener = session.opener(session.workspace.root)
    refreshed = ask_base(
        target,
        opener.source(target.base),
        facts_of(session),
        contents_of(session, target.name),
        session.emitter,
        [file.path.split("/", 1)[-1] for file in edits.files],
        artefacts_of(session, opener),
        (*earlier, overlay),
        lambda bases: refresh_overlay(overlay, text, edits, dict(bases), list(target.roots), earlier=earlier),
    )
    paths = store_refreshed(overlay.folder, refreshed)
    if not arguments.keep:
        with io_faults(work, "removing"):
            shutil.rmtree(work)
    for note in refreshed.notes:
        session.output.note(note)
    if not paths:
        session.output.note("nothing was changed")
    else:
        session.output.note(f"next: imagebuild lock {target.name}")
    document = {
        "kind": "overlay-refreshed",
        "schemaVersion": 1,
        "overlay": arguments.name,
        "paths": [str(path) for path in paths],
        "notes": list(refreshed.notes),
    }
    session.output.answer(document, "\n".join(map(shown_here, paths)))
    return 0
