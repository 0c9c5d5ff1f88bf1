"""What one overlay did to one path."""

from __future__ import annotations

from dataclasses import dataclass

from imagebuild.content.digest import Digest
from imagebuild.overlay.changes import Guard
from imagebuild.overlay.guards import GIT_ID_LENGTH


@dataclass(frozen=True, slots=True)
class EnvironmentEdit:
    """An environment default that an overlay asks for."""

    name: str
    value: str
    overlay: str


@dataclass(frozen=True, slots=True)
class Step:
    """One overlay's effect on one path.

    `kinds` are the changes that took part (`patch`, `file`, `edit`, `delete`, `symlink`), `before` and `after` the digests
    (None: absent, a folder or a link), `before_git` and `after_git` the blob ids where the bytes are at hand, `modes` the
    permission bits before and after.  `applied` says that the base held the postimage already, and that this was expected.
    `diff` is the normalised diff, which for an `edit` is the patch that it compiles to.
    """

    overlay: str
    path: str
    kinds: tuple[str, ...]
    before: Digest | None
    after: Digest | None
    before_git: str | None = None
    after_git: str | None = None
    modes: tuple[int | None, int | None] = (None, None)
    link: str | None = None
    folder: bool = False
    guarded: bool = False
    applied: bool = False
    diff: bytes = b""
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether the path is another one after the overlay than before."""
        return not self.applied and (
            self.before != self.after or self.modes[0] != self.modes[1] or self.link is not None or self.folder
        )

    @property
    def wants_guard(self) -> bool:
        """Whether the bytes change: a mode alone, a link at a free place and a folder have nothing that a guard could name."""
        return not self.applied and self.before != self.after

    def guard(self) -> Guard:
        """The guard that this step would have passed.  Raises InputError `overlay.bad-guard` where only the mode or
        nothing changes, since a guard names bytes."""
        return Guard(
            preimage=(self.before,),
            postimage=self.after,
            preimage_git=None if self.before_git is None else self.before_git[:GIT_ID_LENGTH],
            postimage_git=None if self.after_git is None else self.after_git[:GIT_ID_LENGTH],
        )
