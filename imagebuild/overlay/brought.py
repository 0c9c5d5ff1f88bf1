"""What artefacts bring to single paths: blobs, and outputs of stages.

An artefact's file is known by its digest; it goes into the layer below the changes, and a later patch or edit of it
goes above. Its bytes are only looked at where such a change needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import BlobChange, StageChange
from imagebuild.overlay.document import Overlay, guards_for
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.series_run import OverlayRun
from imagebuild.overlay.series_tree import Link

NEW_MODE = 0o644


@dataclass(frozen=True, slots=True)
class BroughtFile:
    """One file that an artefact puts at `path` (ROOT/relative).  `kind` is the change's (`blob`, `stage`); `mode`
    the permission bits, None for those of the file that it replaces (`new_mode` for a new one); `data` its bytes
    where they are at hand."""

    path: str
    kind: str
    sha256: Digest
    mode: int | None = None
    data: bytes | None = field(default=None, repr=False)
    new_mode: int = NEW_MODE


Bring = Callable[[Overlay, BlobChange | StageChange, Platform], Sequence[BroughtFile]]
"""The files of one artefact for one platform."""


def bring_declared(overlay: Overlay, change: BlobChange | StageChange, platform: Platform) -> tuple[BroughtFile, ...]:
    """The files of an artefact as the overlay declares them, without their bytes: a stage's outputs are known by the
    guards that locking wrote.  Raises InputError `overlay.kind-not-supported` for a stage without them."""
    if isinstance(change, StageChange):
        return tuple(_guarded(overlay, change, path, platform) for path in change.out.values())
    if change.platforms and platform not in change.platforms:
        return ()
    return (BroughtFile(change.path, "blob", change.sha256, change.mode),)


def _guarded(overlay: Overlay, change: StageChange, path: str, platform: Platform) -> BroughtFile:
    guard = guards_for(overlay, platform).get(path)
    if guard is None or guard.postimage is None:
        raise InputError(
            "overlay.kind-not-supported",
            f"overlay {overlay.name}: what {change.dockerfile} leaves for {path} is not known here",
            expected=f"a guard for {path} with its postimage",
            found="stage",
            hint="`imagebuild lock TARGET` builds the stage and writes the guard",
        )
    return BroughtFile(path, "stage", guard.postimage)


def apply_artefact(run: OverlayRun, file: BroughtFile) -> None:
    """Puts one file into the tree of `run`.

    Raises RefusedError `overlay.artefact-order` where a change before it touched the path: artefacts lie below all
    changes, so that one would be lost or win, whatever the order says.
    """
    node = run.touch(file.path, file.kind)
    changed = run.tree.changed.get(file.path)
    if changed is not None and changed != run.tree.brought.get(file.path):
        raise RefusedError(
            "overlay.artefact-order",
            f"overlay {run.name}: {file.path} is changed by the series before the {file.kind} that brings it",
            hint=f"move the {file.kind} before the changes to that path: artefacts lie below all changes",
            details={"overlay": run.name, "path": file.path},
        )
    if isinstance(node, Link):
        raise run.refused("overlay.path-conflict", file.path, "is a link that this series makes; it cannot be replaced")
    if node is None:
        run.tree.refuse_conflict(run.name, file.path)
    mode = file.mode if file.mode is not None else file.new_mode if node is None else node.mode
    made = BaseFile(file.data, mode, file.sha256)
    if node is not None and node.digest == made.digest:
        run.skip_applied(file.path)
    run.tree.bring(file.path, made)
