"""The kinds of change within a series: file, edit, delete, symlink, env; patches and artefacts are next door."""

from __future__ import annotations

from collections.abc import Callable

from imagebuild.errors import ImagebuildError, RefusedError, clean
from imagebuild.overlay.brought import Bring, apply_artefact, bring_declared
from imagebuild.overlay.changes import (
    BlobChange,
    Change,
    DeleteChange,
    EditChange,
    EnvChange,
    FileChange,
    PatchChange,
    StageChange,
    SymlinkChange,
)
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.guards import BaseFile, edit_commands
from imagebuild.overlay.series_patches import apply_patch_change
from imagebuild.overlay.series_run import OverlayRun
from imagebuild.overlay.series_steps import EnvironmentEdit
from imagebuild.overlay.series_tree import Link

ReadMember = Callable[[Overlay, str], bytes]
"""Reads a file below an overlay's folder."""


def apply_change(run: OverlayRun, change: Change, read: ReadMember, bring: Bring = bring_declared) -> None:
    """Applies one change to the tree of `run`; faults are kept there.  A wheel changes nothing here: its files are
    part of the base that the tree is over."""
    if isinstance(change, (PatchChange, FileChange)):
        try:
            data = read(run.overlay, change.patch if isinstance(change, PatchChange) else change.file)
        except ImagebuildError as error:
            run.unreadable((error,))
            return
        if isinstance(change, PatchChange):
            apply_patch_change(run, change, data)
        else:
            run.at(change.to, lambda: _file(run, change.to, data))
    elif isinstance(change, EditChange):
        run.at(change.path, lambda: _edit(run, change))
    elif isinstance(change, DeleteChange):
        _delete(run, change)
    elif isinstance(change, SymlinkChange):
        run.at(change.path, lambda: _symlink(run, change))
    elif isinstance(change, EnvChange):
        run.environment += [EnvironmentEdit(name, value, run.name) for name, value in change.env.items()]
    elif isinstance(change, (BlobChange, StageChange)):
        try:
            files = bring(run.overlay, change, run.platform)
        except ImagebuildError as error:
            run.unreadable((error,))
            return
        for file in files:
            run.at(file.path, lambda file=file: apply_artefact(run, file))  # type: ignore[misc]


def _file(run: OverlayRun, path: str, data: bytes) -> None:
    node = run.touch(path, "file", data)
    if isinstance(node, Link):
        raise run.refused("overlay.path-conflict", path, "is a link that this series makes; it cannot be replaced")
    if node is None:
        run.tree.refuse_conflict(run.name, path)
        run.tree.put(path, BaseFile(data))
        return
    result = BaseFile(data, node.mode)
    if result.digest == node.digest:
        run.skip_applied(path)
    run.tree.put(path, result)


def _edit(run: OverlayRun, change: EditChange) -> None:
    before = run.bytes_of(change.path, run.touch(change.path, "edit"))
    data, find, new = before.data or b"", change.find.encode(), change.replace.encode()
    places = _places(data, find)
    if not places and new and len(_places(data, new)) == 1:
        run.skip_applied(change.path)
    if len(places) != 1:
        shown = clean(change.find.strip().split("\n")[0], 120)
        lines = ", ".join(str(data.count(b"\n", 0, place) + 1) for place in places[:5])
        raise RefusedError(
            "overlay.edit-ambiguous" if places else "overlay.edit-no-match",
            f"overlay {run.name}: the text to edit stands {len(places)} times in {change.path}: {shown!r}",
            expected="exactly once",
            found=f"in lines {lines}" if places else "nowhere",
            hint="take more of the lines around it into `find`" if places else edit_commands(run.name, change.path),
            details={"overlay": run.name, "path": change.path},
        )
    result = data[: places[0]] + new + data[places[0] + len(find) :]
    run.tree.put(change.path, BaseFile(result, before.mode))


def _places(data: bytes, find: bytes) -> list[int]:
    """Every place where `find` stands, overlapping ones too, at most 100."""
    out: list[int] = []
    at = data.find(find)
    while at >= 0 and len(out) < 100:
        out.append(at)
        at = data.find(find, at + 1)
    return out


def _delete(run: OverlayRun, change: DeleteChange) -> None:
    if change.path is not None:
        path = change.path
        run.at(path, lambda: _delete_path(run, path))
        return
    pattern = change.glob or ""
    found = run.tree.glob(pattern)
    if not found or (change.count is not None and len(found) != change.count):
        some = f" ({', '.join(found[:5])}{', …' if len(found) > 5 else ''})" if found else ""
        error = RefusedError(
            "overlay.glob-count",
            f"overlay {run.name}: {pattern} matches another number of paths than the overlay says",
            expected=str(change.count or "at least 1"),
            found=f"{len(found)}{some}",
            hint="look at the base's files, then correct `glob` or `count`",
            details={"overlay": run.name, "glob": pattern, "paths": found[:100]},
        )
        run.unreadable((error,))
        return
    for path in found:
        run.at(path, lambda path=path: _delete_path(run, path))  # type: ignore[misc]


def _delete_path(run: OverlayRun, path: str) -> None:
    if run.touch(path, "delete") is not None:
        run.tree.put(path, None)
    elif run.tree.is_folder(path):
        for inner in [changed for changed in run.tree.changed if changed.startswith(path + "/")]:
            run.tree.put(inner, None)
        run.tree.folders[path] = None
        run.touched[path].folder = True
    else:
        raise run.missing(path)


def _symlink(run: OverlayRun, change: SymlinkChange) -> None:
    node = run.touch(change.path, "symlink")
    if not change.to or any(ord(char) < 32 for char in change.to):
        raise run.refused("overlay.bad-path", change.path, "would be a link to an empty or unprintable path")
    if node is None:
        run.tree.refuse_conflict(run.name, change.path)
    run.tree.put(change.path, Link(change.to))
