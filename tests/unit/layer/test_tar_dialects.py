"""The dialects of tar that layers are written in: v7, ustar, GNU, star, PAX; and how archives end."""

from __future__ import annotations

import io

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Entry, Kind, LayerFacts
from imagebuild.layer.headers import checksum_is_right, parse_number
from imagebuild.layer.names import TarFault
from imagebuild.layer.pax import floor_time, parse_records
from imagebuild.layer.tar_reader import read_layer
from imagebuild.testing.raw_tar import END, GNU, V7, blob, header, long_name, member, padded, pax, record


def read(tar: bytes) -> LayerFacts:
    data, descriptor = blob(tar)
    facts = read_layer(io.BytesIO(data), descriptor)
    assert facts.diff_id == Digest.of(tar)
    return facts


def only(tar: bytes) -> Entry:
    (entry,) = read(tar + END).entries.values()
    return entry


def refusal(tar: bytes) -> str:
    with pytest.raises(RefusedError) as caught:
        read(tar)
    return caught.value.code


# Numbers and checksums


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"0000644\0", 0o644),
        (b"   644 \0", 0o644),
        (b"644\0junk", 0o644),
        (bytes(8), 0),
        (b"        ", 0),
        (b"\x80\0\0\0\0\0\1\0", 256),
        (b"\xff\xff\xff\xff\xff\xff\xff\xfe", -2),
    ],
)
def test_numbers(field: bytes, value: int) -> None:
    assert parse_number(field) == value


@pytest.mark.parametrize("field", [b"\x80" + bytes(3) + b"\x80" + bytes(7), b"\xff" * 3 + b"\x7f" + b"\xff" * 8])
def test_base_256_beyond_64_bits_is_refused(field: bytes) -> None:
    with pytest.raises(TarFault):
        parse_number(field)


@pytest.mark.parametrize(
    "field", [b"0000648\0", b"-000644\0", b"0o00644\0", b"1_00000\0", b"64 4\0\0\0\0", b"0x1f\0\0\0\0"]
)
def test_numbers_that_are_none_are_refused(field: bytes) -> None:
    with pytest.raises(TarFault):
        parse_number(field)
    assert refusal(header(b"x", mode=field) + END) == "base.bad-tar"


def test_the_checksum_is_read_unsigned_and_signed() -> None:
    block = header(b"caf\xe9")
    total = sum(block[:148]) + 256 + sum(block[156:])
    assert checksum_is_right(block)
    assert checksum_is_right(header(b"caf\xe9", checksum=b"%06o\0 " % (total - 256)))
    for wrong in (total + 1, total - 1, total - 512):
        assert not checksum_is_right(header(b"caf\xe9", checksum=b"%06o\0 " % wrong))
    assert not checksum_is_right(header(b"x", checksum=b"zzzzzzzz"))


def test_a_wrong_checksum_is_refused() -> None:
    block = bytearray(header(b"x"))
    block[0] ^= 1
    assert refusal(bytes(block) + END) == "base.bad-tar"


def test_base_256_sizes_and_owners() -> None:
    big = (3_000_000).to_bytes(7, "big")
    entry = only(header(b"x", uid=b"\x80" + big, gid=b"\x80" + big, size=b"\x80" + bytes(10) + b"\3") + padded(b"abc"))
    assert (entry.uid, entry.gid, entry.size, entry.sha256) == (3_000_000, 3_000_000, 3, Digest.of(b"abc"))


def test_negative_times_and_owners() -> None:
    assert only(header(b"x", mtime=b"\xff" * 12)).mtime == -1
    assert refusal(header(b"x", uid=b"\xff" * 8) + END) == "base.bad-tar"
    assert refusal(header(b"x", size=b"\xff" * 12) + END) == "base.bad-tar"


# Names


def test_v7_has_no_prefix_and_marks_folders_by_a_slash() -> None:
    facts = read(
        header(b"dir/", kind=b"\0", magic=V7)
        + member(b"dir/f", b"1", b"\0", V7)
        + header(b"x", magic=V7, prefix=b"p")
        + END
    )
    assert [(e.path, e.kind) for e in facts.entries.values()] == [
        ("dir", Kind.DIRECTORY),
        ("dir/f", Kind.FILE),
        ("x", Kind.FILE),
    ]


