"""The tar files that archives of images are: an index of their members, and members written by our own hand.

Only regular files matter here, so this reads just enough of the format (POSIX.1-2017 pax, ustar; GNU long names and
base-256 sizes) and writes ustar headers alone: no clock, no owner, no name of a user.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from imagebuild.content.reader import VerifiedReader
from imagebuild.errors import RefusedError

BLOCK = 512
MEMBER_LIMIT = 100_000
"""Members of an archive at most; an image has a few hundred."""
_NAME_LIMIT = 64 << 10
"""Bytes of a PAX or long-name record at most."""
_KEPT = 1 << 20
_KEPT_TOGETHER = 64 << 20
_FILES = (b"0", b"\0", b"7")


@dataclass(frozen=True, slots=True)
class Member:
    """Where a regular file's bytes lie in the tar."""

    offset: int
    size: int


class Forward:
    """A stream that is only ever read onwards: `skip_to` an offset, then `read`."""

    def __init__(self, stream: BinaryIO, seekable: bool) -> None:
        self._stream = stream
        self.seekable = seekable
        self.position = 0

    def read(self, size: int) -> bytes:
        parts = []
        while size > 0:
            part = self._stream.read(min(size, 1 << 20))
            if not part:
                break
            parts.append(part)
            size -= len(part)
            self.position += len(part)
        return b"".join(parts)

    def skip_to(self, offset: int) -> bool:
        """False where the stream is known to end before."""
        if self.seekable:
            self._stream.seek(offset)
            self.position = offset
            return True
        while self.position < offset:
            part = self._stream.read(min(offset - self.position, 1 << 20))
            if not part:
                return False
            self.position += len(part)
        return True


def index_members(stream: Forward, limit: int, what: str, keep: dict[str, bytes] | None = None) -> dict[str, Member]:
    """The regular files of a tar by name, a leading `./` removed.

    `limit` is the size of the whole tar in bytes at most.  The bytes of small members are put into `keep` on the way,
    so that documents of a stream that cannot seek are read once.  Links and devices are left out: an image archive needs
    none, and what is not there cannot lead anywhere.  Raises RefusedError `oci.bad-archive` for damage, for names that
    are absolute or hold `..`, for two members of one name, and for what is beyond the limits.
    """
    found: dict[str, Member] = {}
    name: str | None = None
    size: int | None = None
    count = 0
    offset = kept = 0
    while True:
        if not stream.skip_to(offset):
            raise _bad(what, "it ends in the middle of a member")
        header = stream.read(BLOCK)
        if not header or header == bytes(BLOCK):
            if count == 0:
                raise _bad(what, "it is empty or no tar")
            return found
        if len(header) < BLOCK:
            raise _bad(what, "it ends in the middle of a header")
        _check_sum(header, what)
        count += 1
        kind = header[156:157]
        length = _number(header[124:136], what)
        if kind in _FILES and size is not None:
            length = size
        if kind not in (*_FILES, b"x", b"g", b"L", b"K"):
            length = 0 if kind in b"123456" else length
        data = offset + BLOCK
        if count > MEMBER_LIMIT or data + length > limit:
            raise _bad(what, "it has too many members, or claims more bytes than it may hold", str(count))
        offset = data + -(-length // BLOCK) * BLOCK
        if kind in (b"x", b"g", b"L"):
            if length > _NAME_LIMIT:
                raise _bad(what, f"a header record of {length} bytes")
            record = stream.read(length)
            if len(record) != length:
                raise _bad(what, "it ends in the middle of a record")
            if kind == b"L":
                name = record.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif kind == b"x":
                name, size = _pax(record, name, what)
            continue
        if kind == b"K":
            continue
        own = name if name is not None else _name(header)
        name = size = None
        if kind in _FILES:
            clean = _clean(own, what)
            if clean in found:
                raise _bad(what, "two members have one name", clean)
            found[clean] = Member(data, length)
            if keep is not None and length <= _KEPT and kept + length <= _KEPT_TOGETHER:
                kept += length
                keep[clean] = stream.read(length)


def _bad(what: str, why: str, found: str | None = None) -> RefusedError:
    return RefusedError("oci.bad-archive", f"{what} cannot be read: {why}", found=found)


def _clean(name: str, what: str) -> str:
    while name.startswith("./"):
        name = name[2:]
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise _bad(what, "a member's name leads out of it", name[:200])
    return name


def _check_sum(header: bytes, what: str) -> None:
    stored = _number(header[148:156], what)
    if stored != sum(header[:148]) + 8 * 32 + sum(header[156:]):
        raise _bad(what, "a header's checksum is wrong")


def _number(field: bytes, what: str) -> int:
    """Octal text, or GNU's base-256."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40:
            raise _bad(what, "a negative number")
        return value
    text = field.strip(b" \0")
    if text.strip(b"01234567"):
        raise _bad(what, "a number that is not octal", repr(field))
    return int(text or b"0", 8)


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")


def _pax(record: bytes, name: str | None, what: str) -> tuple[str | None, int | None]:
    size = None
    while record:
        digits, space, _ = record.partition(b" ")
        if not space or not digits.isdigit() or len(digits) > 6:
            raise _bad(what, "a PAX record without a length")
        length = int(digits)
        if not len(digits) + 4 <= length <= len(record):
            raise _bad(what, "a PAX record that is cut")
        line, record = record[len(digits) + 1 : length], record[length:]
        key, equals, value = line[:-1].partition(b"=")
        if not equals or line[-1:] != b"\n":
            raise _bad(what, "a PAX record that is no KEY=VALUE line")
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not value.isdigit() or len(value) > 19:
                raise _bad(what, "a PAX size that is no number")
            size = int(value)
    return name, size


class TarWriter:
    """Writes regular files into a tar whose bytes depend on names and data alone: mode 0644, owner 0, time 0.

    Names are ASCII, at most 100 characters.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def add(self, name: str, data: bytes) -> None:
        self._out.write(member_header(name, len(data)))
        self._out.write(data)
        self._pad(len(data))

    def copy(self, name: str, reader: VerifiedReader) -> int:
        """A member with the bytes of a verified stream; their number."""
        self._out.write(member_header(name, reader.size))
        while part := reader.read(1 << 20):
            self._out.write(part)
        self._pad(reader.size)
        return reader.size

    def gather(self, name: str, parts: Iterable[bytes]) -> int:
        """A member whose size is known at its end only (`out` must seek): the header is written then; its size."""
        start = self._out.tell()
        self._out.write(bytes(BLOCK))
        size = 0
        for part in parts:
            size += len(part)
            self._out.write(part)
        self._pad(size)
        end = self._out.tell()
        self._out.seek(start)
        self._out.write(member_header(name, size))
        self._out.seek(end)
        return size

    def close(self) -> None:
        """Writes the two blocks that end an archive."""
        self._out.write(bytes(2 * BLOCK))

    def _pad(self, size: int) -> None:
        self._out.write(bytes(-size % BLOCK))


def member_header(name: str, size: int) -> bytes:
    raw = name.encode("ascii")
    if not 0 < len(raw) <= 100:
        raise ValueError(f"a member's name of {len(raw)} bytes")
    octal = b"%011o\0" % size if size < 1 << 33 else (1 << 95 | size).to_bytes(12, "big")
    head = raw.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + octal + b"00000000000\0"
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(155 + 12)
    total = sum(head) + sum(tail) + 8 * 32
    return head + b"%06o\0 " % total + tail
