"""Entries of layers that we write, in a few words, for tests."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import BinaryIO

from imagebuild.content.digest import Digest
from imagebuild.layer.entry import NewEntry, NewKind

TIME = 1_700_000_000
"""The time of entries that name none, seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Data that is held in memory."""

    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def sha256(self) -> Digest:
        return Digest.of(self.data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


def new_file(
    path: str,
    data: bytes = b"",
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime: int = TIME,
    xattrs: Mapping[str, bytes] = MappingProxyType({}),
) -> NewEntry:
    return NewEntry(path, NewKind.FILE, mode, uid, gid, mtime, Bytes(data), xattrs=xattrs)


def new_folder(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0, mtime: int = TIME) -> NewEntry:
    return NewEntry(path, NewKind.DIRECTORY, mode, uid, gid, mtime)


def new_link(path: str, target: str, mtime: int = TIME) -> NewEntry:
    return NewEntry(path, NewKind.SYMLINK, 0o777, mtime=mtime, link=target)


def new_whiteout(path: str, mtime: int = TIME) -> NewEntry:
    return NewEntry(path, NewKind.WHITEOUT, mtime=mtime)
