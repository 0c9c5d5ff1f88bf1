"""Decompressing a layer's bytes: plain tar, gzip or zstd, told apart by content (image-spec layer.md).

Whatever comes out is bounded, and the end (b"") is only reported for a stream that was whole: truncation, a wrong
checksum and bytes after the last member or frame are refused, never passed over.
"""

from __future__ import annotations

from isal import igzip_lib

from imagebuild.content.reader import Readable
from imagebuild.errors import RefusedError
from imagebuild.layer.zstd_frames import ZSTD_MAGIC, ZstdFrames, is_skippable

GZIP_MAGIC = b"\x1f\x8b"
RATIO_LIMIT = 1100
"""Uncompressed bytes for one compressed byte at most; deflate cannot reach 1033, so only a zstd bomb does."""
SIZE_FLOOR = 1 << 30
"""Uncompressed bytes that any layer may have, however small it is stored (images.md, Reading 6)."""
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x04\x22\x4d\x18": "lz4", b"PK\x03\x04": "zip"}
_HEADER_LIMIT = 1 << 20
_SMALL_PIECE = 16 << 10
_LARGE_PIECE = 256 << 10
_SNIFF = 6
_ISAL_ERROR: type[Exception] = vars(igzip_lib)["error"]


def uncompressed_limit(stored_size: int) -> int:
    """Uncompressed bytes at most for a blob of `stored_size` bytes (images.md, Reading 6)."""
    return max(SIZE_FLOOR, RATIO_LIMIT * stored_size)


class Source:
    """A stream with a buffer in front: exact reads, and reads of whatever is there."""

    def __init__(self, stream: Readable, what: str) -> None:
        self._stream = stream
        self._buffer = b""
        self._at = 0
        self._ended = False
        self.what = what

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end of the stream; they stay to be read."""
        while len(self._buffer) - self._at < size and not self._ended:
            data = self._stream.read(_LARGE_PIECE)
            self._ended = not data
            self._buffer = self._buffer[self._at :] + data
            self._at = 0
        return self._buffer[self._at : self._at + size]

    def some(self, size: int) -> bytes:
        """Between 1 and `size` bytes; b"" at the end only."""
        if self._at == len(self._buffer):
            self._buffer = b""
            self._at = 0
            if size >= _LARGE_PIECE and not self._ended:
                data = self._stream.read(size)
                self._ended = not data
                return data
            self.peek(1)
        data = self._buffer[self._at : self._at + size]
        self._at += len(data)
        return data

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes; raises RefusedError `base.bad-compression` when the stream ends before."""
        data = self.peek(size)
        if len(data) < size:
            raise damaged(self.what, "the compressed stream ends early")
        self._at += size
        return data

    def give_back(self, data: bytes) -> None:
        """Puts bytes that were read in front again."""
        if self._at >= len(data) and self._buffer[self._at - len(data) : self._at] == data:
            self._at -= len(data)
        else:
            self._buffer = data + self._buffer[self._at :]
            self._at = 0


def damaged(what: str, why: str) -> RefusedError:
    """The error for a compressed stream that is not well formed."""
    return RefusedError(
        "base.bad-compression",
        f"{what}: {why}",
        hint="the blob is stored this way: its digest is checked apart; ask the image's publisher, or name another base",
    )


def sniff(start: bytes, what: str) -> str:
    """`gzip`, `zstd` or `none`, as the first bytes say.  Raises RefusedError `base.unknown-compression` for the
    formats that some engines unpack and image-spec does not know."""
    if start.startswith(GZIP_MAGIC):
        return "gzip"
    if start.startswith(ZSTD_MAGIC) or is_skippable(start[:4]):
        return "zstd"
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            raise RefusedError(
                "base.unknown-compression",
                f"{what} is compressed with {name}",
                expected="gzip, zstd or plain tar (image-spec layer.md)",
                found=name,
            )
    return "none"


class _Plain:
    def __init__(self, source: Source) -> None:
        self._source = source

    def read(self, size: int) -> bytes:
        return self._source.some(size)


