"""RECORD rows cut out of bytes and edited one by one."""

from __future__ import annotations

import base64
import csv
import hashlib
import io

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.overlay.record import RecordEdits, edit_record
from imagebuild.overlay.record_rows import image_path, record_rows, row_path

SITE = "usr/lib/python3.12/site-packages"


class Bytes:
    """A `Data` over bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def sha256(self) -> Digest:
        return Digest.of(self._data)

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._data)


def claim(data: bytes, algorithm: str = "sha256") -> bytes:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=")
    return algorithm.encode() + b"=" + digest + b"," + str(len(data)).encode()


def at(name: str) -> str:
    return f"{SITE}/{name}"


OLD = claim(b"old")
RECORD = (
    b"pkg/__init__.py," + OLD + b"\n"
    b'"pkg/a,""b"".py",' + OLD + b"\n"
    b"pkg/m.py," + OLD + b"\n"
    b"pkg/__pycache__/m.cpython-312.pyc,,\n"
    b"pkg/sub/x.py," + OLD + b"\n"
    b"../../../bin/tool," + OLD + b"\n"
    b"pkg-1.0.dist-info/RECORD,,\n"
)


def edit(data: bytes = RECORD, **edits: object) -> bytes:
    removed = frozenset(edits.pop("removed", ()))  # type: ignore[call-overload]
    return edit_record(data, RecordEdits(removed=removed, **edits), SITE)  # type: ignore[arg-type]


def test_a_replaced_file_gets_its_hash_and_size_and_no_other_byte_moves() -> None:
    new = edit(written={at("pkg/m.py"): Bytes(b"new code")})
    assert new == RECORD.replace(b"pkg/m.py," + OLD, b"pkg/m.py," + claim(b"new code"))


def test_a_quoted_path_is_found_and_its_quotes_stay() -> None:
    new = edit(written={at('pkg/a,"b".py'): Bytes(b"n")})
    assert new == RECORD.replace(b'"pkg/a,""b"".py",' + OLD, b'"pkg/a,""b"".py",' + claim(b"n"))


def test_quoted_hash_and_further_fields_stay_quoted_and_there() -> None:
    row = b'm.py,"' + OLD.partition(b",")[0] + b'",3,extra\n'
    new = edit(row, written={at("m.py"): Bytes(b"four")})
    digest, size = claim(b"four").split(b",")
    assert new == b'm.py,"' + digest + b'",' + size + b",extra\n"


def test_a_script_outside_the_site_folder_is_found_through_its_dots() -> None:
    new = edit(written={"usr/bin/tool": Bytes(b"#!")})
    assert b"../../../bin/tool," + claim(b"#!") in new


def test_an_absolute_row_is_found() -> None:
    assert edit(b"/etc/x.conf," + OLD, written={"etc/x.conf": Bytes(b"y")}) == b"/etc/x.conf," + claim(b"y")


@pytest.mark.parametrize("algorithm", ["sha384", "sha512", "md5", "blake2b"])
def test_another_algorithm_is_kept(algorithm: str) -> None:
    row = b"m.py," + claim(b"old", algorithm) + b"\n"
    assert edit(row, written={at("m.py"): Bytes(b"new!")}) == b"m.py," + claim(b"new!", algorithm) + b"\n"


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        edit(b"m.py,crc=abc,3\n", written={at("m.py"): Bytes(b"new")})
    assert caught.value.code == "overlay.record-algorithm"


def test_an_unknown_algorithm_of_an_untouched_row_is_none_of_our_business() -> None:
    assert edit(b"o.py,crc=abc,3\nm.py,,\n", removed={at("m.py")}) == b"o.py,crc=abc,3\n"


def test_rows_without_hash_claim_nothing_afterwards_either() -> None:
    rows = b"a.py,,\nb.py,,3\n"
    assert edit(rows, written={at("a.py"): Bytes(b"1234"), at("b.py"): Bytes(b"1234")}) == b"a.py,,\nb.py,,4\n"


def test_a_row_of_what_became_a_link_loses_its_claim() -> None:
    assert edit(b"a.py," + OLD + b"\n", written={at("a.py"): None}) == b"a.py,,\n"


def test_deleted_files_and_whited_out_bytecode_lose_their_line() -> None:
    new = edit(removed={at("pkg/m.py"), at("pkg/__pycache__/m.cpython-312.pyc")})
    assert [row.path for row in record_rows(new)] == [
        "pkg/__init__.py",
        'pkg/a,"b".py',
        "pkg/sub/x.py",
        "../../../bin/tool",
        "pkg-1.0.dist-info/RECORD",
    ]


def test_a_deleted_folder_takes_everything_below_and_nothing_beside() -> None:
    rows = b"pkg/sub/x.py,,\npkg/sub/y/z.py,,\npkg/subx.py,,\n"
    assert edit(rows, removed={at("pkg/sub")}) == b"pkg/subx.py,,\n"


def test_an_added_file_stands_after_the_last_row_of_its_folder() -> None:
    new = edit(added={at("pkg/new.py"): Bytes(b"n")})
    lines = new.split(b"\n")
    # The last row whose folder is pkg itself is m.py; what lies deeper does not count.
    assert lines[3] == b"pkg/new.py," + claim(b"n")
    assert b"\n".join(lines[:3] + lines[4:]) == RECORD


def test_an_added_file_in_a_new_folder_stands_after_the_nearest_folder() -> None:
    new = edit(added={at("pkg/sub/deep/new.py"): Bytes(b"n"), at("pkg/sub/deep/also.py"): Bytes(b"m")})
    paths = [row.path for row in record_rows(new)]
    here = paths.index("pkg/sub/x.py")
    assert paths[here + 1 : here + 3] == ["pkg/sub/deep/also.py", "pkg/sub/deep/new.py"]


def test_an_added_file_that_is_listed_already_is_refreshed_not_doubled() -> None:
    new = edit(added={at("pkg/m.py"): Bytes(b"n")})
    assert new == RECORD.replace(b"pkg/m.py," + OLD, b"pkg/m.py," + claim(b"n"))


def test_an_added_path_that_needs_quotes_gets_them() -> None:
    new = edit(added={at('pkg/q,"r".json'): Bytes(b"n")})
    assert b'"pkg/q,""r"".json",' + claim(b"n") + b"\n" in new


def test_no_line_is_ever_added_for_bytecode() -> None:
    assert edit(added={at("pkg/__pycache__/new.cpython-312.pyc"): Bytes(b"n")}) == RECORD


def test_crlf_is_kept_and_given_to_new_rows() -> None:
    dos = RECORD.replace(b"\n", b"\r\n")
    new = edit(dos, written={at("pkg/m.py"): Bytes(b"n")}, added={at("pkg/new.py"): Bytes(b"o")})
    assert new.count(b"\n") == new.count(b"\r\n") == RECORD.count(b"\n") + 1
    assert b"pkg/new.py," + claim(b"o") + b"\r\n" in new


def test_a_last_line_without_newline_stays_without_one() -> None:
    bare = RECORD.removesuffix(b"\n")
    assert edit(bare, written={at("pkg/m.py"): Bytes(b"old")}) == bare
    new = edit(bare, added={at("pkg-1.0.dist-info/imagebuild.json"): None})
    assert new == bare + b"\npkg-1.0.dist-info/imagebuild.json,,"


def test_a_single_unended_row_gets_a_newline_before_a_new_one() -> None:
    assert edit(b"pkg/a.py,,", added={at("pkg/b.py"): None}) == b"pkg/a.py,,\npkg/b.py,,"
    assert edit(b"", added={at("pkg/b.py"): None}) == b"pkg/b.py,,\n"


def test_blank_lines_and_short_rows_stay() -> None:
    odd = b"\npkg/a.py\n\npkg/b.py,x\n"
    assert edit(odd, written={at("pkg/a.py"): Bytes(b"n")}) == odd


def test_a_path_with_a_line_end_is_one_row() -> None:
    rows = list(record_rows(b'"a\nb.py",,\nc.py,,\n'))
    assert [(row.path, row.raw) for row in rows] == [("a\nb.py", b'"a\nb.py",,'), ("c.py", b"c.py,,")]
    assert edit(b'"a\nb.py",,\nc.py,,\n', removed={at("a\nb.py")}) == b"c.py,,\n"


def test_a_quote_inside_an_unquoted_field_is_a_plain_character() -> None:
    line = b'a"b.py,,\nc.py,,\n'
    assert [row.path for row in record_rows(line)] == ['a"b.py', "c.py"]
    assert [row[0] for row in csv.reader(io.StringIO(line.decode()))] == ['a"b.py', "c.py"]


def test_a_quote_that_never_ends_is_refused_with_its_line() -> None:
    with pytest.raises(RefusedError) as caught:
        list(record_rows(b'a.py,,\n"b.py,,\nc.py,,\n'))
    assert caught.value.code == "overlay.record-malformed"
    assert "line 2" in caught.value.message


def test_bytes_that_are_not_utf8_survive() -> None:
    raw = b"pkg/\xff.py," + OLD + b"\npkg/m.py,,\n"
    path = at(b"pkg/\xff.py".decode("utf-8", "surrogateescape"))
    assert edit(raw, written={path: Bytes(b"n")}) == b"pkg/\xff.py," + claim(b"n") + b"\npkg/m.py,,\n"


@pytest.mark.parametrize(
    ("site", "row", "path"),
    [
        (SITE, "pkg/m.py", f"{SITE}/pkg/m.py"),
        (SITE, "../../../bin/x", "usr/bin/x"),
        (SITE, "/opt/x", "opt/x"),
        (SITE, "./pkg//m.py", f"{SITE}/pkg/m.py"),
        ("", "pkg/m.py", "pkg/m.py"),
        ("", "../../etc/x", "etc/x"),
        (SITE, ".hidden", f"{SITE}/.hidden"),
    ],
)
def test_where_a_row_points(site: str, row: str, path: str) -> None:
    assert image_path(site, row) == path
    assert image_path(site, row_path(site, path)) == path
