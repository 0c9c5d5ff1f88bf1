"""From the items of a lock to the entries of a layer, and back to facts about them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Data, Entry, Found, Kind, NewEntry, NewKind
from imagebuild.layer.tar_writer import kept_xattrs
from imagebuild.target.lock_types import LayerItem, PathFact


@dataclass(frozen=True, slots=True)
class BytesData:
    """Bytes in memory as the data of a new file."""

    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def sha256(self) -> Digest:
        return Digest.of(self.data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


def image_path(path: str) -> str:
    """A layer's path as people read it: with a leading `/`."""
    return "/" + path


def layer_path(path: str) -> str:
    """The inverse of image_path."""
    return path.removeprefix("/")


def inherited_xattrs(entry: Entry) -> dict[str, str]:
    """The attributes that a replacement inherits (images.md, Writing 4), values in hexadecimal."""
    return {name: value.hex() for name, value in sorted(kept_xattrs(entry.xattrs))}


def fact_of(path: str, found: Found, holder: Digest | None, names: Iterable[str] = (), change: str = "") -> PathFact:
    """What the lock records of a path that the base has, or (`holder` None) the artefacts layer.  `path` without
    leading slash."""
    entry, data = found.entry, found.data
    kind = entry.kind if entry.kind is not Kind.HARDLINK else data.kind
    return PathFact(
        image_path(path),
        "present",
        holder,
        kind.value,
        entry.mode if entry.kind is not Kind.HARDLINK else data.mode,
        data.uid,
        data.gid,
        data.mtime,
        data.size,
        data.sha256,
        entry.link if entry.kind is Kind.SYMLINK else "",
        {name: value.hex() for name, value in sorted(data.xattrs)},
        data.head.hex(),
        tuple(sorted(image_path(name) for name in names)),
        change,
    )


def new_entries(items: Iterable[LayerItem], files: Mapping[str, bytes] | Mapping[str, Data]) -> list[NewEntry]:
    """The entries of a layer.  `files` gives the data of each file item by its path; data that is not in memory is
    compared while it is written.

    Raises RefusedError `build.postimage-mismatch` where the bytes are not those that the lock names: the last guard
    before anything is written.
    """
    out = []
    for item in items:
        path = layer_path(item.path)
        if item.kind == "whiteout":
            out.append(NewEntry(path, NewKind.WHITEOUT, mtime=item.mtime))
            continue
        data: Data | None = None
        if item.kind == "file":
            content = files[item.path]
            data = BytesData(content) if isinstance(content, bytes) else content
            digest = data.sha256
            if item.postimage is not None and digest != item.postimage:
                raise RefusedError(
                    "build.postimage-mismatch",
                    f"{item.path} did not come out as the lock says ({item.origin})",
                    expected=str(item.postimage),
                    found=str(digest),
                    hint="the lock is older than the overlay: imagebuild lock TARGET",
                )
        out.append(
            NewEntry(
                path,
                NewKind(item.kind),
                item.mode,
                item.uid,
                item.gid,
                item.mtime,
                data,
                item.link,
                {name: bytes.fromhex(value) for name, value in item.xattrs.items()},
            )
        )
    return out