def test_ustar_prefix() -> None:
    assert only(header(b"n" * 100, prefix=b"p" * 155)).path == "p" * 155 + "/" + "n" * 100


def test_star_prefix_is_shorter() -> None:
    assert only(header(b"n", prefix=b"p" * 131 + b"00000000000 ", rest=bytes(8) + b"tar\0")).path == "p" * 131 + "/n"


def test_gnu_times_are_no_prefix() -> None:
    assert only(header(b"n", magic=GNU, prefix=b"14524662400\x0014524662400\0")).path == "n"


def test_prefix_that_old_go_wrote_into_gnu_headers() -> None:
    assert only(header(b"n", magic=GNU, prefix=b"some/folder")).path == "some/folder/n"
    assert refusal(header(b"n", magic=GNU, prefix=b"caf\xe9") + END) == "base.bad-tar"


@pytest.mark.parametrize("length", [100, 101, 255, 4096])
def test_gnu_long_names_and_links(length: int) -> None:
    name = (b"abcdefg/" * 600)[: length - 1] + b"x"
    link = b"../" + name[3:]
    entry = only(long_name(name) + long_name(link, b"K") + header(b"cut", kind=b"2", link=b"cut", magic=GNU))
    assert (entry.path, entry.link) == (name.decode(), link.decode())


def test_a_path_longer_than_the_bound_is_refused() -> None:
    assert refusal(long_name(b"a" * 4097) + header(b"x") + END) == "base.bad-path"
    assert refusal(pax((b"path", b"a" * 4097)) + header(b"x") + END) == "base.bad-path"
    assert refusal(long_name(b"a" * 4097, b"K") + header(b"x", kind=b"2", link=b"y") + END) == "base.bad-path"


def test_two_extended_headers_that_contradict_each_other_are_refused() -> None:
    assert refusal(long_name(b"a") + long_name(b"b") + header(b"x") + END) == "base.bad-tar"
    assert refusal(pax((b"uid", b"1")) * 2 + header(b"x") + END) == "base.bad-tar"
    assert refusal(long_name(b"a") + pax((b"path", b"b")) + header(b"x") + END) == "base.bad-tar"
    assert only(long_name(b"a") + pax((b"path", b"a")) + header(b"x")).path == "a"


@pytest.mark.parametrize("last", [pax((b"path", b"x")), long_name(b"x"), long_name(b"x", b"K")])
def test_an_extended_header_before_nothing_is_refused(last: bytes) -> None:
    assert refusal(last + END) == "base.bad-tar"
    assert refusal(last) == "base.bad-tar"


# PAX


def test_pax_records() -> None:
    entry = only(
        pax(
            (b"path", "päth".encode()),
            (b"linkpath", b"target"),
            (b"uid", b"3000000"),
            (b"gid", b"3000001"),
            (b"mtime", b"1700000000.987654321"),
            (b"SCHILY.xattr.user.b", b"\0\n=\xff"),
            (b"SCHILY.xattr.security.capability", b"cap"),
            (b"uname", b"nobody"),
            (b"vendor.key", b"kept out"),
        )
        + header(b"cut", kind=b"2", link=b"cut")
    )
    assert (entry.path, entry.link, entry.uid, entry.gid, entry.mtime) == (
        "päth",
        "target",
        3000000,
        3000001,
        1700000000,
    )
    assert entry.xattrs == (("security.capability", b"cap"), ("user.b", b"\0\n=\xff"))


def test_pax_size_counts_not_the_header_s() -> None:
    facts = read(pax((b"size", b"600")) + header(b"x", 3) + padded(b"d" * 600) + member(b"y", b"2") + END)
    assert facts.entries["x"].sha256 == Digest.of(b"d" * 600)
    assert facts.entries["y"].sha256 == Digest.of(b"2")


def test_pax_speaks_of_the_next_entry_only() -> None:
    facts = read(pax((b"path", b"a"), (b"SCHILY.xattr.user.x", b"1")) + header(b"x") + header(b"y") + END)
    assert [(e.path, e.xattrs) for e in facts.entries.values()] == [("a", (("user.x", b"1"),)), ("y", ())]


