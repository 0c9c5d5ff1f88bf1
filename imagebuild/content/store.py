"""A folder of bytes named by their digest: the cache, and a target's committed content."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_file, atomic_write, io_faults
from imagebuild.content.reader import Readable, VerifiedReader, check_bytes
from imagebuild.errors import RefusedError


class ContentStore:
    """`ROOT/sha256/HEX`, each file holding exactly the bytes of its name.

    Reading checks again: a damaged entry is removed and counts as absent (a cache never makes a build fail).
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: Digest) -> Path:
        return self.root / "sha256" / digest.hex

    def __contains__(self, digest: Digest) -> bool:
        return self.path(digest).is_file()

    def get(self, digest: Digest) -> bytes | None:
        """The bytes, verified, or None."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != digest.hex:
            path.unlink(missing_ok=True)
            return None
        return data

    def put(self, data: bytes) -> Digest:
        digest = Digest.of(data)
        if digest not in self:
            atomic_write(self.path(digest), data)
        return digest

    def open(self, digest: Digest) -> BinaryIO | None:
        """An unverified stream (wrap it in VerifiedReader), or None."""
        try:
            return open(self.path(digest), "rb")
        except FileNotFoundError:
            return None

    def ingest(self, stream: Readable, digest: Digest, size: int, what: str = "blob") -> Path:
        """Copies a stream in, verified by size and digest; nothing is kept of one that does not match."""
        target = self.path(digest)
        if target.is_file():
            return target
        reader = VerifiedReader(stream, digest, size, what)
        with atomic_file(target) as out:
            while part := reader.read(1 << 20):
                out.write(part)
        return target

    def remove(self, digest: Digest) -> None:
        self.path(digest).unlink(missing_ok=True)

    def entries(self) -> Iterator[tuple[Digest, int]]:
        """Digest and size in bytes of each entry, in digest order."""
        folder = self.root / "sha256"
        if not folder.is_dir():
            return
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            if len(entry.name) == 64 and entry.is_file(follow_symlinks=False):
                yield Digest(entry.name), entry.stat().st_size


class CompressedStore:
    """`ROOT/sha256/HEX.z`: zlib streams named by the sha256 of the *raw* bytes (formats.md, content).

    The compressed bytes carry no promise, only the raw ones do, so any zlib may write them.
    """

    LIMIT = 64 << 20

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: Digest) -> Path:
        return self.root / "sha256" / f"{digest.hex}.z"

    def __contains__(self, digest: Digest) -> bool:
        return self.path(digest).is_file()

    def get(self, digest: Digest) -> bytes | None:
        """The raw bytes, verified; None when absent; RefusedError `content.digest-mismatch` or `content.damaged`
        when the committed file is not what its name says (a reviewed folder that lies is never repaired silently)."""
        path = self.path(digest)
        try:
            with io_faults(path, "reading"):
                packed = path.read_bytes()
        except Exception as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(packed, self.LIMIT)
        except zlib.error as error:
            raise RefusedError("content.damaged", f"{path} is not a zlib stream: {error}") from error
        if not inflater.eof or inflater.unused_data:
            raise RefusedError("content.damaged", f"{path} is not one whole zlib stream of at most {self.LIMIT} bytes")
        return check_bytes(data, digest, str(path))

    def put(self, data: bytes) -> Digest:
        digest = Digest.of(data)
        if digest not in self:
            atomic_write(self.path(digest), zlib.compress(data, 9))
        return digest

    def packed_size(self, digest: Digest) -> int | None:
        """Bytes on disk of one entry, None where there is none."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def size(self) -> int:
        """Bytes on disk of all entries."""
        return sum(self.path(d).stat().st_size for d in self.digests())

    def digests(self) -> list[Digest]:
        folder = self.root / "sha256"
        if not folder.is_dir():
            return []
        return sorted(Digest(name[:-2]) for name in os.listdir(folder) if name.endswith(".z") and len(name) == 66)

    def keep_only(self, digests: set[Digest]) -> None:
        """Removes every entry that is not in `digests`."""
        for digest in self.digests():
            if digest not in digests:
                self.path(digest).unlink(missing_ok=True)
