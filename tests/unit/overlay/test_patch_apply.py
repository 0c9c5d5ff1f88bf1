"""Applying hunks: exactly in a build, at a unique distance in an import, and never twice."""

from __future__ import annotations

import pytest

from imagebuild.errors import InputError, RefusedError
from imagebuild.overlay.patch import Hunk
from imagebuild.overlay.patch_apply import (
    HunkState,
    already_applied,
    apply_patch,
    locate_hunks,
    split_lines,
)
from imagebuild.overlay.patch_make import make_diff, make_hunks, show_diff
from imagebuild.overlay.patch_parse import parse_patch

BASE = b"".join(b"line %d\n" % number for number in range(1, 41))
CHANGED = BASE.replace(b"line 10\n", b"ten\n").replace(b"line 30\n", b"thirty\nand more\n")
HUNKS = make_hunks(BASE, CHANGED)


def test_exact_hunks_apply() -> None:
    assert apply_patch(BASE, HUNKS) == CHANGED


def test_one_line_of_context_that_differs_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        apply_patch(BASE.replace(b"line 12\n", b"line twelve\n"), HUNKS, "vllm/envs.py")
    error = caught.value
    assert error.code == "overlay.patch-mismatch"
    assert "vllm/envs.py: hunk 1" in error.message
    assert (error.expected, error.found) == ("'line 12'", "'line twelve'")
    assert error.details["failed"] == 1


def test_shifted_context_is_refused_in_a_build_and_found_in_an_import() -> None:
    shifted = b"new first line\n" + BASE
    with pytest.raises(RefusedError):
        apply_patch(shifted, HUNKS)
    found = locate_hunks(split_lines(shifted), HUNKS)
    assert [report.offset for report in found.reports] == [1, 1]
    assert found.moved
    assert found.hunks is not None
    assert apply_patch(shifted, found.hunks) == b"new first line\n" + CHANGED


def test_each_hunk_has_its_own_offset() -> None:
    lines = split_lines(BASE)
    other = b"".join(lines[3:20] + [b"x\n"] * 5 + lines[20:])
    found = locate_hunks(split_lines(other), HUNKS)
    assert [report.offset for report in found.reports] == [-3, 2]
    assert found.hunks is not None
    assert b"ten\n" in apply_patch(other, found.hunks)


def test_a_place_that_is_not_the_only_one_is_refused() -> None:
    block = b"a\nb\nc\nd\ne\nf\ng\n"
    hunks = make_hunks(block, block.replace(b"d\n", b"D\n"))
    twice = b"start\n" + block + b"between\n" + block
    found = locate_hunks(split_lines(twice), hunks)
    assert found.hunks is None
    assert found.reports[0].state is HunkState.AMBIGUOUS
    assert found.reports[0].places == (2, 10)


def test_a_hunk_that_stands_where_it_says_is_taken_although_it_would_fit_elsewhere_too() -> None:
    block = b"a\nb\nc\nd\ne\nf\ng\n"
    twice = block + b"between\n" + block
    hunks = make_hunks(twice, block + b"between\n" + block.replace(b"d\n", b"D\n"))
    found = locate_hunks(split_lines(twice), hunks)
    assert found.hunks == hunks
    assert not found.moved


def test_the_order_of_the_hunks_decides_where_it_can() -> None:
    block = b"a\nb\nc\nd\ne\nf\ng\n"
    middle = b"".join(b"m%d\n" % number for number in range(10))
    old = middle + block
    new = old.replace(b"m5\n", b"M5\n").replace(b"d\n", b"D\n")
    found = locate_hunks(split_lines(block + old), make_hunks(old, new))
    assert found.hunks is not None
    assert apply_patch(block + old, found.hunks) == block + new


def test_hunks_never_change_places() -> None:
    top, end = b"a1\na2\na3\na4\na5\na6\na7\n", b"b1\nb2\nb3\nb4\nb5\nb6\nb7\n"
    gap = b"".join(b"g%d\n" % number for number in range(9))
    hunks = make_hunks(top + gap + end, (top + gap + end).replace(b"a4", b"A4").replace(b"b4", b"B4"))
    found = locate_hunks(split_lines(b"first\n" + end + gap + top + b"last\n"), hunks)
    assert found.hunks is None
    assert HunkState.MISORDERED in [report.state for report in found.reports]


def test_beyond_a_thousand_lines_nothing_is_found() -> None:
    far = [b"x\n"] * 1001 + split_lines(BASE)
    near = [b"x\n"] * 1000 + split_lines(BASE)
    assert locate_hunks(near, HUNKS).hunks is not None
    assert locate_hunks(far, HUNKS).hunks is None


def test_a_hunk_at_the_end_of_its_file_stays_at_the_end() -> None:
    hunks = make_hunks(b"a\nb\nc\n", b"a\nb\nc\nd\n")
    with pytest.raises(RefusedError) as caught:
        apply_patch(b"a\nb\nc\nextra\n", hunks)
    assert caught.value.expected == "the end of the file"
    assert locate_hunks([b"a\n", b"b\n", b"c\n", b"extra\n"], hunks).hunks is None