class _Gzip:
    """Members one after another (RFC 1952 section 2.2); the header is parsed here, since isal's own parser fails on a
    header that comes in pieces, the deflate data and the trailer (CRC32, ISIZE) by isal."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._inflate: igzip_lib.IgzipDecompressor | None = None
        self._piece = _LARGE_PIECE
        self._members = 0

    def read(self, size: int) -> bytes:
        while True:
            inflate = self._inflate
            if inflate is None:
                if self._members and not self._source.peek(1):
                    return b""
                self._header()
                continue
            data = b""
            if inflate.needs_input:
                data = self._source.some(self._piece)
                if not data:
                    raise damaged(self._source.what, "the compressed stream ends early")
                self._piece = min(self._piece * 2, _LARGE_PIECE)
            try:
                out = inflate.decompress(data, size)
            except _ISAL_ERROR as error:
                raise damaged(self._source.what, f"the gzip data is corrupt ({error})") from error
            if inflate.eof:
                self._source.give_back(inflate.unused_data)
                self._inflate = None
                self._members += 1
                # Layers of many small members (one a file) would copy the rest of a large piece at each end.
                self._piece = _SMALL_PIECE
            if out:
                return bytes(out)

    def _header(self) -> None:
        what = self._source.what
        if self._members and self._source.peek(2) != GZIP_MAGIC:
            raise damaged(what, "bytes follow the last gzip member")
        head = self._source.take(10)
        if head[:2] != GZIP_MAGIC or head[2] != 8 or head[3] & 0xE0:
            raise damaged(what, "the gzip header is not valid (RFC 1952 section 2.3)")
        flags = head[3]
        if flags & 4:
            self._source.take(int.from_bytes(self._source.take(2), "little"))
        for flag in (8, 16):
            if flags & flag:
                self._skip_text()
        if flags & 2:
            self._source.take(2)
        self._inflate = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP_NO_HDR_VER)

    def _skip_text(self) -> None:
        for _ in range(_HEADER_LIMIT // _SMALL_PIECE):
            text = self._source.some(_SMALL_PIECE)
            if not text:
                raise damaged(self._source.what, "the compressed stream ends early")
            end = text.find(b"\0")
            if end >= 0:
                self._source.give_back(text[end + 1 :])
                return
        raise damaged(self._source.what, "the gzip header is longer than 1 MiB")


class DecompressingReader:
    """The uncompressed bytes of a layer.

    `declared` is what the media type says (`none`, `gzip`, `zstd`); the content decides, and a contradiction raises
    RefusedError `base.media-type-contradicts` on the first read.  `limit` bounds the uncompressed bytes
    (`base.too-large`).  A damaged stream raises `base.bad-compression`.  `read(n)` gives 1 to n bytes, b"" at the end
    only; at most a few MiB are held, whatever the ratio.  `compression` is known after the first read.
    """

    def __init__(self, stream: Readable, declared: str, limit: int, what: str = "layer") -> None:
        self._source = Source(stream, what)
        self._declared = declared
        self._limit = limit
        self._what = what
        self._inner: _Plain | _Gzip | ZstdFrames | None = None
        self.compression: str | None = None
        self.total = 0

    def _open(self) -> _Plain | _Gzip | ZstdFrames:
        found = sniff(self._source.peek(_SNIFF), self._what)
        if found != self._declared:
            raise RefusedError(
                "base.media-type-contradicts",
                f"{self._what}: the media type contradicts the bytes",
                expected=_SAID[self._declared],
                found=_SAID[found],
                hint="engines differ in whom they believe, so such a layer is not built upon",
            )
        self.compression = found
        if found == "gzip":
            return _Gzip(self._source)
        if found == "zstd":
            return ZstdFrames(self._source, lambda why: damaged(self._what, why))
        return _Plain(self._source)

    def read(self, size: int = -1, /) -> bytes:
        if size == 0:
            return b""
        if size < 0:
            parts = []
            while part := self.read(1 << 20):
                parts.append(part)
            return b"".join(parts)
        if self._inner is None:
            self._inner = self._open()
        data = self._inner.read(size)
        self.total += len(data)
        if self.total > self._limit:
            raise RefusedError(
                "base.too-large",
                f"{self._what} grows beyond the bound when uncompressed",
                expected=f"at most {self._limit} bytes",
                found="more",
            )
        return data


_SAID = {"none": "a plain tar", "gzip": "gzip", "zstd": "zstd"}
