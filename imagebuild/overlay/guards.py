"""Guards: what a path must hold before an overlay touches it, and what it must hold afterwards (images.md, Guards)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from imagebuild.content.digest import Digest, git_blob_id
from imagebuild.errors import RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import ABSENT, Guard
from imagebuild.overlay.patch_make import show_diff

GIT_ID_LENGTH = 10
"""Digits of the blob ids that we write, as git shortens them in a large repository."""

Known = Callable[[Digest], bytes | None]
"""Finds bytes by their digest where they are at hand (the committed content folder, the cache); None where not."""


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A regular file of the base, or of the series so far.

    `mode` holds the 12 permission bits.  `data` is None where only the facts are at hand (a file that is replaced or
    deleted whole need not be read); then `sha256` must be given.  Where both are given they must agree: RefusedError
    `content.digest-mismatch`.
    """

    data: bytes | None
    mode: int = 0o644
    sha256: Digest | None = None

    def __post_init__(self) -> None:
        if self.data is None and self.sha256 is None:
            raise ValueError("a BaseFile needs its data or its digest")
        if self.data is None:
            return
        found = Digest.of(self.data)
        if self.sha256 is None:
            object.__setattr__(self, "sha256", found)
        elif self.sha256 != found:
            raise RefusedError(
                "content.digest-mismatch",
                "a base file does not have the digest that stands for it",
                expected=str(self.sha256),
                found=str(found),
            )

    @property
    def digest(self) -> Digest:
        assert self.sha256 is not None
        return self.sha256


class GuardState(str, Enum):
    """What was found where a guard's preimage was expected."""

    MATCHES = "matches"
    APPLIED = "already-applied"


def word(digest: Digest | None) -> str:
    """A digest, or `absent`, as guards write it."""
    return ABSENT if digest is None else str(digest)


def git_id_agrees(given: str, data: bytes) -> bool:
    """Whether a blob id of a diff or guard, whole or abbreviated, is that of `data`.

    40 digits or fewer are git's usual sha1; more are those of a repository with `extensions.objectFormat=sha256`.
    """
    if len(given) > 40:
        found = hashlib.sha256(b"blob %d\0" % len(data) + data).hexdigest()
    else:
        found = git_blob_id(data)
    return found.startswith(given.lower())


def is_null_id(given: str) -> bool:
    """Only zeros: git's word for *no such blob*, or *not computed*."""
    return set(given) == {"0"}


def make_guard(before: BaseFile | None, after: bytes | None) -> Guard:
    """The guard for one change, both sides at hand.  Raises InputError `overlay.bad-guard` where nothing changes."""
    data = None if before is None else before.data
    return Guard(
        preimage=(None if before is None else before.digest,),
        postimage=None if after is None else Digest.of(after),
        preimage_git=None if data is None else git_blob_id(data)[:GIT_ID_LENGTH],
        postimage_git=None if after is None else git_blob_id(after)[:GIT_ID_LENGTH],
    )


def join_guards(guards: Mapping[Platform, Guard]) -> Guard | Mapping[Platform, Guard]:
    """One guard where all platforms agree, else one for each."""
    every = list(guards.values())
    return every[0] if all(guard == every[0] for guard in every) else dict(sorted(guards.items()))


def edit_commands(overlay: str, path: str) -> str:
    """How to go on after a mismatch."""
    return (
        f"`imagebuild overlay edit {overlay} {path}` puts the file that is there into a work folder; make the change "
        f"again, then `imagebuild overlay refresh {overlay}`"
    )