def test_a_hunk_at_the_beginning_stays_at_the_beginning() -> None:
    hunks = make_hunks(b"a\nb\nc\nd\n", b"new\na\nb\nc\nd\n")
    assert locate_hunks([b"first\n", b"a\n", b"b\n", b"c\n", b"d\n"], hunks).hunks is None


def test_already_applied_is_said_and_never_undone() -> None:
    assert already_applied(CHANGED, HUNKS)
    assert not already_applied(BASE, HUNKS)
    with pytest.raises(RefusedError) as caught:
        apply_patch(CHANGED, HUNKS, "vllm/envs.py")
    assert caught.value.code == "overlay.already-applied"


def test_a_part_that_is_already_applied_is_told_apart() -> None:
    half = BASE.replace(b"line 10\n", b"ten\n")
    found = locate_hunks(split_lines(half), HUNKS)
    assert [report.state for report in found.reports] == [HunkState.APPLIED, HunkState.EXACT]
    with pytest.raises(RefusedError) as caught:
        apply_patch(half, HUNKS)
    assert caught.value.code == "overlay.patch-mismatch"


def test_line_ends_that_differ_are_named() -> None:
    with pytest.raises(RefusedError) as caught:
        apply_patch(BASE.replace(b"\n", b"\r\n"), HUNKS)
    assert caught.value.hint is not None
    assert "CRLF" in caught.value.hint


def test_new_positions_that_contradict_the_hunks_above_are_refused() -> None:
    wrong = (HUNKS[0], HUNKS[1].moved(HUNKS[1].position, HUNKS[1].new_position + 1))
    with pytest.raises(InputError) as caught:
        apply_patch(BASE, wrong)
    assert caught.value.code == "overlay.patch-bad-hunk"


def test_nothing_is_put_behind_a_line_without_newline() -> None:
    with pytest.raises(RefusedError) as caught:
        apply_patch(b"one\ntwo", [Hunk(2, 0, 3, 1, (b"+three\n",))])
    assert "no newline" in caught.value.message


def test_an_insertion_without_context_is_only_taken_where_it_says() -> None:
    insertion = [Hunk(2, 0, 3, 1, (b"+x\n",))]
    assert apply_patch(b"a\nb\nc\n", insertion) == b"a\nb\nx\nc\n"
    assert locate_hunks([b"a\n"], insertion).hunks is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"", b"a\nb\n"),
        (b"a\nb\n", b""),
        (b"a", b"a\n"),
        (b"a\n", b"a"),
        (b"a\nb", b"a\nc"),
        (b"a\r\nb\r\n", b"a\nb\r\n"),
        (b"x\n" * 300, b"x\n" * 150 + b"y\n" + b"x\n" * 150),
        (bytes(range(256)) * 3, bytes(reversed(range(256))) * 3),
    ],
)
def test_a_made_diff_applies_and_is_read_back(old: bytes, new: bytes) -> None:
    (file,) = parse_patch(make_diff("d/x", old, new)).files
    assert apply_patch(old, file.hunks) == new


def test_a_diff_of_new_and_deleted_files() -> None:
    (new,) = parse_patch(make_diff("d/x", None, b"a\n")).files
    (gone,) = parse_patch(make_diff("d/x", b"a\n", None)).files
    assert new.created
    assert gone.deleted
    assert make_diff("d/x", b"a\n", b"a\n") == b""


def test_the_text_of_a_made_diff_is_fixed() -> None:
    old = b"def a():\n    return 1\n\n\ndef b():\n    return 2\n\n\ndef c():\n    return 3\n"
    new = old.replace(b"return 2", b"return 4").replace(b"def c", b"@cached\ndef c")
    assert make_diff("vllm/x.py", old, new) == (
        b"diff --git a/vllm/x.py b/vllm/x.py\n--- a/vllm/x.py\n+++ b/vllm/x.py\n@@ -3,8 +3,9 @@\n \n \n def b():\n"
        b"-    return 2\n+    return 4\n \n \n+@cached\n def c():\n     return 3\n"
    )


def test_a_diff_for_a_message_is_text_bounded_and_harmless() -> None:
    shown = show_diff("vllm/x.py", b"a\n" * 200, b"\x1b[2Jb\n" * 200, lines=10)
    assert shown is not None
    assert len(shown.split("\n")) == 11
    assert shown.endswith("more lines)")
    assert "\x1b" not in shown
    long = show_diff("vllm/x.py", b"a\n", b"b" * 10_000)
    assert long is not None
    assert len(long) < 1000
    for one, other in (
        (None, b"a"),
        (b"a", None),
        (b"a", b"a"),
        (b"\0", b"a"),
        (b"\xff", b"a"),
        (b"a", b"x" * (5 << 20)),
    ):
        assert show_diff("vllm/x.py", one, other) is None
