"""Recording the edits of a session in the overlay: patches regenerated, guards of the edited paths written anew."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import ImagebuildError, InputError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import (
    BlobChange,
    Change,
    DeleteChange,
    EditChange,
    FileChange,
    PatchChange,
    SymlinkChange,
)
from imagebuild.overlay.document import FILE_NAME, Overlay
from imagebuild.overlay.editing import EditedFile, Session
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.importer import patch_slug
from imagebuild.overlay.members import read_member
from imagebuild.overlay.overlay_text import Guards, append_change, remove_change, rewrite_guards
from imagebuild.overlay.patch import EXECUTABLE, FilePatch, Patch, format_patch
from imagebuild.overlay.patch_apply import apply_patch
from imagebuild.overlay.patch_make import is_text, make_file_patch
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.paths import Glob
from imagebuild.overlay.proving import prove_guards
from imagebuild.overlay.series_changes import ReadMember
from imagebuild.overlay.series_tree import Base


@dataclass(frozen=True, slots=True)
class Refreshed:
    """An overlay after a refresh, not on disk yet: its text, the members that were made or changed, those that go, the
    guards of the whole overlay, and remarks."""

    text: str
    files: Mapping[str, bytes] = field(repr=False)
    removed: tuple[str, ...]
    guards: Guards
    notes: tuple[str, ...] = ()


class _Draft:
    """The overlay while it is changed; mutable."""

    def __init__(self, overlay: Overlay, text: str, read: ReadMember) -> None:
        self.overlay = overlay
        self.text = text
        self.changes: list[Change] = list(overlay.changes)
        self.members: dict[str, bytes] = {}
        self.removed: list[str] = []
        self.notes: list[str] = []
        self._read = read

    def member(self, name: str) -> bytes:
        return self.members[name] if name in self.members else self._read(self.overlay, name)

    def owners(self, path: str) -> list[Change]:
        return [change for change in self.changes if self._touches(change, path)]

    def _touches(self, change: Change, path: str) -> bool:
        if isinstance(change, PatchChange):
            return path in parse_patch(self.member(change.patch)).paths
        if isinstance(change, FileChange):
            return change.to == path
        if isinstance(change, DeleteChange):
            inside = change.path is not None and (path == change.path or path.startswith(change.path + "/"))
            return inside or (change.glob is not None and Glob(change.glob).matches(path))
        return isinstance(change, (EditChange, SymlinkChange, BlobChange)) and change.path == path

    def add(self, change: Change, member: str | None = None, data: bytes = b"") -> None:
        self.text = append_change(self.text, change)
        self.changes.append(change)
        if member is not None:
            self.members[member] = data

    def drop(self, change: Change, member: str) -> None:
        number = self.changes.index(change)
        self.text = remove_change(self.text, number)
        del self.changes[number]
        self.members.pop(member, None)
        self.removed.append(member)

    def free_number(self) -> int:
        found = [
            re.match(r"patches/(\d+)-", change.patch) for change in self.changes if isinstance(change, PatchChange)
        ]
        return max((int(match[1]) for match in found if match), default=0) + 1


def refresh_overlay(
    overlay: Overlay,
    text: str,
    session: Session,
    bases: Mapping[Platform, Base],
    roots: Collection[str],
    *,
    earlier: Sequence[Overlay] = (),
    read: ReadMember = read_member,
) -> Refreshed:
    """Takes the edits of `session` into `overlay`, whose overlay.yaml is `text`.

    An edited path that one patch of the overlay changes has its part of that patch made anew (header and other parts stay);
    one that a `file` change holds has that file replaced; others go into one new patch, new files in whole.  A path that
    is again as the overlay found it loses its change.  The result is applied to every platform's base behind `earlier`;
    only the guards of edited paths are written anew, the others must still hold.

    Raises InputError `overlay.refresh-mixed` for a path that `edit`, `delete`, `symlink`, `blob` or several changes touch,
    `overlay.refresh-empties` where no change would be left, `overlay.cannot-rewrite`; RefusedError `overlay.session-stale`
    where the base is not the one that the files came from; and what `apply_series` and `prove_guards` raise.
    """
    draft = _Draft(overlay, text, read)
    owned = [(file, draft.owners(file.path)) for file in session.files]
    _add_fresh(draft, [file for file, owners in owned if not owners and file.changed])
    for file, owners in owned:
        if len(owners) == 1 and isinstance(owners[0], PatchChange):
            _into_patch(draft, owners[0], file)
        elif len(owners) == 1 and isinstance(owners[0], FileChange):
            _into_file(draft, owners[0], file)
        elif owners and file.changed:
            raise _mixed(overlay.name, file.path, owners)
    edited = {file.path for file in session.files}
    kept = {path: guard for path, guard in overlay.guards.items() if path not in edited}
    draft_overlay = replace(overlay, changes=tuple(draft.changes), guards=kept)

    def member(which: Overlay, name: str) -> bytes:
        return draft.member(name) if which is draft_overlay else read(which, name)

    proved = prove_guards(draft_overlay, bases, roots, earlier=earlier, read=member)
    _check_origin(session, proved, overlay.name)
    guards = {**kept, **{path: guard for path, guard in proved.items() if path in edited}}
    same = guards == dict(overlay.guards)
    final = draft.text if same else rewrite_guards(draft.text, guards)
    return Refreshed(final, draft.members, tuple(draft.removed), guards, tuple(draft.notes))


def _into_patch(draft: _Draft, change: PatchChange, file: EditedFile) -> None:
    patch = parse_patch(draft.member(change.patch))
    mine = [one for one in patch.files if file.path in (one.old_path, one.new_path)]
    if len(mine) != 1 or mine[0].moved:
        raise _mixed(draft.overlay.name, file.path, [change])
    old = mine[0]
    if _gives(old, file):
        return
    mode_lines = old.old_mode is not None and old.new_mode is not None
    files = list(patch.files)
    at = files.index(old)
    if file.changed or mode_lines:
        if file.now is not None and not (is_text(file.now) and is_text(file.before or b"")):
            raise _mixed(draft.overlay.name, file.path, [change], "is binary now, and a patch cannot hold it")
        created_mode = EXECUTABLE if file.before is None and old.new_mode == EXECUTABLE else None
        files[at] = make_file_patch(
            file.path,
            file.before,
            file.now,
            old_mode=old.old_mode if mode_lines else None,
            new_mode=old.new_mode if mode_lines else created_mode,
        )
    else:
        del files[at]
        draft.notes.append(f"{file.path}: as the overlay finds it again; its part of {change.patch} is gone")
    if files:
        draft.members[change.patch] = format_patch(Patch(tuple(files), patch.header))
    else:
        _drop(draft, change, change.patch)


def _gives(patch: FilePatch, file: EditedFile) -> bool:
    """Whether the patch as it stands makes the edited file already, so that its text need not change."""
    if patch.created != (file.before is None) or patch.deleted != (file.now is None):
        return False
    try:
        return apply_patch(file.before or b"", patch.hunks, file.path) == (file.now or b"")
    except ImagebuildError:
        return False


def _into_file(draft: _Draft, change: FileChange, file: EditedFile) -> None:
    if file.now is not None and file.changed:
        if draft.member(change.file) != file.now:
            draft.members[change.file] = file.now
        return
    if file.changed:
        draft.add(DeleteChange(path=file.path))
    _drop(draft, change, change.file)
    draft.notes.append(f"{file.path}: {change.file} is gone")


def _drop(draft: _Draft, change: Change, member: str) -> None:
    if len(draft.changes) == 1:
        raise InputError(
            "overlay.refresh-empties",
            f"overlay {draft.overlay.name} would have no change left",
            hint="remove the overlay's folder, and its name from the targets, if that is what you mean",
        )
    draft.drop(change, member)


def _add_fresh(draft: _Draft, fresh: Sequence[EditedFile]) -> None:
    patches: list[FilePatch] = []
    for file in fresh:
        if file.now is None:
            draft.add(DeleteChange(path=file.path))
        elif file.before is None or not (is_text(file.before) and is_text(file.now)):
            member = f"files/{file.path}"
            draft.add(FileChange(member, file.path), member, file.now)
        else:
            patches.append(make_file_patch(file.path, file.before, file.now))
    if patches:
        member = f"patches/{draft.free_number():04d}-{patch_slug(patches[0].path)}.patch"
        draft.add(PatchChange(member), member, format_patch(Patch(tuple(patches))))


def _mixed(
    overlay: str,
    path: str,
    owners: Sequence[Change],
    why: str = "is touched by changes that a refresh cannot take apart",
) -> InputError:
    kinds = ", ".join(type(change).__name__.removesuffix("Change").lower() for change in owners)
    return InputError(
        "overlay.refresh-mixed",
        f"overlay {overlay}: {path} {why} ({kinds})",
        hint="take these changes of this path out of overlay.yaml by hand; the next refresh writes one patch instead",
        details={"overlay": overlay, "path": path},
    )


def _check_origin(session: Session, proved: Guards, overlay: str) -> None:
    for file in session.files:
        guard = proved.get(file.path)
        if isinstance(guard, Mapping):
            guard = guard.get(session.platform)
        if guard is None:
            continue
        before = None if file.before is None else BaseFile(file.before).digest
        if guard.preimage != (before,):
            raise RefusedError(
                "overlay.session-stale",
                f"{file.path} is not the file any more that was opened for editing",
                expected="absent" if before is None else str(before),
                found=str(guard.preimage[0] or "absent"),
                hint=f"save your changes, remove the work folder, and begin again with `imagebuild overlay edit {overlay}`",
            )


def store_refreshed(folder: Path, refreshed: Refreshed) -> tuple[Path, ...]:
    """Writes a refreshed overlay: members first, overlay.yaml after them, what is no longer named last; gives the paths
    that changed.

    A kill in between leaves the old overlay.yaml with guards that refuse, or the new one whole; the same command again
    completes either.
    """
    changed = []
    for name, data in [*refreshed.files.items(), (FILE_NAME, refreshed.text.encode("utf-8"))]:
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            atomic_write(path, data)
            changed.append(path)
    for name in refreshed.removed:
        with io_faults(folder / name, "removing"):
            (folder / name).unlink(missing_ok=True)
        changed.append(folder / name)
    return tuple(changed)
