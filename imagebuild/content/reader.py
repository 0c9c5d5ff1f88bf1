"""Streams whose bytes are hashed while they pass; what comes out whole is what the digest promises."""

from __future__ import annotations

import hashlib
from typing import BinaryIO, Protocol

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError


class Readable(Protocol):
    """All that is asked of a source of bytes: `read(n)` gives at most n bytes, and b"" at the end only."""

    def read(self, size: int = -1, /) -> bytes: ...


class VerifiedReader:
    """Passes bytes through, hashing and counting them.

    The end of the stream is only reported (b"") after size and digest were found right; otherwise RefusedError
    `content.digest-mismatch` or `content.size-mismatch` is raised, so a caller that reads to the end holds verified
    bytes, and one that stops early must throw away what it has.  Never more than `size` bytes are passed on.
    `what` names the blob in the error.
    """

    def __init__(self, stream: Readable | BinaryIO, digest: Digest, size: int, what: str = "blob") -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._left = size
        self.digest = digest
        self.size = size
        self.what = what
        self.verified = False

    def read(self, size: int = -1, /) -> bytes:
        if self.verified or size == 0:
            return b""
        if size < 0:
            parts = []
            while part := self.read(1 << 20):
                parts.append(part)
            return b"".join(parts)
        if self._left == 0:
            self._finish()
            return b""
        data = self._stream.read(min(size, self._left))
        if not data:
            raise RefusedError(
                "content.size-mismatch",
                f"{self.what} {self.digest} is shorter than promised",
                expected=f"{self.size} bytes",
                found=f"{self.size - self._left} bytes",
            )
        self._hash.update(data)
        self._left -= len(data)
        return data

    def _finish(self) -> None:
        if self._stream.read(1):
            raise RefusedError(
                "content.size-mismatch",
                f"{self.what} {self.digest} is longer than promised",
                expected=f"{self.size} bytes",
                found="more",
            )
        found = self._hash.hexdigest()
        if found != self.digest.hex:
            raise RefusedError(
                "content.digest-mismatch",
                f"{self.what} does not have the promised digest",
                expected=str(self.digest),
                found=f"sha256:{found}",
            )
        self.verified = True


def read_verified(stream: Readable | BinaryIO, digest: Digest, size: int, what: str = "blob") -> bytes:
    """All bytes of `stream`, checked by size and digest."""
    return VerifiedReader(stream, digest, size, what).read()


def check_bytes(data: bytes, digest: Digest, what: str) -> bytes:
    """`data` itself when it has that digest; raises RefusedError `content.digest-mismatch` otherwise."""
    found = Digest.of(data)
    if found != digest:
        raise RefusedError(
            "content.digest-mismatch",
            f"{what} does not have the promised digest",
            expected=str(digest),
            found=str(found),
        )
    return data
