"""One overlay of a series: what it touches, between the guards' preimages and postimages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from imagebuild.content.digest import git_blob_id
from imagebuild.errors import ImagebuildError, InputError, RefusedError, SeveralErrors, UnavailableError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.document import Overlay, guards_for
from imagebuild.overlay.guards import (
    BaseFile,
    GuardState,
    Known,
    already_applied_error,
    check_postimage,
    check_preimage,
    edit_commands,
)
from imagebuild.overlay.patch import Patch, normalise
from imagebuild.overlay.patch_make import make_file_patch
from imagebuild.overlay.paths import validate_path
from imagebuild.overlay.series_steps import EnvironmentEdit, Step
from imagebuild.overlay.series_tree import Link, Node, Tree


class Skip(Exception):
    """The path has failed before, or is already as it should be."""


@dataclass(slots=True)
class Touched:
    """What is known of a path while an overlay works on it; mutable."""

    before: Node
    folder: bool = False
    guarded: bool = False
    applied: bool = False
    kinds: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class OverlayRun:
    """Collects what one overlay does to a tree; faults are kept, not raised."""

    def __init__(
        self,
        overlay: Overlay,
        tree: Tree,
        roots: Collection[str],
        platform: Platform,
        failed: set[str],
        expected: bool,
        require_guards: bool,
        known: Known | None,
    ) -> None:
        self.overlay = overlay
        self.name = overlay.name
        self.tree = tree
        self.roots = roots
        self.failed = failed
        self.expected = expected
        self.require_guards = require_guards
        self.known = known
        self.platform = platform
        self.guards = guards_for(overlay, platform)
        self.touched: dict[str, Touched] = {}
        self.errors: list[ImagebuildError] = []
        self.steps: list[Step] = []
        self.environment: list[EnvironmentEdit] = []
        self.unguarded: list[str] = []
        self.unread = False

    def finish(self) -> None:
        """Checks every postimage and records the steps."""
        for path, touched in self.touched.items():
            if path not in self.failed:
                self.finish_path(path, touched)
        if self.unread:
            return
        for path in self.guards:
            if path not in self.touched and path not in self.failed:
                self.errors.append(
                    InputError(
                        "overlay.guard-without-change",
                        f"overlay {self.name}: there is a guard for {path}, and no change touches it",
                        hint="remove the guard, or add the change that was meant",
                        details={"overlay": self.name, "path": path},
                    )
                )

    def unreadable(self, errors: Sequence[ImagebuildError]) -> None:
        """Keeps the faults of a change that could not be read, so that the paths it would touch are unknown."""
        self.errors += errors
        self.unread = True

    def at(self, path: str, work: Callable[[], None]) -> None:
        """Does the work on one path; a fault is kept, and ends the work on that path for the whole series."""
        try:
            work()
        except Skip:
            pass
        except SeveralErrors as error:
            self.failed.add(path)
            self.errors += error.errors
        except ImagebuildError as error:
            self.failed.add(path)
            self.errors.append(error)

    def touch(self, path: str, kind: str, replacement: bytes | None = None) -> Node:
        """What stands at `path` now.  The first touch checks the preimage."""
        validate_path(path, f"overlay {self.name}", self.roots)
        if path in self.failed:
            raise Skip
        touched = self.touched.get(path)
        if touched is None:
            touched = self.touched[path] = Touched(self.tree.node(path))
            self.check_before(path, touched, replacement)
        touched.kinds.append(kind)
        if touched.applied:
            raise Skip
        return self.tree.node(path)

    def check_before(self, path: str, touched: Touched, replacement: bytes | None) -> None:
        guard = self.guards.get(path)
        if guard is None:
            return
        touched.guarded = True
        before = None if isinstance(touched.before, Link) else touched.before
        state = check_preimage(self.name, path, guard, before, known=self.known, replacement=replacement)
        if state is GuardState.APPLIED:
            self.refuse_applied(path)

    def refuse_applied(self, path: str) -> None:
        """The change is there: expected, and then left alone, or refused."""
        touched = self.touched[path]
        if not self.expected or len(touched.kinds) > 1:
            before = touched.before
            raise already_applied_error(self.name, path, before.digest if isinstance(before, BaseFile) else None)
        touched.applied = True
        touched.notes.append("already applied in the base, as the target expects")

    def skip_applied(self, path: str) -> NoReturn:
        self.refuse_applied(path)
        raise Skip

    def bytes_of(self, path: str, node: Node) -> BaseFile:
        """The file at `path` with its bytes."""
        if node is None:
            raise self.missing(path)
        if isinstance(node, Link):
            raise self.refused("overlay.path-conflict", path, "is a link that this series makes; it cannot be patched")
        if node.data is None:
            raise UnavailableError(
                "overlay.preimage-unavailable",
                f"overlay {self.name}: of {path} only the digest is at hand, not the bytes",
                expected=str(node.digest),
                hint="`imagebuild lock TARGET` reads them from the base again",
                details={"overlay": self.name, "path": path},
            )
        return node

    def missing(self, path: str) -> RefusedError:
        return RefusedError(
            "overlay.path-missing",
            f"overlay {self.name}: the base has no {path}",
            hint="compare the target's base and roots with those that the overlay was made for",
            details={"overlay": self.name, "path": path},
        )

    def exists(self, path: str, found: BaseFile | Link) -> RefusedError:
        return RefusedError(
            "overlay.path-exists",
            f"overlay {self.name}: {path} was to be new, and it is there already",
            expected="absent",
            found=str(found.digest) if isinstance(found, BaseFile) else f"a link to {found.to}",
            hint=edit_commands(self.name, path),
            details={"overlay": self.name, "path": path},
        )

    def refused(self, code: str, path: str, why: str, hint: str | None = None) -> RefusedError:
        details = {"overlay": self.name, "path": path}
        return RefusedError(code, f"overlay {self.name}: {path} {why}", hint=hint, details=details)

    def finish_path(self, path: str, touched: Touched) -> None:
        node = self.tree.node(path)
        before = touched.before if isinstance(touched.before, BaseFile) else None
        after = node if isinstance(node, BaseFile) else None
        step = Step(
            self.name,
            path,
            tuple(dict.fromkeys(touched.kinds)),
            None if before is None else before.digest,
            None if after is None else after.digest,
            None if before is None or before.data is None else git_blob_id(before.data),
            None if after is None or after.data is None else git_blob_id(after.data),
            (None if before is None else before.mode, None if after is None else after.mode),
            node.to if isinstance(node, Link) else None,
            touched.folder,
            touched.guarded,
            touched.applied,
            _diff(path, before, after),
            tuple(touched.notes),
        )
        try:
            self.check_after(step, after)
        except RefusedError as error:
            self.failed.add(path)
            self.errors.append(error)
        else:
            self.steps.append(step)

    def check_after(self, step: Step, after: BaseFile | None) -> None:
        guard = self.guards.get(step.path)
        if guard is not None:
            if not step.applied:
                check_postimage(self.name, step.path, guard, after, known=self.known)
        elif step.before != step.after:
            self.unguarded.append(step.path)
            if self.require_guards:
                raise RefusedError(
                    "overlay.unguarded",
                    f"overlay {self.name}: {step.path} has no guard",
                    hint="`imagebuild lock TARGET` writes the guards that are missing; review and commit them",
                    details={"overlay": self.name, "path": step.path},
                )


def _diff(path: str, before: BaseFile | None, after: BaseFile | None) -> bytes:
    if before is None or after is None or before.data is None or after.data is None or before.data == after.data:
        return b""
    return normalise(Patch((make_file_patch(path, before.data, after.data),)))
