"""Layers as blobs: the same bytes however they were read, and only whole ones."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuild.content.digest import Digest
from imagebuild.content.store import ContentStore
from imagebuild.testing.base_blobs import Compression, packer, regrouped, write_blob


@pytest.mark.parametrize("compression", ["none", "stored", "gzip", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 3_000_000])
def test_a_blob_is_what_its_digests_say(tmp_path: Path, compression: Compression, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    store = ContentStore(tmp_path)
    blob = write_blob([data[:1000], data[1000:]], compression, store)
    stored = store.get(blob.digest)
    assert stored is not None
    assert len(stored) == blob.size
    assert blob.diff_id == Digest.of(data)
    if compression == "zstd":
        assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stored)).read() == data
    else:
        assert (stored if compression == "none" else gzip.decompress(stored)) == data
    assert [path.name for path in (tmp_path / "sha256").iterdir()] == [blob.digest.hex]


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=300), max_size=12), st.integers(1, 64))
def test_regrouping_keeps_the_bytes(chunks: list[bytes], size: int) -> None:
    found = list(regrouped(chunks, size))
    assert b"".join(found) == b"".join(chunks)
    assert all(len(part) == size for part in found[:-1])
    assert all(found)


def test_stored_bytes_are_fixed() -> None:
    """The format of RFC 1952 leaves choices; ours are made once and for all, since committed locks pin the result."""
    press = packer("stored")
    made = press.compress(b"abc") + press.flush()
    assert made.hex() == "1f8b08000000000000ff000300fcff616263010000ffffc241243503000000"


def test_nothing_is_left_of_a_stream_that_breaks(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 5_000_000
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_blob(broken(), "stored", ContentStore(tmp_path))
    assert list((tmp_path / "sha256").iterdir()) == []
