"""A place in an uncompressed tar that arrives in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from imagebuild.layer.headers import BLOCK
from imagebuild.layer.names import TarFault


class Pieces(Protocol):
    """Where the pieces come from: `next()` gives one and the stored bytes read so far; b"" at the end."""

    def next(self) -> tuple[bytes, int]: ...


class Cursor:
    """Reads blocks and data; hashes every piece on its way in.

    `hasher` is fed the whole uncompressed stream (None where that digest is known already); `progress` is called with
    the number of stored bytes that arrived since it was called last.
    """

    def __init__(self, pieces: Pieces, hasher: Any | None, progress: Callable[[int], None] | None) -> None:
        self._pieces = pieces
        self._hasher = hasher
        self._progress = progress
        self._stored = 0
        self._piece = b""
        self._view = memoryview(b"")
        self._at = 0
        self._before = 0
        self.ended = False

    @property
    def offset(self) -> int:
        """Bytes of the uncompressed stream read so far."""
        return self._before + self._at

    def _advance(self) -> bool:
        """Takes the next piece; False at the end of the stream (which stays where it is)."""
        if self.ended:
            return False
        piece, stored = self._pieces.next()
        if self._progress is not None and stored > self._stored:
            self._progress(stored - self._stored)
        self._stored = stored
        if not piece:
            self.ended = True
            return False
        if self._hasher is not None:
            self._hasher.update(piece)
        self._before += len(self._piece)
        self._piece = piece
        self._view = memoryview(piece)
        self._at = 0
        return True

    def block(self) -> bytes | None:
        """The next 512 bytes; None where the stream ends before them.  Raises TarFault for a part of a block."""
        at = self._at
        block = self._piece[at : at + BLOCK]
        if len(block) == BLOCK:
            self._at = at + BLOCK
            return block
        parts = list(self._some(BLOCK))
        if not parts:
            return None
        block = b"".join(parts)
        if len(block) < BLOCK:
            raise TarFault("base.bad-tar", "the tar ends inside a header")
        return block

    def _some(self, size: int) -> Iterator[memoryview]:
        while size:
            if self._at == len(self._piece) and not self._advance():
                return
            part = self._view[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            yield part

    def views(self, size: int) -> Iterator[memoryview]:
        """Exactly `size` bytes in pieces.  Raises TarFault where the stream ends before."""
        for part in self._some(size):
            size -= len(part)
            yield part
        if size:
            raise TarFault("base.bad-tar", "the tar ends inside a file")

    def whole(self, size: int) -> memoryview | None:
        """The next `size` bytes where they lie in one piece, None (and nothing read) otherwise."""
        at = self._at
        if at + size > len(self._piece):
            return None
        self._at = at + size
        return self._view[at : at + size]

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes, as one object."""
        return b"".join(self.views(size))

    def skip(self, size: int) -> None:
        for _ in self.views(size):
            pass

    def pad(self, size: int) -> None:
        """Skips from the end of `size` bytes of data to the next block.  The padding of the last entry may be missing:
        some writers end there, and every engine reads it."""
        rest = -size % BLOCK
        if rest:
            at = self._at + rest
            if at <= len(self._piece):
                self._at = at
            else:
                for _ in self._some(rest):
                    pass

    def drain(self) -> bool:
        """Reads to the end of the stream; whether anything but zeros came."""
        other = False
        while True:
            rest = self._piece[self._at :]
            other = other or rest.count(0) != len(rest)
            self._at = len(self._piece)
            if not self._advance():
                return other
