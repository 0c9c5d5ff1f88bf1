"""The tar reader and writer of image archives."""

import io
import tarfile
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.content.reader import VerifiedReader
from imagebuild.errors import RefusedError
from imagebuild.oci.plain_tar import Forward, Member, TarWriter, index_members
from imagebuild.testing.images import File, Folder, HardLink, Link, Special, make_tar


class Pipe:
    """A stream that cannot seek and gives little at a time."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        return self._stream.read(min(size, 700))


def members(tar: bytes, limit: int | None = None) -> dict[str, Member]:
    size = len(tar) if limit is None else limit
    seekable = index_members(Forward(io.BytesIO(tar), True), size, "t")
    kept: dict[str, bytes] = {}
    piped: Any = Pipe(tar)
    assert index_members(Forward(piped, False), size, "t", kept) == seekable
    assert kept == {name: tar[m.offset : m.offset + m.size] for name, m in seekable.items()}
    return seekable


def refused(tar: bytes, limit: int | None = None) -> str:
    for stream, seekable in ((io.BytesIO(tar), True), (Pipe(tar), False)):
        with pytest.raises(RefusedError) as caught:
            index_members(Forward(stream, seekable), len(tar) if limit is None else limit, "t")  # type: ignore[arg-type]
        assert caught.value.code == "oci.bad-archive"
    return caught.value.message


LONG = "d/" * 120 + "file"


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_regular_files_of_every_format(tar_format: int) -> None:
    items = [File("a", b"1"), Folder("d"), Link("l", "/etc"), HardLink("h", "a"), Special("p", tarfile.FIFOTYPE)]
    items += [File("./d/b", b"2" * 600), File("e", b"")]
    items += [] if tar_format == tarfile.USTAR_FORMAT else [File(LONG, b"long"), File("after", b"x")]
    items += [File("p/" * 60 + "x", b"prefix")]
    tar = make_tar(items, tar_format)
    found = members(tar)
    data = {name: tar[m.offset : m.offset + m.size] for name, m in found.items()}
    expected = {item.path.removeprefix("./"): item.data for item in items if isinstance(item, File)}
    assert data == expected


def test_a_pax_size_stands_for_one_too_large_for_the_header() -> None:
    tar = make_tar([File("big", b"b" * 700, pax={"size": "700"}), File("after", b"a")])
    assert tar[:1024].count(b"12 size=700\n") == 1
    tar = tar[:1024] + patched(tar[1024:], 124, b"00000000000\0")
    assert {name: m.size for name, m in members(tar).items()} == {"big": 700, "after": 1}


def test_what_has_no_data_has_no_size() -> None:
    for item in (Folder("d"), HardLink("h", "a"), Link("l", "a"), Special("p", tarfile.FIFOTYPE)):
        assert list(members(patched(make_tar([item, File("a")]), 124, b"00000001000\0"))) == ["a"]


def test_a_long_link_name_between_a_long_name_and_its_file() -> None:
    tar = make_tar([File(LONG, b"long")], tarfile.GNU_FORMAT)
    between = make_tar([File("././@LongLink", b"somewhere\0")], tarfile.GNU_FORMAT)[:1024]
    assert list(members(tar[:1024] + patched(between, 156, b"K") + tar[1024:])) == [LONG]


def test_what_gnu_keeps_in_the_place_of_the_prefix_is_no_name() -> None:
    tar = make_tar([File("a", b"1")], tarfile.GNU_FORMAT)
    assert list(members(patched(tar, 345, b"14000000000\0"))) == ["a"]


def test_pax_size_wins_and_counts_for_its_own_member_alone() -> None:
    head = tarfile.TarInfo("big")
    head.size, head.pax_headers = 700, {"size": "700"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(head, io.BytesIO(b"b" * 700))
        archive.addfile(tarfile.TarInfo("none"))
    assert {name: m.size for name, m in members(out.getvalue()).items()} == {"big": 700, "none": 0}


def test_a_tar_without_its_end_is_read_and_one_cut_inside_is_not() -> None:
    tar = make_tar([File("a", b"1" * 600)])
    end = 512 + 1024
    assert members(tar[:end])["a"].size == 600
    for cut in (1, 511, 513, 1111):
        refused(tar[:cut])
        with pytest.raises(RefusedError, match="in the middle"):
            index_members(Forward(Pipe(tar[:cut]), False), end, "t")  # type: ignore[arg-type]
    for empty in (b"", bytes(1024)):
        refused(empty)


@pytest.mark.parametrize("name", ["/abs", "../up", "a/../b", "a/..", "./../x", ".//x", "./"])
def test_names_that_lead_out_are_refused(name: str) -> None:
    assert "leads out" in refused(make_tar([File("ok"), File(name)]))


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_that_lead_out_are_refused_too(tar_format: int) -> None:
    assert "leads out" in refused(make_tar([File("../" * 60 + "x")], tar_format))


def test_only_so_much_is_kept_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagebuild.oci.plain_tar._KEPT", 10)
    monkeypatch.setattr("imagebuild.oci.plain_tar._KEPT_TOGETHER", 15)
    tar = make_tar([File("a", b"1" * 8), File("b", b"2" * 11), File("c", b"3" * 8), File("d", b"4" * 7)])
    kept: dict[str, bytes] = {}
    index_members(Forward(Pipe(tar), False), len(tar), "t", kept)  # type: ignore[arg-type]
    assert sorted(kept) == ["a", "d"]


def test_a_name_with_a_nul_is_refused() -> None:
    assert "leads out" in refused(make_tar([File("x", pax={"path": "index.json\0x"})]))


def test_two_members_of_one_name_are_refused() -> None:
    assert "one name" in refused(make_tar([File("a"), File("./a")]))


def patched(tar: bytes, at: int, data: bytes) -> bytes:
    """The tar with bytes of its first header changed and the checksum right again."""
    head = bytearray(tar[:512])
    head[at : at + len(data)] = data
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + tar[512:]


def test_a_record_that_is_cut() -> None:
    tar = make_tar([File(LONG)], tarfile.GNU_FORMAT)
    with pytest.raises(RefusedError, match="middle of a record"):
        index_members(Forward(Pipe(tar[:600]), False), len(tar), "t")  # type: ignore[arg-type]


def test_damaged_headers() -> None:
    tar = make_tar([File("a", b"1")])
    assert "checksum" in refused(tar[:3] + b"?" + tar[4:])
    assert "octal" in refused(patched(tar, 124, b"99999999999\0"))
    assert "negative" in refused(patched(tar, 124, b"\xff" * 12))
    assert "more bytes" in refused(patched(tar, 124, b"77777777777\0"))
    assert "more bytes" in refused(patched(tar, 124, b"\x80" + b"\x7f" * 11))
    assert members(patched(tar, 124, b"\x80" + bytes(10) + b"\x01"))["a"].size == 1


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    tar = make_tar([File(str(n)) for n in range(10)])
    assert "more bytes" in refused(tar, 2000)
    monkeypatch.setattr("imagebuild.oci.plain_tar.MEMBER_LIMIT", 9)
    assert "too many" in refused(tar)
    record = patched(make_tar([File("x", bytes(70_000))]), 156, b"x")
    assert "record of 70000" in refused(record)


@pytest.mark.parametrize(
    "record",
    [
        b"5 a=b\n",
        b"x a=b\n",
        b"99 a=b\n",
        b"7 abcd\n",
        b"8 a=bcde",
        b"12 size=-10\n",
        b"0 \n",
        b"11 size=1x\n",
        b"9" * 600,
    ],
)
def test_damaged_pax_records(record: bytes) -> None:
    assert "PAX" in refused(patched(make_tar([File("x", record), File("y")]), 156, b"x"))


def test_writer_and_python_agree() -> None:
    out = io.BytesIO()
    writer = TarWriter(out)
    writer.add("a", b"1" * 512)
    data = b"2" * 700
    assert writer.copy("b/c", VerifiedReader(io.BytesIO(data), Digest.of(data), 700)) == 700
    assert writer.gather("d", iter([b"3", b"", b"33"])) == 3
    writer.close()
    tar = out.getvalue()
    assert len(tar) % 512 == 0
    assert {n: tar[m.offset : m.offset + m.size] for n, m in members(tar).items()} == {
        "a": b"1" * 512,
        "b/c": data,
        "d": b"333",
    }
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        assert [(m.name, m.size, m.mtime) for m in archive] == [("a", 512, 0), ("b/c", 700, 0), ("d", 3, 0)]


def test_sizes_beyond_octal() -> None:
    from imagebuild.oci.plain_tar import member_header

    for size in ((1 << 33) - 1, 1 << 33, 1 << 40):
        assert tarfile.TarInfo.frombuf(member_header("x", size), "ascii", "strict").size == size
    for name in ("", "x" * 101, "ü"):
        with pytest.raises(ValueError):
            member_header(name, 1)
