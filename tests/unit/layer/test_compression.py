"""Decompression: by content, bounded, and never past a stream that is not whole."""

from __future__ import annotations

import gzip
import io
import zlib

import pytest
import zstandard

from imagebuild.errors import RefusedError
from imagebuild.layer import compression
from imagebuild.layer.compression import DecompressingReader, uncompressed_limit

TEXT = b"".join(b"%d some text that deflates\n" % n for n in range(20_000))
ZSTD = zstandard.ZstdCompressor(level=3, write_checksum=True)
SKIPPABLE = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"


class Trickle:
    """Gives at most `step` bytes a call, as sockets do."""

    def __init__(self, data: bytes, step: int) -> None:
        self._stream = io.BytesIO(data)
        self._step = step

    def read(self, size: int = -1, /) -> bytes:
        return self._stream.read(self._step if size < 0 else min(size, self._step))


def full_header(data: bytes) -> bytes:
    """A gzip member whose header has every optional field."""
    head = b"\x1f\x8b\x08\x1e\0\0\0\0\0\x03" + b"\x03\0abc" + b"a name\0" + b"a comment\0"
    head += (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little")
    return head + gzip.compress(data, mtime=0)[10:]


def read(data: bytes, declared: str, limit: int = 1 << 30, step: int = 1 << 30, size: int = 1 << 16) -> bytes:
    reader = DecompressingReader(Trickle(data, step), declared, limit)
    out = []
    while part := reader.read(size):
        assert len(part) <= size
        out.append(part)
    assert reader.read(size) == b""
    return b"".join(out)


FORMS = {
    "none": ("none", TEXT, TEXT),
    "empty": ("none", b"", b""),
    "gzip": ("gzip", gzip.compress(TEXT), TEXT),
    "gzip stored": ("gzip", gzip.compress(TEXT, 0), TEXT),
    "gzip of nothing": ("gzip", gzip.compress(b""), b""),
    "gzip, three members": ("gzip", gzip.compress(b"a") + gzip.compress(b"") + full_header(TEXT), b"a" + TEXT),
    "gzip, full header": ("gzip", full_header(TEXT), TEXT),
    "zstd": ("zstd", ZSTD.compress(TEXT), TEXT),
    "zstd of nothing": ("zstd", ZSTD.compress(b""), b""),
    "zstd, frames and skippable frames": (
        "zstd",
        SKIPPABLE + ZSTD.compress(b"a") + SKIPPABLE + zstandard.ZstdCompressor().compress(TEXT) + SKIPPABLE,
        b"a" + TEXT,
    ),
    "zstd, unknown size": ("zstd", b"".join((c := ZSTD.compressobj(), c.compress(TEXT), c.flush())[1:]), TEXT),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1 << 30, 4093, 100])
def test_every_form_is_read(form: str, step: int) -> None:
    declared, data, text = FORMS[form]
    assert read(data, declared, step=step) == text


@pytest.mark.parametrize("form", [name for name in FORMS if name not in ("none", "gzip stored")])
def test_single_bytes_in_and_out(form: str) -> None:
    declared, data, text = FORMS[form]
    if len(text) > 1000 and len(data) > 30_000:
        start = read(data, declared, step=3)
        assert start == text
    else:
        assert read(data, declared, step=1, size=1 if len(text) < 10 else 7) == text


@pytest.mark.parametrize("form", [name for name in FORMS if FORMS[name][0] != "none"])
def test_truncated_anywhere_is_refused(form: str) -> None:
    declared, data, _ = FORMS[form]
    whole_at = set()
    if "members" in form:
        whole_at = {len(gzip.compress(b"a")), len(gzip.compress(b"a") + gzip.compress(b""))}
    if "frames" in form:
        first = SKIPPABLE + ZSTD.compress(b"a")
        tail = len(data) - len(SKIPPABLE)
        whole_at = {len(SKIPPABLE), len(first), len(first + SKIPPABLE), tail}
    places = {*range(2, min(len(data), 120)), *range(len(data) - 60, len(data)), len(data) // 2}
    for end in sorted(place for place in places if 6 <= place < len(data) and place not in whole_at):
        with pytest.raises(RefusedError) as caught:
            read(data[:end], declared)
        assert caught.value.code == "base.bad-compression", end


@pytest.mark.parametrize("form", ["gzip", "gzip, three members", "zstd", "zstd, unknown size"])
@pytest.mark.parametrize("tail", [b"\0", b"garbage that is longer than any header could be", b"\x1f\x8b", bytes(512)])
def test_bytes_after_the_last_member_are_refused(form: str, tail: bytes) -> None:
    declared, data, _ = FORMS[form]
    with pytest.raises(RefusedError) as caught:
        read(data + tail, declared)
    assert caught.value.code == "base.bad-compression"


@pytest.mark.parametrize("place", [-8, -5, -4, -1])
def test_a_wrong_crc_or_length_is_refused(place: int) -> None:
    data = bytearray(gzip.compress(TEXT))
    data[place] ^= 1
    with pytest.raises(RefusedError, match="corrupt"):
        read(bytes(data), "gzip")


def test_a_wrong_zstd_checksum_is_refused() -> None:
    data = bytearray(ZSTD.compress(TEXT))
    data[-1] ^= 1
    with pytest.raises(RefusedError, match="corrupt"):
        read(bytes(data), "zstd")


@pytest.mark.parametrize(
    "data",
    [
        b"\x1f\x8b\x07\0\0\0\0\0\0\xff" + gzip.compress(b"x")[10:],
        b"\x1f\x8b\x08\x20\0\0\0\0\0\xff" + gzip.compress(b"x")[10:],
        b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + b"n" * (3 << 20),
    ],
)
def test_a_gzip_header_that_is_not_valid_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match="header"):
        read(data, "gzip")


