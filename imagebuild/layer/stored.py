"""Gzip without a compressor: stored blocks only, so that the bytes are the same for ever (RFC 1951 section 3.2.4)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from imagebuild.content.reader import Readable

GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""No name, no time, no flags, operating system unknown (RFC 1952 section 2.3)."""
_STORED = 65535


def gzip_trailer(crc: int, size: int) -> bytes:
    """CRC32 and ISIZE (the size modulo 2^32)."""
    return crc.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")


def stored_size(size: int) -> int:
    """Bytes of the gzip that holds `size` bytes in stored blocks."""
    blocks = max(1, -(-size // _STORED))
    return len(GZIP_HEADER) + 5 * blocks + size + 8


class StoredGzip:
    """Takes bytes in any pieces, gives one gzip member of stored blocks of 65,535 bytes, the last one shorter or equal.
    The bytes do not depend on how the data was cut."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._buffer = bytearray()
        self._crc = 0
        self._size = 0
        write(GZIP_HEADER)

    def write(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._buffer += data
        if len(self._buffer) <= _STORED:
            return
        at = 0
        # The last block carries a mark, so a full buffer waits until it is known whether more comes.
        while len(self._buffer) - at > _STORED:
            self._block(self._buffer[at : at + _STORED], 0)
            at += _STORED
        del self._buffer[:at]

    def close(self) -> None:
        """Writes the last block and the trailer."""
        self._block(self._buffer, 1)
        self._write(gzip_trailer(self._crc, self._size))

    def _block(self, data: bytearray, last: int) -> None:
        size = len(data)
        self._write(bytes((last, size & 255, size >> 8, ~size & 255, ~size >> 8 & 255)) + data)


def stored_gzip(stream: Readable) -> Iterator[bytes]:
    """The gzip of a whole stream, piece by piece."""
    out: list[bytes] = []
    gzip = StoredGzip(out.append)
    while part := stream.read(1 << 20):
        gzip.write(part)
        yield b"".join(out)
        out.clear()
    gzip.close()
    yield b"".join(out)
