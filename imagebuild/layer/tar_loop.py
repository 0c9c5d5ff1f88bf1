"""The loop over the headers of one layer's tar, by the rules of images.md (Reading the base, 1, 3, 5 and 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from imagebuild.layer import headers, pax, sparse, table
from imagebuild.layer.cursor import Cursor
from imagebuild.layer.names import PATH_LIMIT, TarFault, hidden_by, is_plain, normal_path, text_of
from imagebuild.layer.table import EntryTable, Row

NAME_LIMIT = 1 << 30
"""Bytes of all names, link targets and extended attributes of a layer at most."""
_HEAD = 16
_TYPES = {
    0: table.FILE,
    ord("0"): table.FILE,
    ord("7"): table.FILE,
    ord("S"): table.FILE,
    ord("1"): table.HARDLINK,
    ord("2"): table.SYMLINK,
    ord("3"): table.CHARACTER,
    ord("4"): table.BLOCK,
    ord("5"): table.DIRECTORY,
    ord("6"): table.FIFO,
}
Capture = Callable[[str, int], bool]


class TarLoop:
    """The tar loop and what it has learned so far.  Faults are TarFault; `header` is where the entry began."""

    def __init__(
        self,
        cursor: Cursor,
        what: str,
        size_limit: int,
        entry_limit: int,
        capture: Capture | None,
        capture_limit: int,
    ) -> None:
        self._cursor = cursor
        self._what = what
        self._expand_left = size_limit
        self._entry_limit = entry_limit
        self._capture = capture
        self._capture_left = capture_limit
        self._capture_limit = capture_limit
        self._name_left = NAME_LIMIT
        self._owners: dict[bytes, tuple[int, int, int]] = {}
        self._linked: set[str] = set()
        self._retyped: set[str] = set()
        self._extended: pax.Extended | None = None
        self._long_name: bytes | None = None
        self._long_link: bytes | None = None
        self.header = 0
        self.rows: dict[str, Row] = {}
        self.whiteouts: set[str] = set()
        self.opaques: set[str] = set()
        self.notes: set[tuple[str, str]] = set()
        self.data: dict[str, bytes] = {}

    def run(self) -> None:
        """Reads entries up to the end-of-archive blocks or the end of the stream.

        Two zero blocks end the archive; what follows is hashed, and noted where it is not zero.  As every engine does,
        a stream that ends after a whole entry, or after one zero block, is read as complete; a zero block before
        another header is refused.
        """
        cursor = self._cursor
        count = 0
        while True:
            self.header = cursor.offset
            block = cursor.block()
            if block is None or block == headers.ZERO_BLOCK:
                if self._extended or self._long_name is not None or self._long_link is not None:
                    raise TarFault("base.bad-tar", "an extended header is followed by no entry")
                if block is not None and cursor.block() not in (None, headers.ZERO_BLOCK):
                    raise TarFault("base.bad-tar", "a lone zero block stands before another header")
                return
            count += 1
            if count > self._entry_limit:
                raise TarFault("base.too-many-entries", f"the layer has more than {self._entry_limit} headers")
            if not headers.checksum_is_right(block):
                raise TarFault("base.bad-tar", "the header's checksum is wrong")
            kind = block[156]
            if kind in b"xgLK":
                self._meta(kind, block)
            else:
                self._entry(kind, block)

    def _meta(self, kind: int, block: bytes) -> None:
        size = headers.check_size(headers.parse_number(block[124:136]))
        if size > pax.PAX_LIMIT:
            raise TarFault("base.bad-pax", f"an extended header of {size} bytes is longer than {pax.PAX_LIMIT}")
        data = self._cursor.take(size)
        self._cursor.pad(size)
        if kind == 0x67:
            pax.check_global(data)
            return
        if kind == 0x78:
            twice = self._extended is not None
            self._extended = pax.parse_extended(data)
        elif kind == 0x4C:
            twice = self._long_name is not None
            self._long_name = headers.text_field(data)
        else:
            twice = self._long_link is not None
            self._long_link = headers.text_field(data)
        if twice:
            raise TarFault("base.bad-tar", "one entry has two extended headers of one kind")

    def _entry(self, kind: int, block: bytes) -> None:
        code = _TYPES.get(kind)
        if code is None:
            raise TarFault("base.unsupported-entry", f"the entry type {chr(kind)!r} is not one that image-spec knows")
        extended, self._extended = self._extended, None
        long_name, self._long_name = self._long_name, None
        long_link, self._long_link = self._long_link, None
        said = extended or _SILENT
        size = headers.check_size(headers.parse_number(block[124:136])) if said.size is None else said.size
        raw = _one_of(long_name, said.path) or headers.header_name(block)
        shape = None
        if code == table.FILE and (kind == 0x53 or said.sparse):
            shape = self._shape(kind, block, said, size)
            raw = shape.name or raw
        path = self._path(raw)
        if code == table.FILE and raw.endswith(b"/"):
            # v7 had no type for folders and marked them so; a later type with that name is read in two ways.
            if kind != 0:
                raise TarFault("base.bad-path", f"the name {path!r} of a file ends in a slash")
            code = table.DIRECTORY
        hidden = hidden_by(path)
        if hidden is not None:
            if code == table.FILE:
                self._cursor.skip(size if shape is None else shape.packed)
                self._cursor.pad(size)
            marks = self.opaques if hidden[1] else self.whiteouts
            if hidden[0] in marks:
                self._twice(path)
            marks.add(hidden[0])
            return
        if path == "" and code != table.DIRECTORY:
            raise TarFault("base.bad-path", "the root is not a folder")
        if kind == 0x37:
            self.notes.add(("base.unportable", path))
        self._keep(path, self._row(code, block, said, path, size, shape, long_link))

    def _path(self, raw: bytes) -> str:
        if is_plain(raw):
            return text_of(raw[:-1] if raw.endswith(b"/") else raw)
        path = normal_path(raw)
        if raw.startswith(b"/"):
            self.notes.add(("base.relative-path", path))
        return path

    def _row(
        self,
        code: int,
        block: bytes,
        said: pax.Extended,
        path: str,
        size: int,
        shape: _Shape | None,
        long_link: bytes | None,
    ) -> Row:
        owner = self._owners.get(block[100:124])
        if owner is None:
            owner = self._owners[block[100:124]] = headers.parse_owner(block[100:124])
        mode, uid, gid = owner
        uid = uid if said.uid is None else said.uid
        gid = gid if said.gid is None else said.gid
        mtime = headers.parse_number(block[136:148]) if said.mtime is None else said.mtime
        offset = self._cursor.offset
        xattrs = said.xattrs
        self._charge(len(path) + sum(len(name) + len(value) for name, value in xattrs))
        if code == table.FILE:
            length = size if shape is None else shape.size
            digest, head = self._file(path, length, shape)
            self._cursor.pad(size)
            offset = offset if shape is None else sparse.SPARSE_OFFSET
            return Row(code, mode, uid, gid, mtime, length, offset, digest, "", xattrs, (0, 0), head)
        link = ""
        device = (0, 0)
        if code in (table.SYMLINK, table.HARDLINK):
            link = self._link(code, _one_of(long_link, said.linkpath) or headers.text_field(block[157:257]))
            self._charge(len(link))
        elif code in (table.CHARACTER, table.BLOCK):
            device = headers.device_of(block)
            if code == table.CHARACTER and device == (0, 0):
                # Unpacked onto overlayfs this is a whiteout, elsewhere a device.
                self.notes.add(("base.unportable", path))
        return Row(code, mode, uid, gid, mtime, 0, offset, table.NO_DIGEST, link, xattrs, device)

    def _link(self, code: int, raw: bytes) -> str:
        if code == table.SYMLINK:
            if not raw or len(raw) > PATH_LIMIT:
                raise TarFault("base.bad-path", f"a link's target is empty or longer than {PATH_LIMIT} bytes")
            return text_of(raw)
        path = normal_path(raw, "target of a hard link")
        if not path:
            raise TarFault("base.bad-path", "a hard link points at the root")
        self._linked.add(path)
        return path

    def _file(self, path: str, size: int, shape: _Shape | None) -> tuple[bytes, bytes]:
        wanted = self._capture is not None and self._capture(path, size)
        if wanted:
            self._capture_left -= size
            if self._capture_left < 0:
                raise TarFault(
                    "base.capture-too-large",
                    f"the files wanted of this layer are larger than {self._capture_limit} bytes in all ({path!r})",
                )
        self.data.pop(path, None)
        view = self._cursor.whole(size) if shape is None else None
        if view is not None:
            if wanted:
                self.data[path] = bytes(view)
            return hashlib.sha256(view).digest(), bytes(view[:_HEAD]) if path.endswith(".pyc") else b""
        digest = hashlib.sha256()
        head = b""
        kept = []
        for part in self._views(size, shape):
            digest.update(part)
            if len(head) < _HEAD:
                head += bytes(part[: _HEAD - len(head)])
            if wanted:
                kept.append(bytes(part))
        if wanted:
            self.data[path] = b"".join(kept)
        return digest.digest(), head if path.endswith(".pyc") else b""

    def _views(self, size: int, shape: _Shape | None) -> Iterator[memoryview]:
        if shape is None:
            return self._cursor.views(size)
        return sparse.expand(shape.regions, size, self._cursor.views)

    def _shape(self, kind: int, block: bytes, said: pax.Extended, size: int) -> _Shape:
        def more() -> bytes:
            extension = self._cursor.block()
            if extension is None:
                raise TarFault("base.bad-tar", "the tar ends inside a sparse header")
            return extension

        if kind == 0x53 and said.sparse:
            raise TarFault("base.bad-sparse", "a file is sparse in two ways at once")
        name = None
        if kind == 0x53:
            regions, real = sparse.old_regions(block, more)
            packed = size
        else:
            regions, real, name, packed = sparse.pax_regions(said.sparse, self._cursor.take, size)
        sparse.check_regions(regions, real, packed)
        # Zeros cost time, not bytes: a few headers could ask for years of hashing.
        self._expand_left -= real
        if self._expand_left < 0:
            raise TarFault("base.too-large", "the sparse files of the layer expand beyond the bound")
        return _Shape(regions, real, packed, name)

    def _keep(self, path: str, row: Row) -> None:
        if path in self._linked:
            raise TarFault("base.hardlink-order", f"{path!r} comes after a hard link to it in the same layer")
        old = self.rows.get(path)
        if old is not None:
            self._twice(path)
            if (row.kind == table.DIRECTORY) != (old.kind == table.DIRECTORY):
                self._retyped.add(path)
            if row.kind != table.FILE:
                self.data.pop(path, None)
        self.rows[path] = row

    def _twice(self, path: str) -> None:
        # docker and podman keep a list of a layer's names (tar-split) and take no layer in which one stands twice.
        self.notes.update({("base.duplicate-entry", path), ("base.unportable", path)})

    def _charge(self, size: int) -> None:
        self._name_left -= size
        if self._name_left < 0:
            raise TarFault("base.too-many-entries", f"names and attributes are longer than {NAME_LIMIT} bytes in all")

    def finish(self) -> EntryTable:
        """The entries, after the rules that need all of them.  Raises TarFault `base.entry-below-link`: engines write
        such an entry through the link, or replace the link, as the order in the tar has it."""
        rows = self.rows
        folders: set[str] = set(self.opaques)
        for path in (*rows, *self.whiteouts, *self.opaques):
            folder = path.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        for folder in folders:
            row = rows.get(folder)
            if folder in self._retyped or (row is not None and row.kind != table.DIRECTORY):
                raise TarFault("base.entry-below-link", f"{folder!r} is no folder, and entries stand below it")
        for path in self.whiteouts:
            if path in rows or path in folders:
                self.notes.add(("base.unportable", path))
        return EntryTable.of(rows)


class _Shape:
    """A sparse file: its regions, its size, the bytes of data in the tar, its name where the map gives one."""

    __slots__ = ("name", "packed", "regions", "size")

    def __init__(self, regions: list[sparse.Region], size: int, packed: int, name: bytes | None) -> None:
        self.regions = regions
        self.size = size
        self.packed = packed
        self.name = name


_SILENT = pax.Extended()


def _one_of(first: bytes | None, second: bytes | None) -> bytes | None:
    if first is not None and second is not None and first != second:
        raise TarFault("base.bad-tar", "a GNU long name and a PAX record disagree")
    return second if first is None else first
