"""Tar streams for stand-in bases: one fixed byte sequence for one list of items.

Written apart from `imagebuild.layer`, so that what reads our bases was not written by the same hand as what made them.
USTAR headers (POSIX 1003.1-1988) with a PAX header (POSIX 1003.1-2001) only where a field does not fit.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = 512
CHUNK = 1 << 20
REGULAR, HARDLINK, SYMLINK, DIRECTORY = b"0", b"1", b"2", b"5"


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a base's layer.

    `path` has no leading or trailing `/` (also `.wh.NAME`: it is written as it stands); `type` one of the USTAR type
    flags above; `mode` the 12 permission bits; `mtime` None for the layer's own time; `size` and `open` the data of a
    regular file; `link` the target of a link; `xattrs` become `SCHILY.xattr.*` records.
    """

    path: str
    type: bytes = REGULAR
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int | None = None
    size: int = 0
    open: Callable[[], BinaryIO] | None = None
    link: str = ""
    xattrs: tuple[tuple[str, bytes], ...] = ()


def file_item(path: str, data: bytes, mode: int = 0o644) -> Item:
    """A regular file whose bytes are at hand."""
    return Item(path, REGULAR, mode, size=len(data), open=lambda: io.BytesIO(data))


def folder_item(path: str, mode: int = 0o755) -> Item:
    return Item(path, DIRECTORY, mode)


def link_item(path: str, target: str) -> Item:
    return Item(path, SYMLINK, 0o777, link=target)


def with_parents(items: Iterable[Item]) -> Iterator[Item]:
    """The items, each after the folders above it (0755, root) that no earlier item named, as engines store a
    container's changes."""
    seen: set[str] = set()
    for item in items:
        parts = item.path.split("/")
        for depth in range(1, len(parts)):
            parent = "/".join(parts[:depth])
            if parent not in seen:
                seen.add(parent)
                yield folder_item(parent)
        if item.path in seen and item.type == DIRECTORY:
            continue
        seen.add(item.path)
        yield item


def _octal(value: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, value)


def _header(name: bytes, prefix: bytes, item: Item, size: int, type_flag: bytes, mtime: int, link: bytes) -> bytes:
    fields = [
        name.ljust(100, b"\0"),
        _octal(item.mode, 8),
        _octal(item.uid, 8),
        _octal(item.gid, 8),
        _octal(size, 12),
        _octal(mtime, 12),
        b" " * 8,
        type_flag,
        link.ljust(100, b"\0"),
        b"ustar\00000",
        b"\0" * 64,
        _octal(0, 8),
        _octal(0, 8),
        prefix.ljust(155, b"\0"),
        b"\0" * 12,
    ]
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _split(path: bytes) -> tuple[bytes, bytes] | None:
    """Name and prefix fields, or None where the path does not fit into them."""
    if len(path) <= 100:
        return path, b""
    for cut in range(max(0, len(path) - 101), min(len(path), 156)):
        if path[cut : cut + 1] == b"/" and 0 < len(path) - cut - 1 <= 100:
            return path[cut + 1 :], path[:cut]
    return None


def _pax(records: list[tuple[bytes, bytes]], mtime: int) -> bytes:
    body = b""
    for key, value in records:
        line = b" " + key + b"=" + value + b"\n"
        length = len(line)
        while length != len(line) + len(b"%d" % length):
            length = len(line) + len(b"%d" % length)
        body += b"%d" % length + line
    head = _header(b"PaxHeaders/entry", b"", Item("", mode=0o644), len(body), b"x", mtime, b"")
    return head + body + b"\0" * (-len(body) % BLOCK)


def headers(item: Item, layer_time: int) -> bytes:
    """The header blocks of one item."""
    mtime = layer_time if item.mtime is None else item.mtime
    path = item.path.encode("utf-8", "surrogateescape") + (b"/" if item.type == DIRECTORY else b"")
    link = item.link.encode("utf-8", "surrogateescape")
    records: list[tuple[bytes, bytes]] = []
    fields = _split(path)
    if fields is None or not path.isascii():
        records.append((b"path", path))
        fields = (path[-100:].lstrip(b"/") if fields is None else fields[0], b"")
    if len(link) > 100 or not link.isascii():
        records.append((b"linkpath", link))
        link = link[:100]
    records += [(f"SCHILY.xattr.{name}".encode(), value) for name, value in item.xattrs]
    extended = _pax(records, mtime) if records else b""
    return extended + _header(fields[0], fields[1], item, item.size, item.type, mtime, link)


def tar_chunks(items: Iterable[Item], layer_time: int) -> Iterator[bytes]:
    """The whole archive in pieces of at most 1 MiB, end marker included.  `layer_time` in seconds since 1970."""
    for item in items:
        yield headers(item, layer_time)
        if item.open is None:
            continue
        left = item.size
        with item.open() as stream:
            while left:
                part = stream.read(min(CHUNK, left))
                if not part:
                    raise ValueError(f"{item.path} is {left} bytes shorter than its size says")
                left -= len(part)
                yield part
        yield b"\0" * (-item.size % BLOCK)
    yield b"\0" * (2 * BLOCK)
