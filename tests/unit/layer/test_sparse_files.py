"""Sparse files in GNU tar's four forms: read as what a program would read from them."""

from __future__ import annotations

import io

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Entry, LayerFacts
from imagebuild.layer.sparse import SPARSE_OFFSET
from imagebuild.layer.tar_reader import read_layer
from imagebuild.testing.raw_tar import END, GNU, blob, header, member, padded, pax


def read(tar: bytes) -> LayerFacts:
    data, descriptor = blob(tar)
    return read_layer(io.BytesIO(data), descriptor)


def only(tar: bytes) -> Entry:
    (entry,) = read(tar + END).entries.values()
    return entry


def refusal(tar: bytes) -> str:
    with pytest.raises(RefusedError) as caught:
        read(tar)
    return caught.value.code


DATA = b"A" * 512 + b"B" * 700
WHOLE = bytes(1000) + b"A" * 512 + bytes(488) + b"B" * 700 + bytes(300)
REGIONS = ((1000, 512), (2000, 700))


def octal(*numbers: int) -> bytes:
    return b"".join(b"%011o\0" % number for number in numbers)


def old_sparse(regions: tuple[tuple[int, int], ...], size: int, data: bytes, name: bytes = b"s") -> bytes:
    first, rest = regions[:4], regions[4:]
    out = header(
        name,
        len(data),
        b"S",
        GNU,
        sparse=octal(*(n for region in first for n in region)),
        extended=b"\1" if rest else b"\0",
        realsize=octal(size),
    )
    while rest:
        now, rest = rest[:21], rest[21:]
        block = octal(*(n for region in now for n in region))
        out += block.ljust(504, b"\0") + (b"\1" if rest else b"\0") + bytes(7)
    return out + padded(data)


def sparse_forms() -> dict[str, bytes]:
    numbers = [n for region in REGIONS for n in region]
    pairs = [
        pair for o, n in REGIONS for pair in ((b"GNU.sparse.offset", b"%d" % o), (b"GNU.sparse.numbytes", b"%d" % n))
    ]
    in_data = padded(b"2\n" + b"".join(b"%d\n" % n for n in numbers)) + DATA
    count, size = (b"GNU.sparse.numblocks", b"2"), (b"GNU.sparse.size", b"3000")
    one = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"s")]
    return {
        "old": old_sparse(REGIONS, 3000, DATA),
        "0.0": pax(size, count, *pairs) + member(b"s", DATA),
        "0.1": pax(size, count, (b"GNU.sparse.map", b"1000,512,2000,700"), (b"GNU.sparse.name", b"s"))
        + member(b"GNUSparseFile.0/s", DATA),
        "1.0": pax(*one, (b"GNU.sparse.realsize", b"3000")) + member(b"GNUSparseFile.0/s", in_data),
    }


@pytest.mark.parametrize("form", ["old", "0.0", "0.1", "1.0"])
def test_sparse_files_are_hashed_expanded(form: str) -> None:
    facts = read(sparse_forms()[form] + member(b"t", b"after") + END)
    entry = facts.entries["s"]
    assert (entry.size, entry.sha256, entry.offset) == (3000, Digest.of(WHOLE), SPARSE_OFFSET)
    assert facts.entries["t"].sha256 == Digest.of(b"after")


def test_old_sparse_with_extension_blocks() -> None:
    regions = tuple((n * 1000, 10) for n in range(50))
    whole = bytearray(60_000)
    for offset, length in regions:
        whole[offset : offset + length] = b"x" * length
    assert only(old_sparse(regions, 60_000, b"x" * 500)).sha256 == Digest.of(bytes(whole))


def test_a_sparse_file_is_captured_expanded() -> None:
    data, descriptor = blob(sparse_forms()["1.0"] + END)
    got = []
    read_layer(io.BytesIO(data), descriptor, capture=lambda _, size: size == 3000, captured=lambda _, d: got.append(d))
    assert got == [WHOLE]


@pytest.mark.parametrize(
    "tar",
    [
        old_sparse(((100, 50), (120, 50)), 3000, b"x" * 100),
        old_sparse(((100, 50),), 120, b"x" * 50),
        old_sparse(((100, 50),), 3000, b"x" * 40),
        old_sparse(((0, 1),), 3000, b""),
        pax((b"GNU.sparse.map", b"1,2,3"), (b"GNU.sparse.numblocks", b"1"), (b"GNU.sparse.size", b"9"))
        + member(b"s", b"ab"),
        pax((b"GNU.sparse.map", b"1,2"), (b"GNU.sparse.numblocks", b"2"), (b"GNU.sparse.size", b"9"))
        + member(b"s", b"ab"),
        pax((b"GNU.sparse.map", b"1,x"), (b"GNU.sparse.numblocks", b"1"), (b"GNU.sparse.size", b"9"))
        + member(b"s", b"ab"),
        pax((b"GNU.sparse.map", b"1,2"), (b"GNU.sparse.numblocks", b"1")) + member(b"s", b"ab"),
        pax((b"GNU.sparse.numbytes", b"2"), (b"GNU.sparse.offset", b"1")) + member(b"s", b"ab"),
        pax((b"GNU.sparse.major", b"2"), (b"GNU.sparse.minor", b"0")) + member(b"s", b"ab"),
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")) + member(b"s", padded(b"0\n")),
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")) + member(b"s", b"1\n2\n"),
        pax((b"GNU.sparse.size", b"1")) + old_sparse(((0, 1),), 1, b"x"),
    ],
)
def test_sparse_maps_that_do_not_fit_are_refused(tar: bytes) -> None:
    assert refusal(tar + END) == "base.bad-sparse"


def test_a_sparse_file_of_exabytes_is_refused_at_once() -> None:
    huge = old_sparse(((0, 1), ((1 << 33) - 1, 0)), (1 << 33) - 1, b"x")
    assert refusal(huge + END) == "base.too-large"
