"""Put files of the base, as the overlay leaves them, into a work folder.

Change them there, then run `imagebuild overlay refresh NAME`.  Neither the image nor an engine is needed.

Example:
  imagebuild overlay edit my-fix vllm/envs.py vllm/version.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session, shown_here


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="ROOT/relative, as overlay.yaml writes it")
    parser.add_argument(
        "--target", metavar="TARGET", help="the target whose base is meant (default: the only one that lists it)"
    )
    parser.add_argument("--platform", metavar="PLATFORM", help="whose base (default: the target's first)")


def work_folder(session: Session, name: str) -> Path:
    return session.workspace.root / ".imagebuild" / "edit" / name


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.build.base_access import ask_base
    from imagebuild.cli.overlay_target import earlier_overlays, target_for
    from imagebuild.cli.targets import artefacts_of, contents_of, facts_of
    from imagebuild.oci.platform import Platform
    from imagebuild.overlay.editing import files_to_edit, open_session

    overlay = session.workspace.overlay(arguments.name)
    target = target_for(session, arguments.name, arguments.target)
    platform = Platform.parse(arguments.platform) if arguments.platform else target.platforms[0]
    earlier = earlier_overlays(session, target, arguments.name)
    opener = session.opener(session.workspace.root)
    files, notes = ask_base(
        target,
        opener.source(target.base),
        facts_of(session),
        contents_of(session, target.name),
        session.emitter,
        [path.split("/", 1)[-1] for path in arguments.paths],
        artefacts_of(session, opener),
        (*earlier, overlay),
        lambda bases: files_to_edit(
            overlay, arguments.paths, list(target.roots), bases[platform], platform, earlier=earlier
        ),
    )
    work = work_folder(session, arguments.name)
    paths = open_session(work, arguments.name, platform, files)
    for note in notes:
        session.output.note(note)
    session.output.note(f"next: change them, then imagebuild overlay refresh {arguments.name} --target {target.name}")
    document = {
        "kind": "overlay-edit",
        "schemaVersion": 1,
        "overlay": arguments.name,
        "folder": str(work),
        "paths": [str(path) for path in paths],
        "notes": list(notes),
    }
    session.output.answer(document, "\n".join(map(shown_here, paths)))
    return 0
