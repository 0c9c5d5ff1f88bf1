"""One overlay: its changes, guards and provenance.

Example:
  imagebuild overlay show my-fix
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.overlay.changes import Guard

    overlay = session.workspace.overlay(arguments.name)
    guards: dict[str, Any] = {}
    for path, guard in overlay.guards.items():
        guards[path] = guard.to_json() if isinstance(guard, Guard) else {str(p): g.to_json() for p, g in guard.items()}
    origin = None if overlay.origin is None else overlay.origin.url or overlay.origin.kind
    facts = {
        "author": overlay.author,
        "origin": origin,
        "forwarded": overlay.forwarded,
        "upstream_status": overlay.upstream_status,
        "numerics": overlay.numerics,
        "license": overlay.license,
        "remove_when": overlay.remove_when,
        "switch": None
        if overlay.switch is None
        else f"{overlay.switch.env}={overlay.switch.on} (off: {overlay.switch.default})",
    }
    changes = [_change(change) for change in overlay.changes]
    lines = [overlay.name, *(f"  {line}" for line in overlay.description.strip().split("\n"))]
    lines += [f"{key}: {value}" for key, value in facts.items() if value is not None]
    lines += ["changes:", *(f"  {text}" for text in changes), "guards:"]
    for path, shown in guards.items():
        lines.append(f"  {path}")
        lines += [f"    {key}: {value}" for key, value in shown.items()]
    document = {
        "kind": "overlay",
        "schemaVersion": 1,
        "name": overlay.name,
        "description": overlay.description,
        **facts,
        "changes": changes,
        "guards": guards,
    }
    session.output.answer(document, "\n".join(lines))
    return 0


def _change(change: object) -> str:
    """A change in one line, with whole digests."""
    from imagebuild.overlay.changes import BlobChange, StageChange, WheelChange

    kind = type(change).__name__.removesuffix("Change").lower()
    if isinstance(change, WheelChange):
        digests = " ".join(f"{platform}={digest}" for platform, digest in change.sha256.items())
        return _joined("wheel", change.name, change.version, digests, change.url, _list("without", change.without))
    if isinstance(change, BlobChange):
        size = None if change.size is None else f"{change.size} bytes"
        source = change.url or change.file
        only = _list("on", [str(platform) for platform in change.platforms])
        return _joined("blob", change.path, "from", source, str(change.sha256), size, change.elf, change.gfx, only)
    if isinstance(change, StageChange):
        outputs = ", ".join(f"{inside} -> {path}" for inside, path in change.out.items())
        return _joined("stage", change.dockerfile, outputs, None if change.artifact is None else str(change.artifact))
    values = [getattr(change, name) for name in getattr(change, "__slots__", ())]
    shown = [_value(value) for value in values if value is not None]
    return f"{kind} " + " -> ".join(text.replace("\n", "\\n")[:120] for text in shown)


def _value(value: object) -> str:
    return " ".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, Mapping) else str(value)


def _list(word: str, names: Sequence[str]) -> str | None:
    return f"({word} {', '.join(names)})" if names else None


def _joined(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)
