"""Resolve a target's base, learn the facts that guards need, check every guard, and write the lock.

Layers are read from the top down until every named path is settled; --complete reads all of them once.  Facts are kept
by layer digest, so the next lock on the same base reads nothing.

Examples:
  imagebuild lock b300-vllm
  imagebuild lock b300-vllm --complete       nothing is left unproven
  imagebuild lock b300-vllm --check          says which part is stale; changes nothing
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from imagebuild.cli.session import Session, shown_here

if TYPE_CHECKING:
    from imagebuild.build.locking import Locked
    from imagebuild.cli.targets import LoadedTarget


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    parser.add_argument("--complete", action="store_true", help="read every layer, so that nothing stays unproven")
    parser.add_argument("--check", action="store_true", help="only say whether the lock is current")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.targets import each_target

    if arguments.check:
        return each_target(session, arguments.targets, "lock-check", lambda name: _check(name, session))
    return each_target(session, arguments.targets, "lock", lambda name: lock_one(name, arguments.complete, session))


def _check(name: str, session: Session) -> tuple[int, Mapping[str, Any], str]:
    from imagebuild.build.locked import stale_parts
    from imagebuild.cli.targets import load_target_and_series
    from imagebuild.target.lock import load_lock

    loaded = load_target_and_series(session, name)
    path = session.workspace.lock_path(name)
    lock = load_lock(path)
    stale = ["there is no lock"] if lock is None else stale_parts(lock, loaded.target, loaded.overlays)
    not_proven = [] if lock is None else sorted({text for p in lock.inputs.platforms for text in p.not_proven})
    document = {
        "kind": "lock-check",
        "schemaVersion": 1,
        "target": name,
        "file": str(path),
        "current": not stale,
        "stale": stale,
        "not_proven": not_proven,
    }
    for text in stale:
        session.output.note(f"{name}: {text}")
    return (1 if stale else 0), document, f"{name}: " + ("stale" if stale else "current")


def lock_one(name: str, complete: bool, session: Session) -> tuple[int, Mapping[str, Any], str]:
    """Locks one target; exit code, document and text."""
    from imagebuild.build.locked import patch_content
    from imagebuild.build.locking import Locker
    from imagebuild.cli.targets import artefacts_of, contents_of, facts_of, load_target_and_series
    from imagebuild.target.lock import store_lock

    before = session.traffic_since()
    loaded = load_target_and_series(session, name)
    target = loaded.target
    contents = contents_of(session, name)
    opener = session.opener(session.workspace.root)
    notes = {"waiver": target.waiver} if target.waiver is not None else {}
    locker = Locker(
        target,
        loaded.overlays,
        opener.source(target.base),
        facts_of(session),
        contents,
        session.emitter,
        artefacts_of(session, opener),
    )
    locked = locker.lock(complete=complete, notes=notes)
    committed = locked.content if target.content == "commit" else patch_content(locked.lock.inputs)
    contents.commit(committed)
    written = _write_guards(loaded, locked, session)
    path = session.workspace.lock_path(name)
    store_lock(path, locked.lock)
    contents.prune(committed)
    session.emitter.emit("lock.stored", path=str(path))
    inputs, result = locked.lock.inputs, locked.lock.result
    not_proven = sorted({text for p in inputs.platforms for text in p.not_proven})
    for finding in locked.findings:
        session.output.note(f"{name}: {finding.severity.value}: /{finding.path}: {finding.message} [{finding.code}]")
    for text in not_proven:
        session.output.note(f"{name}: not proven: {text}")
    for text in written:
        session.output.note(f"{name}: guards written into {text}: review them")
    document = {
        "kind": "lock-result",
        "schemaVersion": 1,
        "target": name,
        "file": str(path),
        "content_id": str(result.content_id),
        "digest": str(result.digest),
        "platforms": [
            {
                "platform": str(p.platform),
                "layers_read": sum(layer.read for layer in p.layers),
                "layers": len(p.layers),
                "files": len(p.changes),
            }
            for p in inputs.platforms
        ],
        "read_bytes": locked.read_bytes,
        "not_proven": not_proven,
        "findings": [finding.document() for finding in locked.findings],
        "guards_written": written,
        "transfer": session.traffic_since(before),
    }
    return 0, document, shown_here(path)


def _write_guards(loaded: LoadedTarget, locked: Locked, session: Session) -> list[str]:
    """Writes the guards that overlays lack, as they were true in this run; existing ones are never changed here."""
    from imagebuild.content.files import atomic_write, io_faults
    from imagebuild.overlay.changes import Guard
    from imagebuild.overlay.document import FILE_NAME
    from imagebuild.overlay.guards import join_guards
    from imagebuild.overlay.overlay_text import rewrite_guards

    written = []
    for overlay in loaded.overlays:
        made: dict[str, dict[Any, Guard]] = {}
        for platform in locked.lock.inputs.platforms:
            applied = locked.analyses[str(platform.platform)].applied
            lacking = {path for name, path in applied.unguarded if name == overlay.name}
            for path, guard in applied.guards(overlay.name).items():
                if path in lacking:
                    made.setdefault(path, {})[platform.platform] = guard
        if not made:
            continue
        guards = {**overlay.guards, **{path: join_guards(each) for path, each in made.items()}}
        file = overlay.folder / FILE_NAME
        with io_faults(file, "reading"):
            text = file.read_bytes().decode("utf-8")
        atomic_write(file, rewrite_guards(text, guards).encode("utf-8"))
        written.append(session.workspace.shown(file))
    return written