@pytest.mark.parametrize("block", [b"\x07\0\0", (1 << 3 | 1 << 21 | 1).to_bytes(3, "little"), b"\xff\xff\xff"])
def test_a_zstd_block_header_that_is_not_valid_is_refused(block: bytes) -> None:
    with pytest.raises(RefusedError, match="block header"):
        read(b"\x28\xb5\x2f\xfd\x00\x58" + block + bytes(400_000), "zstd")


def test_a_zstd_frame_with_a_dictionary_is_refused() -> None:
    dictionary = zstandard.ZstdCompressionDict(TEXT[:4000])
    data = zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT)
    with pytest.raises(RefusedError) as caught:
        read(data, "zstd")
    assert caught.value.code == "base.bad-compression"


def test_a_zstd_window_above_128_mib_is_refused() -> None:
    with pytest.raises(RefusedError, match="corrupt"):
        read(b"\x28\xb5\x2f\xfd\x00" + bytes([(18 << 3)]) + b"\x01\0\0" + bytes(100), "zstd")


@pytest.mark.parametrize("declared", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("content", ["none", "gzip", "zstd"])
def test_a_media_type_that_contradicts_the_bytes_is_refused(declared: str, content: str) -> None:
    data = FORMS[content][1]
    if declared == content:
        assert read(data, declared) == TEXT
        return
    with pytest.raises(RefusedError) as caught:
        read(data, declared)
    assert caught.value.code == "base.media-type-contradicts"


def test_an_empty_blob_is_no_gzip() -> None:
    with pytest.raises(RefusedError) as caught:
        read(b"", "gzip")
    assert caught.value.code == "base.media-type-contradicts"


@pytest.mark.parametrize(
    ("start", "name"), [(b"BZh91AY", "bzip2"), (b"\xfd7zXZ\0\0", "xz"), (b"\x04\x22\x4d\x18aa", "lz4")]
)
@pytest.mark.parametrize("declared", ["none", "gzip"])
def test_other_compressors_are_named_and_refused(start: bytes, name: str, declared: str) -> None:
    with pytest.raises(RefusedError, match=name) as caught:
        read(start + bytes(100), declared)
    assert caught.value.code == "base.unknown-compression"


def rle_bomb(blocks: int) -> bytes:
    """A zstd frame in which each 4 bytes stand for 128 KiB."""
    block = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * blocks + b"\x01\0\0"


@pytest.mark.parametrize(
    ("data", "declared"),
    [(gzip.compress(bytes(40 << 20)), "gzip"), (rle_bomb(10_000), "zstd"), (bytes(2 << 20), "none")],
)
def test_growth_beyond_the_bound_is_refused(data: bytes, declared: str) -> None:
    with pytest.raises(RefusedError) as caught:
        read(data, declared, limit=1 << 20)
    assert caught.value.code == "base.too-large"


def test_exactly_the_bound_is_allowed() -> None:
    assert read(gzip.compress(TEXT), "gzip", limit=len(TEXT)) == TEXT


def test_a_bomb_is_given_out_in_small_pieces() -> None:
    reader = DecompressingReader(io.BytesIO(rle_bomb(1000)), "zstd", 1 << 40)
    assert len(reader.read(1 << 30)) <= 128 << 10
    reader = DecompressingReader(io.BytesIO(gzip.compress(bytes(64 << 20))), "gzip", 1 << 40)
    assert len(reader.read(1 << 20)) <= 1 << 20


def test_the_bound_of_images() -> None:
    assert uncompressed_limit(0) == 1 << 30
    assert uncompressed_limit(10 << 20) == 1100 * (10 << 20)


def test_many_small_members_do_not_copy_the_rest_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    class Counting(compression.Source):
        def give_back(self, data: bytes) -> None:
            given.append(len(data))
            super().give_back(data)

    monkeypatch.setattr(compression, "Source", Counting)
    data = b"".join(gzip.compress(b"%d" % n, 1) for n in range(5000))
    assert read(data, "gzip") == b"".join(b"%d" % n for n in range(5000))
    assert sum(given) < 5000 * (20 << 10)


def test_what_was_found_is_told() -> None:
    reader = DecompressingReader(io.BytesIO(gzip.compress(b"abc")), "gzip", 100)
    assert reader.read() == b"abc"
    assert (reader.compression, reader.total) == ("gzip", 3)
