"""Show or prune the cache.

The cache holds facts of base layers (kept for ever by digest), bytes that builds read from bases, artefacts (wheels,
blobs, outputs of stages), and wheels of demo bases.  Everything in it can be had again; pruning costs time only.

Examples:
  imagebuild cache info
  imagebuild cache prune                 removes what no run is using
  imagebuild cache prune --older-than 30 removes what was not read for 30 days
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from imagebuild.cli.session import Session
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.content.text import size_text, table
from imagebuild.errors import InputError
from imagebuild.host import clock

PARTS = ("facts", "content", "artefacts", "wheels", "bases")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("info", "prune"), help="what to do")
    parser.add_argument(
        "--older-than", metavar="DAYS", type=int, default=0, help="prune only what was not used for so many days"
    )


def _files(folder: Path) -> list[os.stat_result]:
    return [path.lstat() for path in _walk(folder)]


def _walk(folder: Path) -> list[Path]:
    out = []
    for root, _, names in os.walk(folder, followlinks=False):
        out += [Path(root) / name for name in names]
    return out


def run(arguments: argparse.Namespace, session: Session) -> int:
    root = session.cache
    parts = (
        sorted({*PARTS, *(entry.name for entry in os.scandir(root) if entry.is_dir())})
        if root.is_dir()
        else list(PARTS)
    )
    if arguments.action == "info":
        rows = []
        document = {}
        for part in parts:
            stats = _files(root / part)
            document[part] = {"files": len(stats), "bytes": sum(s.st_size for s in stats)}
            rows.append([part, str(len(stats)), size_text(document[part]["bytes"])])
        session.output.answer(
            {"kind": "cache", "schemaVersion": 1, "folder": str(root), "parts": document},
            table(rows, ["PART", "FILES", "SIZE"]) + f"\n{root}",
        )
        return 0
    if arguments.older_than < 0:
        raise InputError("cli.usage", "--older-than takes days, 0 or more", found=str(arguments.older_than))
    limit = clock.now() - arguments.older_than * 86400
    removed, freed = 0, 0
    for part in parts:
        for path in _walk(root / part):
            stat = path.lstat()
            used = max(stat.st_atime, stat.st_mtime)
            # an unfinished file of a run that may be going on: only one that is a day old is surely nobody's
            if path.name.startswith(TEMPORARY_PREFIX) and used > clock.now() - 86400:
                continue
            if used <= limit:
                with io_faults(path, "removing"):
                    path.unlink(missing_ok=True)
                removed, freed = removed + 1, freed + stat.st_size
    session.output.answer(
        {"kind": "cache-pruned", "schemaVersion": 1, "folder": str(root), "files": removed, "bytes": freed},
        f"removed {removed} files, {size_text(freed)}, from {root}",
    )
    return 0
