"""One file of an imported diff against the base: does it fit, where, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from imagebuild.content.digest import git_blob_id
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.overlay.guards import BaseFile, git_id_agrees, is_null_id
from imagebuild.overlay.patch import EXECUTABLE, FilePatch
from imagebuild.overlay.patch_apply import (
    HunkReport,
    HunkState,
    already_applied,
    apply_patch,
    mismatch,
    place_file,
    signed,
)
from imagebuild.overlay.series_patches import mode_note, patched_mode


class FileState(str, Enum):
    """How one file of a diff fares."""

    FITS = "fits"
    OFFSETS = "fits-at-offsets"
    EXCLUDED = "excluded"
    MISSING = "missing"
    EXISTS = "exists"
    OTHER_FILE = "other-file"
    MISMATCH = "mismatch"
    APPLIED = "already-applied"
    AMBIGUOUS = "several-roots"


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file of a diff: `diff_path` as the diff names it, `path` as ROOT/relative where a root holds it; a report for
    each hunk as far as a base file is there.  `error` is why the import refuses, None where it does not."""

    diff_path: str
    path: str | None
    state: FileState
    hunks: tuple[HunkReport, ...] = ()
    error: ImagebuildError | None = None
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        """The JSON form, for `details` and `--json`."""
        return {
            "diff_path": self.diff_path,
            "path": self.path,
            "state": self.state.value,
            "hunks": [
                {"hunk": r.number, "line": r.start, "state": r.state.value, "offset": r.offset, "report": r.describe()}
                for r in self.hunks[:200]
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Placed:
    """A file of a diff that fits the base: the patch at its true positions, and both sides."""

    report: FileReport
    patch: FilePatch
    before: BaseFile | None
    after: bytes | None
    mode: int


def would_apply(hunks: Sequence[HunkReport]) -> str | None:
    """`would apply at offsets -6 and -56`, or None where some hunk does not fit."""
    if not hunks or any(hunk.state not in (HunkState.EXACT, HunkState.OFFSET) for hunk in hunks):
        return None
    offsets = [hunk.offset for hunk in hunks]
    if not any(offsets):
        return "would apply exactly"
    words = [signed(offset) for offset in offsets]
    if len(words) == 1:
        return f"would apply at offset {words[0]}"
    shown = words if len(words) <= 8 else [*words[:7], f"{len(words) - 7} more"]
    return f"would apply at offsets {', '.join(shown[:-1])} and {shown[-1]}"


def place(
    diff_path: str, file: FilePatch, before: BaseFile | None, target: BaseFile | None, check_ids: bool
) -> Placed | FileReport:
    """Fits one file of a diff, its paths mapped already, to the base.

    `before` is the base's file at the old path, `target` the one at the new path where that differs or is to be new.
    With `check_ids` the blob ids of the diff's `index` line must be those of the base's file and of the result.
    """
    path = file.path
    if (file.created or file.moved) and target is not None:
        return _exists(diff_path, file, target)
    if file.created or (file.maybe_created and before is None):
        created = replace(file, old_path=None) if file.maybe_created else file
        after = apply_patch(b"", created.hunks, path)
        wrong = _wrong_result(diff_path, file, after, ()) if check_ids else None
        created_mode = 0o755 if file.new_mode == EXECUTABLE else 0o644
        report = FileReport(diff_path, path, FileState.FITS)
        return wrong or Placed(report, created, None, after, created_mode)
    if before is None:
        return FileReport(diff_path, path, FileState.MISSING)
    if before.data is None:
        raise UnavailableError(
            "overlay.preimage-unavailable",
            f"{path}: only the digest of the base's file is at hand, not its bytes",
            expected=str(before.digest),
            hint="import against the target's base itself, not against a lock",
        )
    data = before.data
    located = place_file(data, file)
    mode_said = mode_note(file, before.mode)
    known = check_ids and file.old_id is not None and not is_null_id(file.old_id)
    if known and file.old_id is not None and not git_id_agrees(file.old_id, data):
        return _other_file(diff_path, file, data, located.reports, mode_said)
    loose = next((number for number, hunk in enumerate(file.hunks, 1) if not hunk.old_count and data), None)
    if loose is not None and not known:
        error = RefusedError(
            "overlay.patch-no-context",
            f"{path}: hunk {loose} only adds lines, with no context to tell where, and no blob id says which file is meant",
            hint="make the diff with context (`diff -U3`), or with git",
        )
        return FileReport(diff_path, path, FileState.MISMATCH, located.reports, error)
    if located.hunks is None:
        applied = already_applied(data, file.hunks) or all(r.state is HunkState.APPLIED for r in located.reports)
        state = FileState.APPLIED if applied else FileState.MISMATCH
        return FileReport(diff_path, path, state, located.reports, mismatch(path, located.reports, applied))
    moved = replace(file, hunks=located.hunks)
    after = apply_patch(data, moved.hunks, path)
    wrong = _wrong_result(diff_path, file, after, located.reports) if check_ids and not file.deleted else None
    if wrong is not None:
        return wrong
    if file.deleted and after:
        why = f"{path}: the diff deletes the file, and {len(after)} bytes of the base's file are not in the diff"
        error = RefusedError("overlay.patch-mismatch", why, hint="make the diff against the base's own file")
        return FileReport(diff_path, path, FileState.MISMATCH, located.reports, error)
    mode = patched_mode(file, before.mode)
    if mode is None:
        error = RefusedError(
            "overlay.mode-mismatch",
            f"{path}: the diff changes the mode from {file.old_mode:o}",
            expected=f"{file.old_mode:o}",
            found=f"{before.mode:04o}",
            hint="remove the `old mode` and `new mode` lines if the mode is to stay",
        )
        return FileReport(diff_path, path, FileState.MISMATCH, located.reports, error)
    notes = [f"{path}: {mode_said}"] if mode_said is not None else []
    if located.moved:
        offsets = ", ".join(signed(report.offset) for report in located.reports)
        notes.append(f"{path}: the hunks were found at offsets {offsets}; the patch holds the true positions")
    state = FileState.OFFSETS if located.moved else FileState.FITS
    report = FileReport(diff_path, path, state, located.reports, notes=tuple(notes))
    return Placed(report, moved, before, None if file.deleted else after, mode)


def _exists(diff_path: str, file: FilePatch, target: BaseFile) -> FileReport:
    path = file.path
    if file.created and target.data == apply_patch(b"", file.hunks, path):
        error = RefusedError(
            "overlay.already-applied", f"{path}: the base has this very file", hint="leave it out with --exclude"
        )
        return FileReport(diff_path, path, FileState.APPLIED, error=error)
    error = RefusedError(
        "overlay.path-exists",
        f"{path}: the diff makes a new file, and the base has one there",
        expected="absent",
        found=str(target.digest),
        hint="make the diff against the base's own file",
        details={"path": path},
    )
    return FileReport(diff_path, path, FileState.EXISTS, error=error)


def _other_file(
    diff_path: str, file: FilePatch, data: bytes, reports: tuple[HunkReport, ...], mode_said: str | None
) -> FileReport:
    """The base's file is not the one that the `index` line names."""
    path = file.path
    notes = () if mode_said is None else (f"{path}: {mode_said}",)
    if file.new_id and not is_null_id(file.new_id) and git_id_agrees(file.new_id, data):
        error = mismatch(path, reports, True)
        return FileReport(diff_path, path, FileState.APPLIED, reports, error)
    would = would_apply(reports)
    if would is not None:
        outlook = (f"; its hunks {would}" if file.hunks else "") + (f" ({mode_said})" if mode_said else "")
        hint = (
            "make the diff against the base's own file; or, to take it at these places, remove its `index` line from "
            "the diff and review the result"
        )
    else:
        failed = next(r for r in reports if r.state not in (HunkState.EXACT, HunkState.OFFSET))
        outlook, hint = f"; {failed.describe()}", "make the diff against the base's own file"
    error = RefusedError(
        "overlay.index-mismatch",
        f"{path} of the base is not the file that the diff was made against{outlook}",
        expected=f"git blob {file.old_id}",
        found=f"git blob {git_blob_id(data)}",
        hint=hint,
        details={"path": path, "offsets": [r.offset for r in reports], "side": "before"},
    )
    return FileReport(diff_path, path, FileState.OTHER_FILE, reports, error, notes)


def _wrong_result(diff_path: str, file: FilePatch, after: bytes, reports: tuple[HunkReport, ...]) -> FileReport | None:
    """The diff gives another file than its `index` line names: it was edited, or cut."""
    if not file.new_id or is_null_id(file.new_id) or git_id_agrees(file.new_id, after):
        return None
    error = RefusedError(
        "overlay.index-mismatch",
        f"{file.path}: the diff does not give the file that its index line names; it was changed after it was made",
        expected=f"git blob {file.new_id}",
        found=f"git blob {git_blob_id(after)}",
        hint="make the diff again; or remove its `index` line and review the result",
        details={"path": file.path, "side": "after"},
    )
    return FileReport(diff_path, file.path, FileState.OTHER_FILE, reports, error)
