"""Layers of stand-in bases as blobs: streamed once from items to a file that is named by its digest."""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from imagebuild.content.digest import Digest
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.content.store import ContentStore

Compression = Literal["none", "stored", "gzip", "zstd"]
"""`stored` is gzip without a compressor: the same bytes on every machine, and no time.  `gzip` and `zstd` really
compress, with what is installed here: no committed digest may depend on them."""

_BLOCK = 65535
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


@dataclass(frozen=True, slots=True)
class MadeBlob:
    """A layer on disk: `digest` and `size` of the stored bytes, `diff_id` of the tar."""

    digest: Digest
    size: int
    diff_id: Digest


class Packer(Protocol):
    """A compressor that is fed in pieces."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Stored:
    """A gzip member of stored blocks (RFC 1952; RFC 1951, section 3.2.4)."""

    def __init__(self) -> None:
        self._crc = 0
        self._size = 0
        self._begun = False

    def compress(self, data: bytes, /) -> bytes:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        parts = [] if self._begun else [_HEADER]
        self._begun = True
        for start in range(0, len(data), _BLOCK):
            piece = data[start : start + _BLOCK]
            parts += [struct.pack("<BHH", 0, len(piece), len(piece) ^ 0xFFFF), piece]
        return b"".join(parts)

    def flush(self) -> bytes:
        head = b"" if self._begun else _HEADER
        return head + struct.pack("<BHHII", 1, 0, 0xFFFF, self._crc, self._size & 0xFFFFFFFF)


def packer(compression: Compression) -> Packer:
    """A fresh compressor."""
    if compression == "none":
        return _Plain()
    if compression == "stored":
        return _Stored()
    if compression == "gzip":
        return zlib.compressobj(6, zlib.DEFLATED, 31)
    import zstandard

    return zstandard.ZstdCompressor(level=3).compressobj()


def regrouped(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of exactly `size` (the last one shorter), so that what packs them sees pieces that do
    not depend on how they were read."""
    held: list[bytes] = []
    length = 0
    for chunk in chunks:
        held.append(chunk)
        length += len(chunk)
        if length >= size:
            joined = b"".join(held)
            whole = length - length % size
            for start in range(0, whole, size):
                yield joined[start : start + size]
            held, length = [joined[whole:]], length - whole
    if length:
        yield b"".join(held)


def write_blob(chunks: Iterable[bytes], compression: Compression, store: ContentStore) -> MadeBlob:
    """Packs a tar stream into `store`.  Memory does not grow with its length; a kill leaves a temporary file only."""
    folder = store.root / "sha256"
    with io_faults(folder, "writing"):
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=folder)
    temporary = Path(name)
    raw, packed, size = hashlib.sha256(), hashlib.sha256(), 0
    press = packer(compression)
    try:
        with io_faults(folder, "writing"), os.fdopen(handle, "wb", buffering=0) as out:

            def put(data: bytes) -> int:
                packed.update(data)
                view = memoryview(data)
                while view:
                    view = view[out.write(view) or 0 :]
                return len(data)

            for chunk in regrouped(chunks, 16 * _BLOCK):
                raw.update(chunk)
                size += put(press.compress(chunk))
            size += put(press.flush())
            os.fchmod(out.fileno(), 0o644)
        blob = MadeBlob(Digest(packed.hexdigest()), size, Digest(raw.hexdigest()))
        with io_faults(folder, "writing"):
            os.replace(temporary, store.path(blob.digest))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return blob
