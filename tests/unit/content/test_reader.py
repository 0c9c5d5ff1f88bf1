"""VerifiedReader: the end of the stream is only told when the promise was kept."""

import io

import pytest

from imagebuild.content.digest import Digest
from imagebuild.content.reader import VerifiedReader, check_bytes, read_verified
from imagebuild.errors import RefusedError

DATA = bytes(range(256)) * 100


class Trickle:
    """Gives one byte at a time, as sockets may."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int = -1, /) -> bytes:
        return self._stream.read(min(size, 1) if size >= 0 else 1)


def test_whole_and_right_passes() -> None:
    assert read_verified(io.BytesIO(DATA), Digest.of(DATA), len(DATA)) == DATA


def test_short_reads_are_no_end() -> None:
    data = DATA[:500]
    assert read_verified(Trickle(data), Digest.of(data), len(data)) == data


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (DATA[:-1], "content.size-mismatch"),
        (DATA + b"x", "content.size-mismatch"),
        (b"", "content.size-mismatch"),
        (b"\x01" + DATA[1:], "content.digest-mismatch"),
    ],
)
def test_anything_else_is_refused_before_the_end_is_told(given: bytes, code: str) -> None:
    reader = VerifiedReader(io.BytesIO(given), Digest.of(DATA), len(DATA), "the layer")
    with pytest.raises(RefusedError) as caught:
        while reader.read(1000):
            pass
    assert caught.value.code == code
    assert "the layer" in caught.value.message
    assert not reader.verified


def test_never_more_than_promised_is_passed_on() -> None:
    reader = VerifiedReader(io.BytesIO(DATA), Digest.of(DATA[:10]), 10)
    assert reader.read(1000) == DATA[:10]


def test_empty_blob() -> None:
    assert read_verified(io.BytesIO(b""), Digest.of(b""), 0) == b""


def test_check_bytes_tells_both_digests() -> None:
    with pytest.raises(RefusedError) as caught:
        check_bytes(b"a", Digest.of(b"b"), "config")
    assert caught.value.expected == str(Digest.of(b"b"))
    assert caught.value.found == str(Digest.of(b"a"))
