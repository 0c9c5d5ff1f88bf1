"""Entries in columns: what a layer of 300,000 paths is kept in, on disk and in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from imagebuild.content.digest import Digest
from imagebuild.layer.entry import Entry, Kind
from imagebuild.layer.names import bytes_of

KINDS = (Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK, Kind.HARDLINK, Kind.CHARACTER, Kind.BLOCK, Kind.FIFO)
"""Kinds by their code in a row; the order is part of the facts format."""
FILE, DIRECTORY, SYMLINK, HARDLINK, CHARACTER, BLOCK, FIFO = range(7)
NUMBERS = 6
"""Number columns of a row: mode, uid, gid, mtime, size, offset."""
NO_DIGEST = bytes(32)


class Row(NamedTuple):
    """One entry with its kind as code and its digest as 32 raw bytes (NO_DIGEST for none)."""

    kind: int
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int
    offset: int
    sha256: bytes = NO_DIGEST
    link: str = ""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    device: tuple[int, int] = (0, 0)
    head: bytes = b""


def row_of(entry: Entry) -> Row:
    return Row(
        KINDS.index(entry.kind),
        entry.mode,
        entry.uid,
        entry.gid,
        entry.mtime,
        entry.size,
        entry.offset,
        NO_DIGEST if entry.sha256 is None else bytes.fromhex(entry.sha256.hex),
        entry.link,
        entry.xattrs,
        entry.device,
        entry.head,
    )


class EntryTable(Mapping[str, Entry]):
    """A mapping from path to Entry, in path order (by bytes), whose entries are made when they are asked for.

    `numbers` holds NUMBERS columns of `len(paths)` values each, one column after another.
    """

    __slots__ = ("_rows", "devices", "heads", "kinds", "links", "numbers", "paths", "shas", "xattrs")

    def __init__(
        self,
        paths: list[str],
        kinds: bytes,
        numbers: array[int],
        shas: bytes,
        links: dict[int, str],
        xattrs: dict[int, tuple[tuple[str, bytes], ...]],
        devices: dict[int, tuple[int, int]],
        heads: dict[int, bytes],
    ) -> None:
        count = len(paths)
        if len(kinds) != count or len(numbers) != NUMBERS * count or len(shas) != 32 * count:
            raise ValueError("the columns differ in length")
        self.paths = paths
        self.kinds = kinds
        self.numbers = numbers
        self.shas = shas
        self.links = links
        self.xattrs = xattrs
        self.devices = devices
        self.heads = heads
        self._rows = dict(zip(paths, range(count), strict=True))
        if len(self._rows) != count:
            raise ValueError("a path stands twice")

    @classmethod
    def of(cls, rows: Mapping[str, Row]) -> EntryTable:
        """The table of these rows, sorted."""
        paths = sorted(rows, key=bytes_of)
        ordered = [rows[path] for path in paths]
        numbers = array("q", [row.mode for row in ordered])
        numbers.extend([row.uid for row in ordered])
        numbers.extend([row.gid for row in ordered])
        numbers.extend([row.mtime for row in ordered])
        numbers.extend([row.size for row in ordered])
        numbers.extend([row.offset for row in ordered])
        return cls(
            paths,
            bytes([row.kind for row in ordered]),
            numbers,
            b"".join([row.sha256 for row in ordered]),
            {at: row.link for at, row in enumerate(ordered) if row.link},
            {at: row.xattrs for at, row in enumerate(ordered) if row.xattrs},
            {at: row.device for at, row in enumerate(ordered) if row.device != (0, 0)},
            {at: row.head for at, row in enumerate(ordered) if row.head},
        )

    @classmethod
    def of_entries(cls, entries: Mapping[str, Entry]) -> EntryTable:
        """The entries themselves where they are a table already."""
        if isinstance(entries, cls):
            return entries
        return cls.of({path: row_of(entry) for path, entry in entries.items()})

    def _entry(self, at: int) -> Entry:
        count = len(self.paths)
        numbers = self.numbers
        kind = self.kinds[at]
        return Entry(
            self.paths[at],
            KINDS[kind],
            numbers[at],
            numbers[at + count],
            numbers[at + 2 * count],
            numbers[at + 3 * count],
            numbers[at + 4 * count],
            Digest(self.shas[32 * at : 32 * at + 32].hex()) if kind == FILE else None,
            self.links.get(at, ""),
            self.xattrs.get(at, ()),
            self.devices.get(at, (0, 0)),
            numbers[at + 5 * count],
            self.heads.get(at, b""),
        )

    def __getitem__(self, path: str) -> Entry:
        return self._entry(self._rows[path])

    def get(self, path: str, default: Any = None, /) -> Any:
        # Mapping's own raises and catches a KeyError for each path that is not here, and most are not.
        at = self._rows.get(path)
        return default if at is None else self._entry(at)

    def __contains__(self, path: object) -> bool:
        return path in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def hard_links(self) -> list[str]:
        """Paths of the entries that are hard links."""
        if HARDLINK not in self.kinds:
            return []
        return [path for path, kind in zip(self.paths, self.kinds, strict=True) if kind == HARDLINK]


def hard_links(entries: Mapping[str, Entry]) -> list[str]:
    """Paths of the entries that are hard links, whatever the mapping is."""
    if isinstance(entries, EntryTable):
        return entries.hard_links()
    return [path for path, entry in entries.items() if entry.kind is Kind.HARDLINK]
