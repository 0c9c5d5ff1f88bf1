"""Before and after of every changed file, from what is committed beside the lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from imagebuild.build.asked import asked_paths
from imagebuild.build.contents import Contents
from imagebuild.build.derived import RECORD, derived_files
from imagebuild.build.locked import apply_locked, change_bytes
from imagebuild.errors import ImagebuildError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.patch import Hunk
from imagebuild.overlay.patch_make import is_text, make_hunks
from imagebuild.target.lock_types import LayerItem, PathFact, PlatformInputs
from imagebuild.waiver.facts import TargetFacts

SIZE_LIMIT = 4 << 20
"""Bytes of a file that is compared line by line."""


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One changed file with its bytes.  `before` and `after` are None where there is no such file (`item.preimage`, or a
    deletion, says so) and where its bytes are not at hand (`missing` says why).  `platforms` is empty for all."""

    item: LayerItem
    before: bytes | None = field(repr=False)
    after: bytes | None = field(repr=False)
    missing: str = ""
    platforms: tuple[Platform, ...] = ()

    @property
    def name(self) -> str:
        """ROOT/relative for a change, the image's path for what follows from one."""
        kind, _, name = self.item.origin.partition(":")
        return name if kind in ("change", "blob", "stage") else self.item.path

    @property
    def is_new(self) -> bool:
        return self.item.preimage is None and self.item.kind != "whiteout"

    @property
    def is_deleted(self) -> bool:
        return self.item.kind == "whiteout"

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """What changed, line by line; none where either side is not at hand or not text."""
        if self.missing or not self.is_text:
            return ()
        return make_hunks(self.before or b"", self.after or b"")

    @property
    def is_text(self) -> bool:
        return all(side is None or (len(side) <= SIZE_LIMIT and is_text(side)) for side in (self.before, self.after))


def changed_files(facts: TargetFacts, contents: Contents) -> tuple[ChangedFile, ...]:
    """Every file, deletion, binary and RECORD of the lock's layers, equal ones of several platforms as one, by path.  What
    wheels bring is told by their pins, not file by file."""
    merged: dict[tuple[object, ...], ChangedFile] = {}
    for platform in facts.lock.inputs.platforms:
        made, why = _made(facts, platform, contents)
        for item in (*platform.artefacts, *platform.changes):
            if item.origin.partition(":")[0] not in ("change", "blob", "stage", RECORD.rstrip(":")):
                continue
            key = (item.path, item.kind, item.preimage, item.postimage, item.link)
            if key in merged:
                merged[key] = replace(merged[key], platforms=(*merged[key].platforms, platform.platform))
            else:
                merged[key] = _file(item, platform, contents, made, why)
    every = len(facts.lock.inputs.platforms)
    found = (one if len(one.platforms) < every else replace(one, platforms=()) for one in merged.values())
    return tuple(sorted(found, key=lambda one: (one.item.origin.startswith(RECORD), one.name, str(one.platforms))))


def _file(
    item: LayerItem, platform: PlatformInputs, contents: Contents, made: Mapping[str, bytes], why: str
) -> ChangedFile:
    before = contents.get(item.preimage) if item.preimage is not None else None
    after = made.get(item.path) if item.kind == "file" else item.link.encode() if item.kind == "symlink" else None
    missing = ""
    if item.kind == "file" and after is None:
        missing = why or "of the file that it becomes only the digest is kept"
    elif item.kind != "whiteout" and item.preimage is not None and before is None:
        missing = "of the base's file only the digest is kept"
    return ChangedFile(item, before, after, missing, (platform.platform,))


def _made(facts: TargetFacts, platform: PlatformInputs, contents: Contents) -> tuple[dict[str, bytes], str]:
    """The bytes that the series writes on one platform, by image path, every guard checked again on the way; and why some
    are missing."""
    inputs = facts.lock.inputs
    whole = asked_paths(facts.overlays, platform.platform).whole
    out: dict[str, bytes] = {}
    try:
        applied = apply_locked(platform, inputs, facts.overlays, contents, whole, _unread)
        out.update(change_bytes(platform, applied))
        out.update(derived_files(inputs, platform, contents, _unread))
    except ImagebuildError as error:
        return out, error.message.splitlines()[0]
    return out, ""


def _unread(fact: PathFact) -> bytes:
    raise RefusedError(
        "lock.content-missing",
        f"{fact.path} of the base is not among what is committed",
        expected=str(fact.sha256),
        hint="write `content: commit` into target.yaml and lock again",
    )
