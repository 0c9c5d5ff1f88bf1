"""The change kind `patch`: unified diffs within a series."""

from __future__ import annotations

from collections.abc import Sequence

from imagebuild.content.digest import git_blob_id
from imagebuild.errors import ImagebuildError, RefusedError, SeveralErrors
from imagebuild.overlay.changes import PatchChange
from imagebuild.overlay.guards import BaseFile, edit_commands, git_id_agrees, is_null_id
from imagebuild.overlay.header import check_header
from imagebuild.overlay.patch import EXECUTABLE, FilePatch, Hunk
from imagebuild.overlay.patch_apply import apply_patch
from imagebuild.overlay.patch_names import header_fields
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.series_run import OverlayRun


def apply_patch_change(run: OverlayRun, change: PatchChange, text: bytes) -> None:
    """Applies every file of a patch; each file's faults are its own."""
    try:
        patch = parse_patch(text)
        check_header(run.overlay, change.patch, header_fields(patch.header))
    except ImagebuildError as error:
        errors = error.errors if isinstance(error, SeveralErrors) else (error,)
        for one in errors:
            one.message = f"overlay {run.name}, {change.patch}: {one.message}"
        run.unreadable(errors)
        return
    for file in patch.files:
        run.at(file.path, lambda file=file: _file(run, file))  # type: ignore[misc]


def _file(run: OverlayRun, file: FilePatch) -> None:
    if file.moved:
        _move(run, file)
        return
    path = file.path
    node = run.touch(path, "patch")
    if file.created or (file.maybe_created and node is None):
        data = _apply(run, path, b"", file.hunks)
        if node is not None:
            if isinstance(node, BaseFile) and node.digest == BaseFile(data).digest:
                run.skip_applied(path)
            raise run.exists(path, node)
        run.tree.refuse_conflict(run.name, path)
        check_index_ids(run.name, file, None, data)
        run.tree.put(path, BaseFile(data, 0o755 if file.new_mode == EXECUTABLE else 0o644))
        return
    before = run.bytes_of(path, node)
    data = _apply(run, path, before.data or b"", file.hunks)
    check_index_ids(run.name, file, before.data, None if file.deleted else data)
    if not file.deleted:
        run.tree.put(path, BaseFile(data, _mode(run, file, before, path)))
    elif data:
        why = f"is deleted by a patch that leaves {len(data)} bytes of it"
        raise run.refused("overlay.patch-mismatch", path, why, edit_commands(run.name, path))
    else:
        run.tree.put(path, None)


def _apply(run: OverlayRun, path: str, before: bytes, hunks: Sequence[Hunk]) -> bytes:
    try:
        return apply_patch(before, hunks, path)
    except RefusedError as error:
        if error.code == "overlay.already-applied":
            run.skip_applied(path)
        error.message = f"overlay {run.name}: {error.message}"
        error.hint = edit_commands(run.name, path)
        error.details["overlay"] = run.name
        raise


def _move(run: OverlayRun, file: FilePatch) -> None:
    """A rename or a copy: the old path is read (and deleted by a rename), the new one is made."""
    source, target = file.old_path or file.path, file.path
    there = run.touch(target, "patch")
    if there is not None:
        raise run.exists(target, there)
    before = run.bytes_of(source, run.tree.node(source) if file.copied else run.touch(source, "patch"))
    run.tree.refuse_conflict(run.name, target)
    data = _apply(run, target, before.data or b"", file.hunks)
    check_index_ids(run.name, file, before.data, data)
    run.tree.put(target, BaseFile(data, _mode(run, file, before, target)))
    if not file.copied:
        run.tree.put(source, None)


def patched_mode(file: FilePatch, mode: int) -> int | None:
    """The permission bits after a patch to a file with `mode`; None where the patch expects others.

    git knows only whether a file is executable, and only `old mode`/`new mode` lines change that.
    """
    if file.old_mode is None or file.new_mode is None:
        return mode
    if (file.old_mode == EXECUTABLE) != bool(mode & 0o100):
        return None
    return mode | (mode & 0o444) >> 2 if file.new_mode == EXECUTABLE else mode & ~0o111


def mode_note(file: FilePatch, mode: int) -> str | None:
    """A remark where the mode in the diff's `index` line is not the file's."""
    noted = file.index_mode
    if noted is None or file.old_mode is not None or (noted == EXECUTABLE) == bool(mode & 0o100):
        return None
    return f"the diff's index line notes mode {noted:o}; the file has {mode:04o} and keeps it"


def _mode(run: OverlayRun, file: FilePatch, before: BaseFile, path: str) -> int:
    note = mode_note(file, before.mode)
    if note is not None:
        run.touched[path].notes.append(note)
    mode = patched_mode(file, before.mode)
    if mode is None:
        raise RefusedError(
            "overlay.mode-mismatch",
            f"overlay {run.name}: the patch changes the mode of {path} from {file.old_mode:o}",
            expected=f"{file.old_mode:o}",
            found=f"{before.mode:04o}",
            hint="remove the `old mode` and `new mode` lines if the mode is to stay",
            details={"overlay": run.name, "path": path},
        )
    return mode


def check_index_ids(overlay: str, file: FilePatch, before: bytes | None, after: bytes | None) -> None:
    """Compares the blob ids of the `index` line, whole or abbreviated, with the bytes before and after the patch.

    Raises RefusedError `overlay.index-mismatch`.  Ids of zeros, and sides without bytes, are not compared.
    """
    for given, data, side in ((file.old_id, before, "before"), (file.new_id, after, "after")):
        if given is None or data is None or is_null_id(given) or git_id_agrees(given, data):
            continue
        raise RefusedError(
            "overlay.index-mismatch",
            f"overlay {overlay}: {file.path} {side} the patch is not the file that the diff's index line names",
            expected=f"git blob {given}",
            found=f"git blob {git_blob_id(data)}",
            hint=edit_commands(overlay, file.path),
            details={"overlay": overlay, "path": file.path, "side": side},
        )
