"""Applying a series of overlays: a pure function from a base and overlays to what has to be written.

The whole series is worked out in memory, every guard checked before and after, every fault reported at once; nothing is
written here or anywhere before all of it is right (images.md, Guards).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.overlay.brought import Bring, bring_declared
from imagebuild.overlay.changes import Guard
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.guards import BaseFile, Known
from imagebuild.overlay.members import read_member
from imagebuild.overlay.patch import Patch, normalise
from imagebuild.overlay.patch_make import make_file_patch
from imagebuild.overlay.series_changes import ReadMember, apply_change
from imagebuild.overlay.series_run import OverlayRun
from imagebuild.overlay.series_steps import EnvironmentEdit, Step
from imagebuild.overlay.series_tree import Base, Link, Tree


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that the series makes or changes.

    `mode` holds the permission bits to write: those of the file that it replaces, 0644 (or as the patch says) for a new
    one.  `preimage` and `preimage_mode` are the base's, None for a new file.  `diff` is the normalised diff against the
    base's file, b"" where that one's bytes are not at hand or either side is new.  `overlays` in the order of the
    series.
    """

    path: str
    data: bytes
    mode: int
    preimage: Digest | None
    preimage_mode: int | None
    overlays: tuple[str, ...]
    diff: bytes = b""
    notes: tuple[str, ...] = ()

    @property
    def postimage(self) -> Digest:
        return Digest.of(self.data)


@dataclass(frozen=True, slots=True)
class DeletedPath:
    """A path of the base that is to be hidden; `folder` for one deleted with all that is in it (`preimage` None)."""

    path: str
    preimage: Digest | None
    folder: bool
    overlays: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkedPath:
    """A symbolic link to write, in place of the base's file with digest `preimage` where there is one."""

    path: str
    to: str
    preimage: Digest | None
    overlays: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BroughtPath:
    """A file that an artefact brings, to be written below the changes.  `kind` is the change's, `preimage` the
    base's digest, None for a new file."""

    path: str
    kind: str
    sha256: Digest
    mode: int
    preimage: Digest | None
    overlays: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppliedSeries:
    """What a series amounts to, each tuple in path order; `environment` and `steps` in the order of the series.

    `brought` lies below the rest: where an artefact's file is patched, its path stands in `written` too, with the
    artefact's file as preimage.  `steps` tells what each overlay did to each path: guards and lock are written from it.
    `unguarded` are the (overlay, path) pairs without a guard, `notes` remarks for people.
    """

    written: tuple[WrittenFile, ...]
    deleted: tuple[DeletedPath, ...]
    links: tuple[LinkedPath, ...]
    environment: tuple[EnvironmentEdit, ...]
    steps: tuple[Step, ...]
    unguarded: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    brought: tuple[BroughtPath, ...] = ()

    def guards(self, overlay: str) -> dict[str, Guard]:
        """The guards that were true in this run, for one overlay; paths where it changed nothing have none."""
        return {step.path: step.guard() for step in self.steps if step.overlay == overlay and step.wants_guard}


def apply_series(
    overlays: Sequence[Overlay],
    roots: Collection[str],
    base: Base,
    platform: Platform,
    *,
    expect_applied: Collection[str] = (),
    require_guards: bool = False,
    known: Known | None = None,
    read: ReadMember = read_member,
    bring: Bring = bring_declared,
) -> AppliedSeries:
    """Applies `overlays` in order to the base of one platform.

    `roots` are the target's root names; `expect_applied` the overlays of which the base may already hold postimages;
    with `require_guards` every touched path must have a guard; `known` finds expected files for the diffs in messages;
    `read` gives the bytes of an overlay's own files, `bring` the files of blobs and stages.  The files of wheels are
    part of `base`.

    Raises the one fault, or SeveralErrors of all: what `check_preimage`, `check_postimage`, `parse_patch` and
    `apply_patch` raise, and `overlay.already-applied`, `overlay.path-missing`, `overlay.path-exists`,
    `overlay.path-conflict`, `overlay.index-mismatch`, `overlay.edit-no-match`, `overlay.edit-ambiguous`,
    `overlay.glob-count`, `overlay.mode-mismatch`, `overlay.artefact-order`, `overlay.unguarded` (RefusedError);
    `overlay.unknown-root`, `overlay.bad-path`, `overlay.kind-not-supported`, `overlay.guard-without-change`
    (InputError); `overlay.preimage-unavailable` (UnavailableError) where a file to patch is known by its digest only.
    A path that failed is not looked at again by later overlays, so one fault is reported once.
    """
    tree = Tree(base)
    errors: list[ImagebuildError] = []
    failed: set[str] = set()
    steps: list[Step] = []
    environment: list[EnvironmentEdit] = []
    unguarded: list[tuple[str, str]] = []
    for overlay in overlays:
        run = OverlayRun(overlay, tree, roots, platform, failed, overlay.name in expect_applied, require_guards, known)
        for change in overlay.changes:
            apply_change(run, change, read, bring)
        run.finish()
        errors += run.errors
        steps += run.steps
        environment += run.environment
        unguarded += [(overlay.name, path) for path in run.unguarded]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SeveralErrors(errors)
    written, deleted, links, notes = _outcome(tree, base, steps)
    return AppliedSeries(
        written,
        deleted,
        links,
        tuple(environment),
        tuple(steps),
        tuple(unguarded),
        (*notes, *_environment_notes(environment)),
        _brought(tree, base, steps),
    )


