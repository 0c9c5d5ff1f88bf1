"""Folders of bytes named by their digest."""

import io
import zlib
from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.content.store import CompressedStore, ContentStore
from imagebuild.errors import RefusedError


def test_put_get(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    digest = store.put(b"abc")
    assert digest in store
    assert store.get(digest) == b"abc"
    assert list(store.entries()) == [(digest, 3)]
    assert store.get(Digest.of(b"other")) is None


def test_a_damaged_cache_entry_counts_as_absent_and_goes(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    digest = store.put(b"abc")
    store.path(digest).write_bytes(b"abd")
    assert store.get(digest) is None
    assert digest not in store
    assert store.put(b"abc") == digest
    assert store.get(digest) == b"abc"


def test_nothing_is_kept_of_a_stream_that_lies(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    with pytest.raises(RefusedError):
        store.ingest(io.BytesIO(b"abd"), Digest.of(b"abc"), 3)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    assert store.ingest(io.BytesIO(b"abc"), Digest.of(b"abc"), 3).read_bytes() == b"abc"


def test_committed_content_that_lies_is_refused_not_repaired(tmp_path: Path) -> None:
    store = CompressedStore(tmp_path)
    digest = store.put(b"abc")
    assert store.get(digest) == b"abc"
    assert store.get(Digest.of(b"none")) is None
    path = store.path(digest)
    for text, code in (
        (zlib.compress(b"abd"), "content.digest-mismatch"),
        (b"no zlib", "content.damaged"),
        (zlib.compress(b"abc")[:-1], "content.damaged"),
        (zlib.compress(b"abc") + b"tail", "content.damaged"),
    ):
        path.write_bytes(text)
        with pytest.raises(RefusedError) as caught:
            store.get(digest)
        assert caught.value.code == code


def test_keep_only(tmp_path: Path) -> None:
    store = CompressedStore(tmp_path)
    a, b = store.put(b"a"), store.put(b"b")
    store.keep_only({b})
    assert store.digests() == [b]
    assert store.get(a) is None
