"""Every overlay of the workspace, and the targets that use it.

Example:
  imagebuild overlay list
"""

from __future__ import annotations

import argparse

from imagebuild.cli.session import Session
from imagebuild.content.text import table


def configure(parser: argparse.ArgumentParser) -> None:
    del parser


def run(arguments: argparse.Namespace, session: Session) -> int:
    workspace = session.workspace
    users: dict[str, list[str]] = {}
    for name in workspace.targets():
        for overlay in workspace.target(name).overlays:
            users.setdefault(overlay, []).append(name)
    rows, documents = [], []
    for name in workspace.overlays():
        found = workspace.overlay(name)
        first = found.description.strip().split("\n")[0]
        rows.append([name, str(len(found.guards)), ",".join(users.get(name, [])) or "-", first])
        documents.append(
            {
                "name": name,
                "description": first,
                "changes": len(found.changes),
                "guards": len(found.guards),
                "targets": users.get(name, []),
                "upstream_status": found.upstream_status,
            }
        )
    session.output.answer(
        {"kind": "overlays", "schemaVersion": 1, "overlays": documents},
        table(rows, ["OVERLAY", "GUARDS", "TARGETS", "DESCRIPTION"]),
    )
    return 0