def _brought(tree: Tree, base: Base, steps: Sequence[Step]) -> tuple[BroughtPath, ...]:
    out = []
    for path in sorted(tree.brought, key=lambda path: path.encode()):
        file, before = tree.brought[path], base.read(path)
        done = [step for step in steps if step.path == path]
        kind = next(kind for step in reversed(done) for kind in reversed(step.kinds) if kind in ("blob", "stage"))
        names = tuple(dict.fromkeys(step.overlay for step in done))
        out.append(BroughtPath(path, kind, file.digest, file.mode, None if before is None else before.digest, names))
    return tuple(out)


def _outcome(
    tree: Tree, base: Base, steps: Sequence[Step]
) -> tuple[tuple[WrittenFile, ...], tuple[DeletedPath, ...], tuple[LinkedPath, ...], list[str]]:
    written: list[WrittenFile] = []
    deleted: list[DeletedPath] = []
    links: list[LinkedPath] = []
    notes: list[str] = []
    by_path: dict[str, list[Step]] = {}
    for step in steps:
        if step.changes:
            by_path.setdefault(step.path, []).append(step)
    for path in sorted(tree.changed, key=lambda path: path.encode()):
        done = by_path.get(path, [])
        names = tuple(dict.fromkeys(step.overlay for step in done))
        node, before = tree.changed[path], tree.below(path)
        preimage = None if before is None else before.digest
        if isinstance(node, Link):
            links.append(LinkedPath(path, node.to, preimage, names))
        elif node is None:
            if before is not None and not tree.under_deleted(path):
                deleted.append(DeletedPath(path, preimage, False, names))
            elif before is None and done:
                notes.append(f"{path}: added and deleted again by the series; nothing is written")
        elif node == tree.brought.get(path):
            continue
        elif before is not None and (before.digest, before.mode) == (node.digest, node.mode):
            notes.append(f"{path}: the series ends where it began; nothing is written")
        else:
            assert node.data is not None
            remarks = tuple(note for step in done for note in step.notes)
            mode = None if before is None else before.mode
            diff = _diff(path, before, node.data)
            written.append(WrittenFile(path, node.data, node.mode, preimage, mode, names, diff, remarks))
    for folder in (folder for folder in tree.folders if tree.changed.get(folder) is None):
        names = tuple(dict.fromkeys(step.overlay for step in by_path.get(folder, [])))
        deleted.append(DeletedPath(folder, None, True, names))
    deleted.sort(key=lambda item: item.path.encode())
    return tuple(written), tuple(deleted), tuple(links), notes


def _diff(path: str, before: BaseFile | None, after: bytes) -> bytes:
    if before is None or before.data is None or before.data == after:
        return b""
    return normalise(Patch((make_file_patch(path, before.data, after),)))


def _environment_notes(edits: Sequence[EnvironmentEdit]) -> list[str]:
    last: dict[str, EnvironmentEdit] = {}
    notes = []
    for edit in edits:
        before = last.get(edit.name)
        if before is not None and before.value != edit.value:
            notes.append(
                f"{edit.name}: overlay {edit.overlay} sets {edit.value!r} over {before.value!r} of overlay {before.overlay}"
            )
        last[edit.name] = edit
    return notes