def check_preimage(
    overlay: str,
    path: str,
    guard: Guard,
    found: BaseFile | None,
    *,
    known: Known | None = None,
    replacement: bytes | None = None,
) -> GuardState:
    """Compares what stands at `path` with the guard.

    A match of one of the accepted preimages (and of `mode`, where given) is MATCHES; found equal to the postimage is
    APPLIED, which the caller reports, and refuses unless the target expects it.  Anything else raises RefusedError:
    `overlay.preimage-mismatch`, `overlay.path-missing`, `overlay.path-exists`, `overlay.mode-mismatch` or
    `overlay.git-id-mismatch`, with both digests, the way to go on and, where text and at hand, the difference: from an
    expected file (`known`), else to the file that the overlay would put there (`replacement`).
    """
    digest = None if found is None else found.digest
    if digest in guard.preimage:
        _check_mode(overlay, path, guard, found)
        _check_git_id(
            overlay,
            path,
            "preimage_git",
            guard.preimage_git,
            None if found is None else found.data,
            len(guard.preimage) == 1,
        )
        return GuardState.MATCHES
    if digest == guard.postimage:
        return GuardState.APPLIED
    expected = " or ".join(word(one) for one in guard.preimage)
    details = {
        "overlay": overlay,
        "path": path,
        "preimages": [word(one) for one in guard.preimage],
        "postimage": word(guard.postimage),
        "already_applied": False,
    }
    if found is None:
        raise RefusedError(
            "overlay.path-missing",
            f"overlay {overlay}: the base has no {path}",
            expected=expected,
            found=ABSENT,
            hint="compare the target's base and roots with those that the overlay was made for",
            details=details,
        )
    if guard.preimage == (None,):
        raise RefusedError(
            "overlay.path-exists",
            f"overlay {overlay}: {path} was to be new, and the base has it already",
            expected=ABSENT,
            found=str(digest),
            hint=edit_commands(overlay, path),
            details=details,
        )
    diff, label = _difference(path, guard, found, known, replacement)
    if diff is not None:
        details["diff"] = diff
    shown = "" if diff is None else f"; {label}:\n{_head(diff)}"
    raise RefusedError(
        "overlay.preimage-mismatch",
        f"overlay {overlay}: {path} is not the file that this overlay was made for, nor the one that it makes{shown}",
        expected=expected,
        found=str(digest),
        hint=edit_commands(overlay, path),
        details=details,
    )


def _difference(
    path: str, guard: Guard, found: BaseFile, known: Known | None, replacement: bytes | None
) -> tuple[str | None, str]:
    for digest in guard.preimage:
        expected = None if digest is None or known is None else known(digest)
        if expected is not None and found.data is not None:
            return show_diff(path, expected, found.data), "the expected file against the one found"
    return show_diff(path, found.data, replacement), "the file found against the overlay's"


def _head(diff: str, lines: int = 14, width: int = 100) -> str:
    """The beginning of a diff: a message is bounded, the whole stands in the details."""
    every = diff.split("\n")
    more = [f"… ({len(every) - lines} more lines)"] if len(every) > lines else []
    return "\n".join([f"  {line[:width]}" for line in every[:lines]] + more)


def _check_mode(overlay: str, path: str, guard: Guard, found: BaseFile | None) -> None:
    if guard.mode is not None and found is not None and found.mode != guard.mode:
        raise RefusedError(
            "overlay.mode-mismatch",
            f"overlay {overlay}: {path} has other permission bits than its guard says",
            expected=f"{guard.mode:04o}",
            found=f"{found.mode:04o}",
            hint=f"correct or remove `mode` in the guard of overlay {overlay}",
            details={"overlay": overlay, "path": path},
        )


def _check_git_id(overlay: str, path: str, key: str, given: str | None, data: bytes | None, single: bool) -> None:
    if given is None or data is None or not single or git_id_agrees(given, data):
        return
    raise RefusedError(
        "overlay.git-id-mismatch",
        f"overlay {overlay}: the guard of {path} contradicts itself: the sha256 is right, {key} is another file's",
        expected=given,
        found=git_blob_id(data),
        hint=f"correct or remove {key} in the guard of overlay {overlay}",
        details={"overlay": overlay, "path": path},
    )


def check_postimage(
    overlay: str, path: str, guard: Guard, result: BaseFile | None, *, known: Known | None = None
) -> None:
    """Raises RefusedError `overlay.postimage-mismatch` (or `overlay.git-id-mismatch`) where an overlay makes other bytes
    than its guard says."""
    digest = None if result is None else result.digest
    if digest == guard.postimage:
        data = None if result is None else result.data
        _check_git_id(overlay, path, "postimage_git", guard.postimage_git, data, True)
        return
    details = {"overlay": overlay, "path": path, "postimage": word(guard.postimage)}
    expected = None if guard.postimage is None or known is None else known(guard.postimage)
    diff = None if result is None else show_diff(path, expected, result.data)
    if diff is not None:
        details["diff"] = diff
    raise RefusedError(
        "overlay.postimage-mismatch",
        f"overlay {overlay}: the changes to {path} give another file than its guard says",
        expected=word(guard.postimage),
        found=word(digest),
        hint=f"if the changes are meant so, write the guards anew: `imagebuild overlay edit {overlay} {path}`, then "
        f"`imagebuild overlay refresh {overlay}`",
        details=details,
    )


def already_applied_error(overlay: str, path: str, digest: Digest | None) -> RefusedError:
    """The refusal for a change that is there already (never undone, never done twice)."""
    return RefusedError(
        "overlay.already-applied",
        f"overlay {overlay}: {path} already is what the overlay makes of it",
        expected="the file before the change",
        found=f"{word(digest)}, the file after it",
        hint=f"take {overlay} out of the target's overlays, or name it under `expect_applied` there",
        details={"overlay": overlay, "path": path, "already_applied": True},
    )
