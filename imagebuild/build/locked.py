"""The bytes of a locked build: the series applied again to what the lock keeps of the base."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from imagebuild.build.contents import Contents
from imagebuild.build.derived import SBOM
from imagebuild.build.wanted import describe_wanted, differences
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Kind
from imagebuild.overlay.brought import Bring, bring_declared
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.series import AppliedSeries, apply_series
from imagebuild.overlay.series_tree import MemoryBase, escape
from imagebuild.target.document import Target
from imagebuild.target.lock_types import Inputs, Lock, PathFact, PlatformInputs

ReadBase = Callable[[PathFact], bytes]
"""Fetches a base file that is in neither the content folder nor the cache, from the layer that holds it."""


def stale_parts(lock: Lock, target: Target, overlays: Sequence[Overlay]) -> list[str]:
    """In words, what the files of the day ask for that the lock does not say; [] for a current lock."""
    inputs = lock.inputs
    out = []
    if inputs.target != target.name:
        out.append("the target's name has changed")
    if inputs.base != base_name(target) or inputs.base_digest != target.base.digest:
        out.append("the base has changed")
    out += differences(inputs.wanted, describe_wanted(target, overlays))
    return out


def base_name(target: Target) -> str:
    """The base as the target names it, without the digest (images.md, Writing 11: base.name)."""
    text = str(target.base)
    return text.partition("@sha256:")[0]


def refuse_stale(lock: Lock | None, target: Target, overlays: Sequence[Overlay], path: Path) -> Lock:
    """The lock where it is there and current.  Raises RefusedError `lock.missing` or `lock.stale` (exit 1)."""
    if lock is None:
        raise RefusedError(
            "lock.missing", f"{target.name} has no lock", expected=str(path), hint=f"imagebuild lock {target.name}"
        )
    parts = stale_parts(lock, target, overlays)
    if parts:
        raise RefusedError(
            "lock.stale",
            f"the lock of {target.name} is older than its files: " + "; ".join(parts),
            hint=f"imagebuild lock {target.name}",
            details={"file": str(path), "stale": parts},
        )
    return lock


def link_bytes(text: str) -> bytes:
    """A link's text as the bytes that its guard is over, as git has them."""
    return text.encode("utf-8", "surrogateescape")


class LockedBase(MemoryBase):
    """What a lock keeps of a base: files, and the folders that are deleted whole, whose files it does not list."""

    def __init__(self, files: Mapping[str, BaseFile | bytes], folders: Sequence[str]) -> None:
        super().__init__(files)
        self._below = {f"{escape(folder)}/**": f"{folder}/." for folder in folders}

    def glob(self, pattern: str) -> Sequence[str]:
        """As in MemoryBase; what is asked for below a whole folder is one name that stands for all."""
        whole = self._below.get(pattern)
        return [whole] if whole is not None else super().glob(pattern)


def locked_base(platform: PlatformInputs, contents: Contents, whole: frozenset[str], read: ReadBase) -> MemoryBase:
    """The part of the base that the series asked for when it was locked.  Bytes are there for the paths in `whole` only."""
    files: dict[str, BaseFile | bytes] = {}
    folders = []
    for fact in platform.facts:
        if not fact.change or fact.state != "present":
            continue
        if fact.kind == Kind.DIRECTORY.value:
            folders.append(fact.change)
        if fact.kind == Kind.SYMLINK.value:
            files[fact.change] = BaseFile(link_bytes(fact.link), 0o777)
        if fact.sha256 is None:
            continue
        data = None
        if fact.change in whole:
            data = contents.get(fact.sha256)
            if data is None:
                data = read(fact)
                contents.put(data)
        files[fact.change] = BaseFile(data, fact.mode, fact.sha256)
    return LockedBase(files, folders)


def apply_locked(
    platform: PlatformInputs,
    inputs: Inputs,
    overlays: Sequence[Overlay],
    contents: Contents,
    whole: frozenset[str],
    read: ReadBase,
    bring: Bring = bring_declared,
) -> AppliedSeries:
    """The series on the locked base, every guard checked again; `bring` gives the files of blobs.  Raises as apply_series."""
    return apply_series(
        overlays,
        [root.name for root in platform.roots],
        locked_base(platform, contents, whole, read),
        platform.platform,
        expect_applied=inputs.wanted.get("expect_applied", ()),
        known=contents.get,
        bring=bring,
    )


def change_bytes(platform: PlatformInputs, applied: AppliedSeries) -> dict[str, bytes]:
    """Bytes of the files that the series writes, by image path.

    Raises RefusedError `lock.stale` where the series leaves other paths than the lock lists.
    """
    items = {
        item.origin.removeprefix("change:"): item for item in platform.changes if item.origin.startswith("change:")
    }
    made: set[str] = {file.path for file in applied.written}
    made |= {item.path for item in applied.deleted} | {link.path for link in applied.links}
    if made != set(items):
        odd = sorted(made ^ set(items))
        raise RefusedError(
            "lock.stale",
            f"the series on {platform.platform} touches other paths than the lock lists: " + ", ".join(odd[:5]),
            hint="imagebuild lock TARGET",
        )
    return {items[file.path].path: file.data for file in applied.written}


def patch_content(inputs: Inputs) -> dict[Digest, str]:
    """The part of `wanted_content` that no layer of the base holds, compiled patches and SBOMs: committed even with
    `content: cache`."""
    out: dict[Digest, str] = {}
    for platform in inputs.platforms:
        for item in platform.changes:
            if item.patch is not None:
                out[item.patch] = f"the compiled patch of {item.path}"
            elif item.origin.startswith(SBOM) and item.postimage is not None:
                out[item.postimage] = item.path
    return out


def wanted_content(
    inputs: Inputs, documents: Mapping[Digest, str], whole: Mapping[str, frozenset[str]]
) -> dict[Digest, str]:
    """What the committed content folder must hold: documents of the base, files that are patched, RECORDs, SBOMs."""
    out = {**documents, **patch_content(inputs)}
    for platform in inputs.platforms:
        needed = whole[str(platform.platform)]
        for fact in platform.facts:
            if fact.sha256 is not None and fact.change in needed:
                out[fact.sha256] = fact.path
        for item in platform.changes:
            if item.patch is not None and item.preimage is not None:
                out[item.preimage] = item.path
    return out
