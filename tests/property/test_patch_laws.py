"""Laws of diffs over random files and random edits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imagebuild.errors import InputError, RefusedError
from imagebuild.overlay.line_diff import common_lines
from imagebuild.overlay.patch import Patch, format_patch, normalise
from imagebuild.overlay.patch_apply import (
    already_applied,
    apply_patch,
    locate_hunks,
    split_lines,
)
from imagebuild.overlay.patch_make import make_diff, make_file_patch, make_hunks
from imagebuild.overlay.patch_parse import parse_patch

LINES = st.sampled_from(
    [b"a\n", b"b\n", b"c\n", b"\n", b" \n", b"x\r\n", b"-- \n", b"--- a\n", b"@@ -1 +1 @@\n", b"\xff\0\n"]
)
FILES = st.builds(
    lambda lines, last: b"".join(lines) + last, st.lists(LINES, max_size=30), st.sampled_from([b"", b"end"])
)


@given(FILES, FILES)
@example(b"a", b"a\n")
def test_a_made_diff_is_read_back_and_turns_one_file_into_the_other(old: bytes, new: bytes) -> None:
    text = make_diff("root/file", old, new)
    if old == new:
        assert text == b""
        return
    (file,) = parse_patch(text).files
    assert apply_patch(old, file.hunks) == new
    assert apply_patch(new, [hunk.reversed() for hunk in file.hunks]) == old
    assert already_applied(new, file.hunks)


@given(FILES, FILES)
def test_writing_and_reading_a_patch_is_stable(old: bytes, new: bytes) -> None:
    if old == new:
        return
    patch = Patch((make_file_patch("root/a file", old, new), make_file_patch("root/b", None, new)), b"Why: so.\n")
    again = parse_patch(format_patch(patch))
    assert format_patch(again) == format_patch(patch)
    assert normalise(again) == normalise(patch)


@given(FILES, FILES)
def test_common_lines_are_equal_and_rising(old: bytes, new: bytes) -> None:
    before, after = split_lines(old), split_lines(new)
    pairs = common_lines(before, after)
    assert all(before[i] == after[j] for i, j in pairs)
    assert all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(pairs))


@given(st.integers(1, 999), st.data())
def test_an_import_finds_what_a_build_refuses(shift: int, data: st.DataObject) -> None:
    lines = [b"line %d\n" % number for number in range(60)]
    places = data.draw(st.lists(st.integers(8, 50), min_size=1, max_size=4, unique=True))
    edited = list(lines)
    for place in places:
        edited[place] = b"edited %d\n" % place
    hunks = make_hunks(b"".join(lines), b"".join(edited))
    above = b"other\n" * shift
    with pytest.raises(RefusedError):
        apply_patch(above + b"".join(lines), hunks)
    found = locate_hunks(split_lines(above + b"".join(lines)), hunks)
    assert found.hunks is not None
    assert {report.offset for report in found.reports} == {shift}
    assert apply_patch(above + b"".join(lines), found.hunks) == above + b"".join(edited)


@given(FILES, FILES, st.integers(0, 10), st.integers(0, 10))
def test_whatever_an_import_finds_is_exact_afterwards(old: bytes, new: bytes, above: int, below: int) -> None:
    hunks = make_hunks(old, new)
    other = b"z\n" * above + old + (b"" if old.endswith(b"end") else b"z\n" * below)
    found = locate_hunks(split_lines(other), hunks)
    if found.hunks is None:
        return
    after = apply_patch(other, found.hunks)
    assert apply_patch(after, [hunk.reversed() for hunk in found.hunks]) == other


@given(st.binary(max_size=400))
def test_no_bytes_make_the_parser_fail_otherwise_than_it_says(data: bytes) -> None:
    for text in (data, b"--- a/x/y\n+++ b/x/y\n@@ -1,2 +1,2 @@\n" + data, b"diff --git a/x/y b/x/y\n" + data):
        try:
            patch = parse_patch(text)
        except InputError:
            continue
        assert normalise(parse_patch(normalise(patch))) == normalise(patch)
