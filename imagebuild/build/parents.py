"""Folders above the paths of a layer: those that the base lacks, and those that an engine would change (images.md,
Writing 5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from imagebuild.build.layer_data import image_path, inherited_xattrs
from imagebuild.build.live_base import NeedsDeeper
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Found, Kind, Unknown
from imagebuild.layer.view import MergedView, is_implied
from imagebuild.target.lock_types import SECONDS_1980, LayerItem


def missing_parents(
    view: MergedView, place: str, gone: Collection[str] = ()
) -> tuple[tuple[str, ...], tuple[int, int]]:
    """The folders above `place` that need an entry, the nearest first, and owner and group of the nearest that exists.

    `gone` are files that are taken away: a folder may stand in the place of one.  Raises RefusedError
    `overlay.path-conflict` where a file stands where a folder would be, NeedsDeeper where layers that were not read
    decide.
    """
    missing: list[str] = []
    parent = place.rpartition("/")[0]
    while parent:
        found = view.lookup(parent)
        if isinstance(found, Found):
            if found.entry.kind is Kind.DIRECTORY:
                owner = (0, 0) if is_implied(found.entry) else (found.entry.uid, found.entry.gid)
                return tuple(missing), owner
            if parent not in gone:
                raise RefusedError(
                    "overlay.path-conflict",
                    f"{image_path(place)} cannot be made: {image_path(parent)} is no folder in the base",
                    expected="a folder",
                    found=found.entry.kind.value,
                )
        if isinstance(found, Unknown):
            raise NeedsDeeper(parent)
        missing.append(parent)
        parent = parent.rpartition("/")[0]
    return tuple(missing), (0, 0)


def kept_parents(view: MergedView, paths: Iterable[str]) -> list[LayerItem]:
    """Entries for existing folders above `paths` (image paths) that are not what engines make of a folder without
    entry.

    docker and podman with an overlay driver give such a folder 0755, 0:0 and no attributes, whatever lies below, so a
    1777 or foreign-owned folder would change under a layer that only adds a file to it (ADR 11).
    """
    out: dict[str, LayerItem | None] = {}
    for path in paths:
        parent = path.lstrip("/").rpartition("/")[0]
        while parent and parent not in out:
            out[parent] = _kept(view, parent)
            parent = parent.rpartition("/")[0]
    return [item for item in out.values() if item is not None]


def _kept(view: MergedView, folder: str) -> LayerItem | None:
    found = view.lookup(folder)
    if not isinstance(found, Found) or found.entry.kind is not Kind.DIRECTORY or is_implied(found.entry):
        return None
    entry = found.entry
    xattrs = inherited_xattrs(entry)
    if (entry.mode, entry.uid, entry.gid, bool(xattrs)) == (0o755, 0, 0, False):
        return None
    time = max(entry.mtime, SECONDS_1980)
    return LayerItem(image_path(folder), "directory", "parent", entry.mode, entry.uid, entry.gid, time, xattrs=xattrs)
