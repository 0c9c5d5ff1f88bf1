"""quilt's loop: files are put into a work folder, changed by hand there, and become the overlay's patch again.

The work folder (`.imagebuild/edit/NAME/` in the workspace) holds each file as the overlay leaves it, under its
ROOT/relative path; `.before/` holds it as the overlay finds it, `.session.json` the digests of that.  Neither the image nor
an engine is needed for any of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from imagebuild.content.canonical import document_json, load_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import ImagebuildError, InputError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import PatchChange
from imagebuild.overlay.document import Overlay, guards_for
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.import_files import would_apply
from imagebuild.overlay.members import read_member
from imagebuild.overlay.patch_apply import apply_patch, place_file
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.paths import validate_path
from imagebuild.overlay.series import apply_series
from imagebuild.overlay.series_changes import ReadMember, apply_change
from imagebuild.overlay.series_run import OverlayRun
from imagebuild.overlay.series_tree import Base, Link, Tree

BEFORE = ".before"
SESSION = ".session.json"
_EDITORS_LEAVE = ("~", ".swp", ".swo", ".orig", ".rej", ".bak", ".pyc")


@dataclass(frozen=True, slots=True)
class EditedFile:
    """A file of a session: as the overlay finds it (`before`, None: absent; `mode` its permission bits) and as it is to
    leave it (`now`, None: absent)."""

    path: str
    before: bytes | None
    now: bytes | None
    mode: int = 0o644

    @property
    def changed(self) -> bool:
        return self.before != self.now


@dataclass(frozen=True, slots=True)
class Session:
    """What lies in a work folder."""

    overlay: str
    platform: Platform
    files: tuple[EditedFile, ...]


def files_to_edit(
    overlay: Overlay,
    paths: Sequence[str],
    roots: Collection[str],
    base: Base,
    platform: Platform,
    *,
    earlier: Sequence[Overlay] = (),
    read: ReadMember = read_member,
) -> tuple[tuple[EditedFile, ...], tuple[str, ...]]:
    """The named files before and after `overlay`, which stands behind `earlier` in the series, and remarks.

    The overlay's own guards do not count here, since a changed base is the usual reason to edit; a remark says where they
    do not match.  Where its patch no longer fits exactly, the hunks are looked for as an import does; where that fails,
    the file is given as it is before the overlay, and a remark says why.  Raises what `apply_series` raises for `earlier`,
    InputError `overlay.bad-path` and `overlay.unknown-root`, UnavailableError `overlay.preimage-unavailable`.
    """
    for path in paths:
        validate_path(path, "this path", roots)
    tree = _tree_behind(earlier, roots, base, platform, read)
    before = {path: _file(tree, path) for path in paths}
    bare = replace(overlay, guards={})
    run = OverlayRun(bare, tree, roots, platform, set(), True, False, None)
    for change in bare.changes:
        apply_change(run, change, read)
    guards = guards_for(overlay, platform)
    files, notes = [], []
    for path in dict.fromkeys(paths):
        found = before[path]
        data = None if found is None else run.bytes_of(path, found).data
        mode = 0o644 if found is None else found.mode
        if path in run.failed:
            now, note = _placed(overlay, path, data, read, run.errors)
            notes.append(note)
        else:
            result = _file(tree, path)
            now = None if result is None else result.data
        if data is None and now is None:
            notes.append(f"{path}: neither the base nor the overlay has it; it will be a new file")
        guard = guards.get(path)
        if guard is not None and (None if found is None else found.digest) not in guard.preimage:
            notes.append(f"{path}: not the file that the guard names; compare with {BEFORE}/{path}")
        files.append(EditedFile(path, data, now, mode))
    return tuple(files), tuple(notes)


def _tree_behind(
    earlier: Sequence[Overlay], roots: Collection[str], base: Base, platform: Platform, read: ReadMember
) -> Tree:
    done = apply_series(earlier, roots, base, platform, read=read)
    tree = Tree(base)
    for artefact in done.brought:
        tree.bring(artefact.path, BaseFile(None, artefact.mode, artefact.sha256))
    for file in done.written:
        tree.put(file.path, BaseFile(file.data, file.mode))
    for gone in done.deleted:
        if gone.folder:
            tree.folders[gone.path] = None
        else:
            tree.put(gone.path, None)
    for link in done.links:
        tree.put(link.path, Link(link.to))
    return tree


def _file(tree: Tree, path: str) -> BaseFile | None:
    node = tree.node(path)
    if isinstance(node, Link):
        raise InputError("overlay.path-conflict", f"{path} is a link that the series makes; there is nothing to edit")
    return node


def _placed(
    overlay: Overlay, path: str, data: bytes | None, read: ReadMember, errors: Sequence[ImagebuildError]
) -> tuple[bytes | None, str]:
    """The file after hunks that no longer stand where they say; else as it is, and why."""
    why = next((error.message for error in errors if path in error.message), "its change does not apply")
    now = data
    for change in overlay.changes:
        if not isinstance(change, PatchChange):
            continue
        for file in parse_patch(read(overlay, change.patch)).files:
            if file.path != path or file.moved or file.created or now is None:
                continue
            located = place_file(now, file)
            if located.hunks is None:
                return data, f"{path}: {why}; the file is given as it is before the overlay"
            now = apply_patch(now, located.hunks, path)
            why = f"the patch {would_apply(located.reports)}; the file is given so"
    return now, f"{path}: {why}"


def open_session(work: Path, overlay: str, platform: Platform, files: Sequence[EditedFile]) -> tuple[Path, ...]:
    """Puts files into the work folder, beside those that are there, and gives the paths to edit.

    A file that is being edited already is left as it is.  Raises RefusedError `overlay.session-stale` where the folder
    holds another state of the same file, or another platform's.
    """
    old = load_session(work, overlay) if (work / SESSION).exists() else Session(overlay, platform, ())
    known = {file.path: file for file in old.files}
    for file in files:
        there = known.get(file.path)
        if old.platform != platform or (there is not None and there.before != file.before):
            raise RefusedError(
                "overlay.session-stale",
                f"{work} holds edits of another state of {file.path}",
                hint=f"finish them (`imagebuild overlay refresh {overlay}`), or remove that folder, and begin again",
            )
    entries: dict[str, Any] = {path: _entry(file) for path, file in known.items()}
    for file in files:
        if file.path in known:
            continue
        entries[file.path] = _entry(file)
        if file.before is not None:
            atomic_write(work / BEFORE / file.path, file.before, 0o444)
        if file.now is not None:
            atomic_write(work / file.path, file.now, 0o755 if file.mode & 0o100 else 0o644)
        else:
            with io_faults(work / file.path, "making the folder of"):
                (work / file.path).parent.mkdir(parents=True, exist_ok=True)
    document = {"schema": 1, "overlay": overlay, "platform": str(platform), "files": entries}
    atomic_write(work / SESSION, document_json(document))
    return tuple(work / file.path for file in files)


def _entry(file: EditedFile) -> dict[str, Any]:
    return {"before": None if file.before is None else str(Digest.of(file.before)), "mode": file.mode}


def load_session(work: Path, overlay: str) -> Session:
    """What the work folder holds now.

    Raises InputError `overlay.no-session` (nothing was opened), `overlay.not-in-session` (a file that was not opened, so
    that nobody knows what it replaces; what editors leave behind is passed over); RefusedError `overlay.session-damaged`.
    """
    if not (work / SESSION).is_file():
        raise InputError(
            "overlay.no-session",
            f"no file of overlay {overlay} is being edited ({work})",
            hint=f"`imagebuild overlay edit {overlay} PATH` puts files there",
        )
    with io_faults(work / SESSION, "reading"):
        raw = (work / SESSION).read_bytes()
    try:
        document = load_json(raw, str(work / SESSION))
        named = {validate_path(path, str(work / SESSION)): entry for path, entry in document["files"].items()}
        platform = Platform.parse(document["platform"])
        files = tuple(_load_file(work, path, entry["before"], int(entry["mode"])) for path, entry in named.items())
    except (InputError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(work, "its session file cannot be read") from error
    unknown = [path for path in _present(work) if path not in named]
    if unknown:
        raise InputError(
            "overlay.not-in-session",
            f"{work} holds files that were not opened: {', '.join(unknown[:5])}",
            hint=f"`imagebuild overlay edit {overlay} {unknown[0]}` opens one, a new one too; or remove them",
            details={"paths": unknown[:100]},
        )
    return Session(overlay, platform, files)


def _load_file(work: Path, path: str, before: str | None, mode: int) -> EditedFile:
    data = None
    if before is not None:
        data = _read(work / BEFORE / path)
        if data is None or Digest.of(data) != Digest.parse(before):
            raise _damaged(work, f"{BEFORE}/{path} is not the file that was put there")
    return EditedFile(path, data, _read(work / path), mode)


def _read(path: Path) -> bytes | None:
    if not os.path.lexists(path):
        return None
    if path.is_symlink() or not path.is_file():
        raise InputError("overlay.not-in-session", f"{path} is no regular file any more")
    with io_faults(path, "reading"):
        return path.read_bytes()


def _present(work: Path) -> list[str]:
    out = []
    for current, folders, names in os.walk(work):
        folders[:] = sorted(name for name in folders if name not in (BEFORE, "__pycache__"))
        for name in sorted(names):
            relative = (Path(current) / name).relative_to(work).as_posix()
            if relative != SESSION and not name.endswith(_EDITORS_LEAVE):
                out.append(relative)
    return out


def _damaged(work: Path, why: str) -> RefusedError:
    return RefusedError(
        "overlay.session-damaged",
        f"the work folder {work} is damaged: {why}",
        hint="save your changes elsewhere, remove the folder, and begin again with `imagebuild overlay edit`",
    )