def test_the_last_record_of_a_key_wins_and_an_empty_one_takes_it_back() -> None:
    assert only(pax((b"path", b"a"), (b"path", b"b")) + header(b"x")).path == "b"
    assert only(pax((b"path", b"a"), (b"path", b"")) + header(b"x")).path == "x"


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"12", 12), (b"12.9", 12), (b"-1", -1), (b"-1.5", -2), (b"-1.0", -1), (b"0.000", 0)]
)
def test_times_are_floored(value: bytes, seconds: int) -> None:
    assert floor_time(value) == seconds
    assert only(pax((b"mtime", value)) + header(b"x")).mtime == seconds


@pytest.mark.parametrize(
    "records",
    [
        b"8 path=x\n",
        b"11 path=xyz",
        b"path=x\n",
        b"7 path\n",
        b"5 =x\n",
        b"-5 a=b\n",
        b"6 a=b\nx",
        b"99999999 a=b\n",
        b"0 a=b\n",
        record(b"path", b"a\0b"),
        record(b"a\0", b"b"),
        record(b"size", b"1e3"),
        record(b"size", b"-1"),
        record(b"uid", b" 1"),
        record(b"uid", b"99999999999"),
        record(b"mtime", b"1.2.3"),
        record(b"mtime", b"nan"),
        record(b"mtime", b"9" * 20),
    ],
)
def test_pax_headers_that_are_malformed_are_refused(records: bytes) -> None:
    assert refusal(member(b"p", records, b"x") + header(b"x") + END) in ("base.bad-pax", "base.bad-tar")


def test_record_lengths_count_themselves() -> None:
    for size in (*range(80, 120), 985, 990, 995):
        assert parse_records(record(b"k", b"v" * size)) == [(b"k", b"v" * size)]


def test_a_global_header_with_commentary_is_passed_over() -> None:
    assert only(pax((b"comment", b"0123456789abcdef"), kind=b"g") + header(b"x")).path == "x"


@pytest.mark.parametrize("key", [b"path", b"mtime", b"uid", b"size", b"SCHILY.xattr.user.x", b"GNU.sparse.map"])
def test_a_global_header_that_would_change_entries_is_refused(key: bytes) -> None:
    assert refusal(pax((key, b"1"), kind=b"g") + header(b"x") + END) == "base.global-pax"


def test_an_extended_header_above_the_bound_is_refused_before_it_is_read() -> None:
    for kind in (b"x", b"g", b"L", b"K"):
        assert refusal(header(b"p", (1 << 20) + 1, kind)) == "base.bad-pax"


def test_data_of_a_link_or_folder_is_not_there_whatever_its_size_says() -> None:
    facts = read(header(b"d/", 512, b"5") + header(b"f", 0) + header(b"h", 512, b"1", link=b"f") + END)
    assert list(facts.entries) == ["d", "f", "h"]
    assert facts.entries["h"].size == 0


# The end


@pytest.mark.parametrize("end", [b"", bytes(512), END, bytes(10240), END + bytes(100)])
def test_archives_end_in_several_ways(end: bytes) -> None:
    facts = read(member(b"x", b"1") + end)
    assert list(facts.entries) == ["x"]
    assert facts.notes == ()


def test_the_padding_of_the_last_file_may_be_missing() -> None:
    assert read(header(b"x", 3) + b"abc").entries["x"].sha256 == Digest.of(b"abc")
    assert read(header(b"x", 3) + b"abc" + bytes(100)).entries["x"].sha256 == Digest.of(b"abc")


def test_no_entries_at_all() -> None:
    assert not read(END).entries
    assert not read(b"").entries


def test_data_after_the_end_is_noted_and_not_read() -> None:
    facts = read(member(b"x", b"1") + END + member(b"hidden", b"2") + END)
    assert list(facts.entries) == ["x"]
    assert facts.notes == (("base.trailing-data", ""),)


def test_a_lone_zero_block_before_another_header_is_refused() -> None:
    assert refusal(member(b"x", b"1") + bytes(512) + member(b"y", b"2") + END) == "base.bad-tar"


@pytest.mark.parametrize("cut", [1, 511])
def test_an_archive_that_ends_inside_a_header_is_refused(cut: int) -> None:
    assert refusal(member(b"x", b"1") + header(b"y")[:cut]) == "base.bad-tar"


def test_an_archive_that_ends_inside_a_file_is_refused() -> None:
    for tar in (header(b"x", 600) + bytes(599), header(b"p", 10, b"x") + b"10 a"):
        assert refusal(tar) == "base.bad-tar"
