"""Append a waiver's entry to the changelog of the repository, at its physical end and in its own manner.

Keys and title come from waivers/N.yaml; the pull request's address follows the last entry's unless --link says another.
No earlier byte of the file changes; an entry that stands there already is left alone.

Examples:
  imagebuild waiver changelog 4878
  imagebuild waiver changelog 4878 --file perf-changelog.yaml --description "Shard the shared expert of TEP decode steps"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session
from imagebuild.cli.waiver_new import waiver_number
from imagebuild.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=waiver_number, metavar="N", help="the waiver, by its pull request")
    parser.add_argument("--file", metavar="FILE", help="the changelog (default: `changelog` of .imagebuild.yaml)")
    parser.add_argument(
        "--description",
        action="append",
        default=[],
        metavar="TEXT",
        help="what changed (default: the title); may be repeated",
    )
    parser.add_argument("--link", metavar="URL", help="the pull request's address")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.content.files import atomic_write, io_faults
    from imagebuild.waiver.changelog_append import ChangelogEntry, append_entry, link_of
    from imagebuild.waiver.gather import load_numbered

    workspace, number = session.workspace, arguments.number
    named = workspace.folders.changelog
    if arguments.file is None and named is None:
        raise InputError(
            "changelog.no-file",
            "which file is the changelog is not said",
            expected="--file FILE, or `changelog: FILE` in .imagebuild.yaml",
        )
    path = Path(arguments.file) if arguments.file is not None else workspace.root / str(named)
    shown = workspace.shown(path)
    waiver = load_numbered(workspace, number)
    with io_faults(path, "reading"):
        before, mode = path.read_bytes(), path.stat().st_mode & 0o777
    link = arguments.link or link_of(before, number)
    if link is None:
        raise InputError(
            "changelog.no-link", f"no entry of {shown} shows how pull requests are named", expected="--link URL"
        )
    entry = ChangelogEntry(waiver.configs, tuple(arguments.description) or (waiver.title,), link)
    after = append_entry(before, entry, shown)
    if after != before:
        atomic_write(path.resolve(), after, mode)
    document = {
        "kind": "changelog-append",
        "schemaVersion": 1,
        "file": shown,
        "number": number,
        "appended_bytes": len(after) - len(before),
        "unchanged": after == before,
        "link": link,
    }
    note = "the entry stands there already" if after == before else f"{len(after) - len(before)} bytes appended"
    session.output.note(f"{shown}: {note}")
    session.output.answer(document, shown)
    return 0
