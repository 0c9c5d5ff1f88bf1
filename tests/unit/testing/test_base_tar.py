"""Tar streams of stand-in bases, read back by another's reader."""

from __future__ import annotations

import io
import tarfile

import pytest

from imagebuild.testing.base_tar import (
    HARDLINK,
    Item,
    file_item,
    folder_item,
    headers,
    link_item,
    tar_chunks,
    with_parents,
)


def read(items: list[Item], layer_time: int = 1_700_000_000) -> list[tarfile.TarInfo]:
    data = b"".join(tar_chunks(items, layer_time))
    assert len(data) % 512 == 0
    assert data.endswith(bytes(1024))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        return archive.getmembers()


@pytest.mark.parametrize(
    "path",
    ["a", "d/" * 40 + "name", "x" * 100, "x" * 101, "d/" + "x" * 120, ("p" * 154) + "/" + "n" * 100, "y" * 300, "ä/ü"],
)
def test_names_of_every_length_come_back(path: str) -> None:
    (entry,) = read([file_item(path, b"data", 0o640)])
    assert (entry.name, entry.size, entry.mode, entry.mtime) == (path, 4, 0o640, 1_700_000_000)


def test_a_name_that_fits_needs_no_extended_header() -> None:
    assert len(headers(file_item("d/" * 60 + "name", b""), 0)) == 512
    assert len(headers(file_item("x" * 101, b""), 0)) == 1536


def test_types_links_and_attributes_come_back() -> None:
    long = "t/" * 80 + "x"
    found = read(
        [
            folder_item("d", 0o1777),
            link_item("d/l", "../" + long),
            file_item("f", b"1"),
            Item("h", HARDLINK, link="f"),
            Item("p", xattrs=(("security.capability", b"\x01\x00=\n\xff"),), uid=1000, gid=7, mtime=5),
        ]
    )
    assert [entry.type for entry in found] == [b"5", b"2", b"0", b"1", b"0"]
    assert found[0].mode == 0o1777
    assert found[1].linkname == "../" + long
    assert found[3].linkname == "f"
    assert (found[4].uid, found[4].gid, found[4].mtime) == (1000, 7, 5)
    assert (
        found[4].pax_headers["SCHILY.xattr.security.capability"].encode("utf-8", "surrogateescape")
        == b"\x01\x00=\n\xff"
    )


def test_data_shorter_than_its_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 bytes shorter"):
        read([Item("f", size=5, open=lambda: io.BytesIO(b"abc"))])


def test_parents_come_once_and_first() -> None:
    paths = [item.path for item in with_parents([file_item("a/b/c", b""), file_item("a/b/d", b""), folder_item("a")])]
    assert paths == ["a", "a/b", "a/b/c", "a/b/d"]
