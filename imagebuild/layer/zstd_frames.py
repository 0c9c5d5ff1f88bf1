"""The frames of a zstd stream, taken apart block by block (RFC 8878 section 3.1).

The block structure is walked here so that each step gives at most 128 KiB: a few bytes of run-length blocks may stand
for megabytes, and a decompressor that is fed a large piece would hold all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import zstandard

from imagebuild.errors import RefusedError

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK_LIMIT = 128 << 10
_WINDOW_LIMIT = 128 << 20
"""Bytes of history that a frame may ask for; the `zstd` program itself asks for more only on demand (`--long=31`)."""
_SKIP_PIECE = 64 << 10


class _Source(Protocol):
    what: str

    def peek(self, size: int) -> bytes: ...

    def take(self, size: int) -> bytes: ...


def is_skippable(magic: bytes) -> bool:
    """Whether these 4 bytes begin a skippable frame (RFC 8878 section 3.1.2)."""
    return len(magic) == 4 and 0x50 <= magic[0] <= 0x5F and magic[1:] == b"\x2a\x4d\x18"


class ZstdFrames:
    """Reads the frames of `source` one after another; `damaged` makes the error for a stream that is not whole."""

    def __init__(self, source: _Source, damaged: Callable[[str], RefusedError]) -> None:
        self._source = source
        self._damaged = damaged
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._checksum = False
        self._rest = b""

    def read(self, size: int) -> bytes:
        while not self._rest:
            if self._frame is not None:
                self._rest = self._block()
            elif not self._source.peek(1):
                return b""
            else:
                self._begin()
        data = self._rest[:size]
        self._rest = self._rest[size:]
        return data

    def _feed(self, data: bytes) -> bytes:
        assert self._frame is not None
        try:
            return self._frame.decompress(data)
        except zstandard.ZstdError as error:
            raise self._damaged(f"the zstd data is corrupt ({error})") from error

    def _begin(self) -> None:
        magic = self._source.take(4)
        if is_skippable(magic):
            left = int.from_bytes(self._source.take(4), "little")
            while left:
                left -= len(self._source.take(min(left, _SKIP_PIECE)))
            return
        if magic != ZSTD_MAGIC:
            raise self._damaged("bytes follow the last zstd frame")
        flags = self._source.take(1)
        single = bool(flags[0] & 0x20)
        size_bytes = (1 if single else 0, 2, 4, 8)[flags[0] >> 6]
        rest = (0 if single else 1) + (0, 1, 2, 4)[flags[0] & 3] + size_bytes
        self._checksum = bool(flags[0] & 4)
        self._frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT).decompressobj()
        self._rest = self._feed(magic + flags + self._source.take(rest))

    def _block(self) -> bytes:
        head = self._source.take(3)
        word = int.from_bytes(head, "little")
        last, kind, size = word & 1, word >> 1 & 3, word >> 3
        if kind == 3 or size > _BLOCK_LIMIT:
            raise self._damaged("a zstd block header is not valid")
        out = self._feed(head + self._source.take(1 if kind == 1 else size))
        if last:
            if self._checksum:
                out += self._feed(self._source.take(4))
            if self._frame is None or not self._frame.eof:
                raise self._damaged("a zstd frame does not end where its last block does")
            self._frame = None
        return out
