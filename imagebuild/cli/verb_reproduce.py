"""Build again elsewhere and compare every byte.

A clean export of the workspace is built in processes of their own: another folder, an empty cache, another clock, umask,
locale, zone and hash seed, under each Python 3.11 to 3.14 that the machine has, and as another user where this one is
root.  Every blob must be equal.

Example:
  imagebuild reproduce demo
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="+", metavar="TARGET")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.targets import each_target

    return each_target(session, arguments.targets, "reproduction", lambda name: reproduce_one(name, session))


def reproduce_one(name: str, session: Session) -> tuple[int, Mapping[str, Any], str]:
    """Exit code, document and text for one target."""
    import tempfile
    from pathlib import Path

    from imagebuild.build.building import BaseFiles, build_image
    from imagebuild.build.reproduce import image_blobs, reproduce
    from imagebuild.cli.targets import artefacts_of, contents_of, current_lock, facts_of, load_target_and_series

    loaded = load_target_and_series(session, name)
    lock = current_lock(session, loaded)
    contents = contents_of(session, name)
    opener = session.opener(session.workspace.root)
    base_files = BaseFiles(lock, opener, loaded.target, contents, facts_of(session), session.emitter)
    store = artefacts_of(session, opener)
    with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
        image = build_image(
            lock, loaded.target, loaded.overlays, contents, base_files, Path(folder), session.emitter, store
        )
        expected = image_blobs(image)
    rebuilds = reproduce(session.workspace, loaded.target, lock, contents, expected, session.emitter, store)
    made = [item for item in rebuilds if item.equal is not None]
    reproducible = bool(made) and all(item.equal for item in made)
    lines = []
    for item in rebuilds:
        word = {True: "equal", False: "DIFFERENT", None: "not-run"}[item.equal]
        lines.append(
            f"{word:<9}  Python {item.conditions['python']}, user {item.conditions['user']}"
            + _why(item.reason, item.differing)
        )
    if not made:
        verdict, code = "not-run", 3
    else:
        verdict, code = ("reproducible", 0) if reproducible else ("not reproducible", 1)
    lines.append(f"{verdict}: {name} {lock.result.digest} ({len(expected)} blobs, {len(made)} rebuilds)")
    document = {
        "kind": "reproduction",
        "schemaVersion": 1,
        "target": name,
        "digest": str(lock.result.digest),
        "content_id": str(lock.result.content_id),
        "reproducible": reproducible,
        "blobs": dict(expected),
        "rebuilds": [item.to_json() for item in rebuilds],
    }
    return code, document, "\n".join(lines)


def _why(reason: str | None, differing: tuple[str, ...]) -> str:
    if reason is not None:
        return f": {reason}"
    return f": {', '.join(differing)}" if differing else ""
