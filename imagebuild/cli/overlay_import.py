"""Make a guarded overlay of a diff, of a tree of files, or of a script that patches a container.

Each file is found in the target's pinned base, the change is applied with no fuzz (hunks that stand elsewhere are looked
for within 1,000 lines and written down at their true lines), and preimage and postimage become guards.  The blob ids of
git's index lines must agree with the base's files.

Examples:
  git diff main -- vllm | imagebuild overlay import my-fix --target b300-vllm --from-diff -
  imagebuild overlay import my-fix --target b300-vllm --from-tree patched/ --include 'vllm/**'
  imagebuild overlay import my-fix --target b300-vllm --from-script apply_container_patches.sh
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from imagebuild.cli.session import Session, shown_here


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the new overlay")
    parser.add_argument("--target", metavar="TARGET", required=True, help="the target whose base it is made against")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--from-diff", metavar="FILE|-", help="a unified diff")
    source.add_argument("--from-tree", metavar="DIR", help="a folder of changed files")
    source.add_argument(
        "--from-script", metavar="FILE", help="a shell script that patches a container, read and never run"
    )
    parser.add_argument(
        "--include", metavar="GLOB", action="append", default=[], help="only these paths; may be repeated"
    )
    parser.add_argument(
        "--exclude", metavar="GLOB", action="append", default=[], help="not these paths; may be repeated"
    )
    parser.add_argument("--force", action="store_true", help="replace an overlay of that name")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.build.base_access import ask_base
    from imagebuild.build.live_base import LiveBase
    from imagebuild.cli.named_file import read_named
    from imagebuild.cli.overlay_target import earlier_overlays, folder_roots
    from imagebuild.cli.targets import artefacts_of, contents_of, facts_of
    from imagebuild.errors import InputError
    from imagebuild.oci.platform import Platform
    from imagebuild.overlay.importer import ImportedOverlay, import_diff, import_tree
    from imagebuild.overlay.overlay_folder import read_tree, store_overlay
    from imagebuild.overlay.patch_parse import parse_patch
    from imagebuild.overlay.script_import import import_script, parse_script
    from imagebuild.overlay.series_tree import Base

    target = session.workspace.target(arguments.target)
    folder = session.workspace.overlay_path(arguments.name)
    if folder.exists() and not arguments.force:
        raise InputError(
            "overlay.exists",
            f"there is an overlay {arguments.name} already: {folder}",
            hint=f"choose another name, or change that one: imagebuild overlay edit {arguments.name} PATH",
        )
    if earlier_overlays(session, target, arguments.name):
        session.output.note("the change is taken against the base itself, not behind the target's other overlays")
    roots, folders = list(target.roots), folder_roots(target)
    diff, tree, script = b"", {}, None
    if arguments.from_diff is not None:
        if arguments.from_diff == "-":
            diff = sys.stdin.buffer.read()
        else:
            diff = read_named(arguments.from_diff, "--from-diff")
        names = [path.split("/", 1)[-1] for path in parse_patch(diff).paths]
    elif arguments.from_tree is not None:
        tree = read_tree(Path(arguments.from_tree))
        names = list(tree)
    else:
        text = read_named(arguments.from_script, "--from-script").decode("utf-8", "surrogateescape")
        script = parse_script(text, arguments.from_script)
        names = [path.split("/", 1)[-1] for path in script.names]

    include, exclude = arguments.include, arguments.exclude

    def question(bases: dict[Platform, LiveBase]) -> ImportedOverlay:
        known: dict[Platform, Base] = dict(bases.items())
        if arguments.from_diff is not None:
            return import_diff(arguments.name, diff, known, roots, folders=folders, include=include, exclude=exclude)
        if script is not None:
            return import_script(
                arguments.name, script, known, roots, folders=folders, include=include, exclude=exclude
            )
        return import_tree(arguments.name, tree, known, roots, folders=folders, include=include, exclude=exclude)

    opener = session.opener(session.workspace.root)
    imported = ask_base(
        target,
        opener.source(target.base),
        facts_of(session),
        contents_of(session, target.name),
        session.emitter,
        names,
        artefacts_of(session, opener),
        earlier_overlays(session, target, arguments.name),
        question,
    )
    store_overlay(folder, imported, force=arguments.force)
    for note in imported.notes:
        session.output.note(note)
    if arguments.name not in target.overlays:
        session.output.note(
            f"next: add {arguments.name} to `overlays` in {session.workspace.shown(session.workspace.target_path(target.name))}, "
            f"then imagebuild lock {target.name}"
        )
    document = {
        "kind": "overlay-imported",
        "schemaVersion": 1,
        "overlay": arguments.name,
        "folder": str(folder),
        "files": [report.document() for report in imported.reports],
        "notes": list(imported.notes),
    }
    session.output.answer(document, shown_here(folder))
    return 0
