"""What is known of one path of one layer, and what we write into a layer of our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import BinaryIO, Protocol

from imagebuild.content.digest import Digest


class Kind(str, Enum):
    """The type of a path, as the tar entry says."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"
    CHARACTER = "character-device"
    BLOCK = "block-device"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of one layer, as its last tar entry for that path says.

    `path` has no leading `/` or `./` and no trailing `/`; the root is ""; bytes that are not UTF-8 stand as surrogate
    escapes.  `mode` holds the 12 permission bits, `mtime` whole seconds since 1970 (floor), `size` bytes of data, `sha256`
    the data's digest for FILE (None otherwise).  `link` is the target as written for SYMLINK, and the normalised path of
    the target for HARDLINK.  `offset` is where the data begins in the uncompressed tar (-1 for a sparse file, whose data is
    in pieces, and for a folder that is only implied by what is in it).  `head` holds the first 16 bytes of files whose name
    ends in `.pyc` (PEP 552 header), else b"".  `xattrs` come from `SCHILY.xattr.*` PAX records.
    """

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    sha256: Digest | None = None
    link: str = ""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    device: tuple[int, int] = (0, 0)
    offset: int = 0
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """Everything that one layer says, learned from a stream whose digest was right.

    `entries` in path order (last duplicate wins, whiteout names not among them); `whiteouts` the paths that `.wh.NAME` entries hide
    (in layers below); `opaques` the folders with `.wh..wh..opq`.  `notes` are rule breaks worth reporting, as (code, path): `base.unportable`,
    `base.duplicate-entry`, `base.relative-path`.  `diff_id` is the digest of the uncompressed tar.
    """

    digest: Digest
    diff_id: Digest
    tar_size: int
    entries: Mapping[str, Entry] = field(repr=False)
    whiteouts: frozenset[str] = field(repr=False)
    opaques: frozenset[str] = field(repr=False)
    notes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A path of the merged view: its entry, and the index of the layer (0 the lowest) that holds it.

    For a HARDLINK `data` is the entry whose bytes the name shows, as of that layer (the link's own entry, of kind HARDLINK,
    where there is none: a broken link, or a target in an unread layer); else `data is entry`.
    """

    entry: Entry
    layer: int
    data: Entry


@dataclass(frozen=True, slots=True)
class Absent:
    """Proved not to be there.  `settled_by` is the layer whose whiteout, opaque marker or non-folder parent proves it, or
    None when every layer was read."""

    settled_by: int | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """No layer read so far says; layers below `above` were not read."""

    above: int


Lookup = Found | Absent | Unknown


class View(Protocol):
    """The merged view of a stack of layers, some of the lower ones perhaps unread (images.md, Reading the base)."""

    def lookup(self, path: str) -> Lookup:
        """The path itself, no link followed on any component (a parent that is a link makes it Absent)."""
        ...

    def resolve(self, path: str, *, last: bool = True) -> str | Unknown:
        """The path with links followed on every component (on the last one only with `last`), at most 40; components
        that do not exist are kept as written.  Raises RefusedError `base.symlink-loop`."""
        ...

    def children(self, path: str) -> tuple[dict[str, Found], bool]:
        """Names and nodes of a folder as far as read, and whether that list is complete."""
        ...

    def named(self, path: str) -> list[str]:
        """The paths below a folder that entries of read layers name, hidden ones too, in path order: cheap, for callers
        that look up the few whose names they want."""
        ...

    def walk(self, path: str = "") -> list[tuple[str, Found]]:
        """Every path at and below `path` that read layers show, in path order (by bytes)."""
        ...


class NewKind(str, Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    WHITEOUT = "whiteout"


class Data(Protocol):
    """The bytes of a new file; `open` gives a fresh stream each time."""

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> Digest: ...

    def open(self) -> BinaryIO: ...


@dataclass(frozen=True, slots=True)
class NewEntry:
    """One entry of a layer that we write.  `path` as in Entry, already resolved; a WHITEOUT hides `path`."""

    path: str
    kind: NewKind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    data: Data | None = None
    link: str = ""
    xattrs: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
