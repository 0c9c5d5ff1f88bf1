"""Corners of patches, series, imports and sessions, each of which once could have gone unseen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from imagebuild.errors import ImagebuildError, InputError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import Change, DeleteChange, EditChange, FileChange, PatchChange
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.editing import EditedFile, load_session, open_session
from imagebuild.overlay.importer import import_diff
from imagebuild.overlay.patch import FilePatch, Hunk, Patch, format_patch
from imagebuild.overlay.patch_apply import HunkReport, HunkState, apply_patch, locate_hunks, split_lines
from imagebuild.overlay.patch_make import make_diff, make_hunks
from imagebuild.overlay.patch_names import header_fields
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.refreshing import refresh_overlay
from imagebuild.overlay.series import AppliedSeries, apply_series
from imagebuild.overlay.series_tree import MemoryBase

AMD64 = Platform("linux", "amd64")
HUNK = b"@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
BASE = {"vllm/d/a.py": b"a = 1\nb = 2\n", "vllm/d/b.py": b"b\n", "vllm/c.py": b"c = 1\n"}


def overlay(name: str, *changes: Change) -> Overlay:
    return Overlay(name, "a test", changes, Path("/nowhere") / name)


def apply(
    overlays: list[Overlay], files: Mapping[str, bytes] = {}, base: Mapping[str, bytes] = BASE, **options: object
) -> AppliedSeries:
    read = lambda overlay, name: files[name]  # noqa: E731
    return apply_series(overlays, {"vllm"}, MemoryBase(base), AMD64, read=read, **options)  # type: ignore[arg-type]


def code_of(work: object) -> str:
    with pytest.raises(ImagebuildError) as caught:
        work()  # type: ignore[operator]
    return caught.value.code


def test_hunks_behind_one_that_adds_lines_are_placed_right() -> None:
    old = b"".join(b"line %d\n" % number for number in range(60))
    new = old.replace(b"line 10\n", b"line 10\nadded\nadded too\n").replace(b"line 40\n", b"forty\n")
    found = locate_hunks(split_lines(b"above\n" + old), make_hunks(old, new))
    assert found.hunks is not None
    assert apply_patch(b"above\n" + old, found.hunks) == b"above\n" + new


def test_the_window_is_measured_at_the_hunk_not_at_its_rarest_line() -> None:
    block = [b"common\n"] * 3 + [b"rare\n"] + [b"common\n"] * 3
    hunk = Hunk(
        1, 7, 1, 7, (*(b" " + text for text in block[:3]), b"-rare\n", b"+new\n", *(b" " + t for t in block[4:]))
    )
    inside = [b"x\n"] * 1000 + block + [b"common\n"] * 10
    assert locate_hunks(inside, [hunk]).reports[0].offset == 1000
    assert locate_hunks([b"x\n", *inside], [hunk]).hunks is None


def test_a_report_near_the_top_of_the_file_names_a_line_that_is_there() -> None:
    hunks = make_hunks(b"a\nb\nc\nd\ne\n", b"a\nb\nC\nd\ne\n")
    (report,) = locate_hunks([b"d\n", b"e\n"], hunks).reports
    assert report.state is HunkState.MISSING
    assert report.line >= 1


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (HunkReport(2, 9, HunkState.EXACT), "hunk 2 (line 9): fits"),
        (HunkReport(2, 9, HunkState.OFFSET, -6), "hunk 2 (line 9): fits at offset -6"),
        (HunkReport(2, 9, HunkState.APPLIED), "hunk 2 (line 9): already applied"),
        (
            HunkReport(2, 9, HunkState.AMBIGUOUS, places=(1, 2, 3, 4, 5, 6)),
            "hunk 2 (line 9): fits at several places (lines 1, 2, 3, 4, 5, …)",
        ),
        (HunkReport(2, 9, HunkState.MISORDERED), "hunk 2 (line 9): fits only where it would overlap or come before another hunk"),
        (
            HunkReport(2, 9, HunkState.MISSING, line=11, expected=b"\ta", found=None),
            "hunk 2 (line 9): differs in line 11: expected '\\\\ta' without a newline, found the end of the file",
        ),
    ],
)  # fmt: skip
def test_reports_read_well(report: HunkReport, text: str) -> None:
    assert report.describe() == text


def test_names_that_need_quotes_are_written_so_that_they_are_read_back() -> None:
    name = 'd/"quoted" \\ back\tslash'
    patch = Patch((FilePatch(name, name, make_hunks(b"a\n", b"b\n")),))
    assert b'"a/d/\\"quoted\\" \\\\ back\\011slash"' in format_patch(patch)
    assert parse_patch(format_patch(patch)).files[0].path == name


@pytest.mark.parametrize(
    "text",
    [
        b"diff --git a/d/x b/d/x\nnew file mode 100644\ndeleted file mode 100644\n",
        b"diff --git a/d/x b/d/x\nnew file mode ten\n",
        b"diff --git a/d/x b/d/x\nindex zzz..yyy\n",
        b"diff --git a/d/x b/d/y\nrename from d/x\n",
        b"diff --git a/d/x b/d/other\nold mode 100644\nnew mode 100755\n",
    ],
)
def test_headers_that_contradict_themselves(text: bytes) -> None:
    assert code_of(lambda: parse_patch(text)) == "overlay.patch-bad-header"


def test_a_hunk_header_that_is_nearly_right_is_no_prose() -> None:
    text = b"--- a/d/x\n+++ b/d/x\n" + HUNK + b"@@@ -9 +9 @@@\n"
    assert code_of(lambda: parse_patch(text)) == "overlay.patch-bad-hunk"


def test_a_stray_backslash_line_is_refused() -> None:
    for text in (b"@@ -1 +1 @@\n\\ No newline\n-a\n+b\n", b"@@ -1 +1 @@\n-a\n+b\n\\ No\n\\ No\n"):
        with pytest.raises(InputError):
            parse_patch(b"--- a/d/x\n+++ b/d/x\n" + text)


def test_provenance_fields_of_a_header() -> None:
    header = b"From 01234567 Mon Sep 17\nFrom: A\nSubject: one\n two\nSubject: again\n more\n\nFree text: yes\n---\nBug: later\n"
    assert header_fields(header) == {"From": "A", "Subject": "one\ntwo"}


def test_files_of_a_deleted_folder_are_gone_for_later_overlays() -> None:
    gone = overlay("one", DeleteChange(path="vllm/d"))
    assert code_of(lambda: apply([gone, overlay("two", EditChange("vllm/d/a.py", "a", "b"))])) == "overlay.path-missing"
    assert (
        code_of(lambda: apply([gone, overlay("two", DeleteChange(glob="vllm/d/*", count=2))])) == "overlay.glob-count"
    )


def test_what_an_earlier_overlay_adds_can_be_globbed_and_goes_with_its_folder() -> None:
    added = overlay("one", FileChange("f", "vllm/d/c.py"))
    done = apply([added, overlay("two", DeleteChange(glob="vllm/d/*.py", count=3))], {"f": b"c\n"})
    assert [gone.path for gone in done.deleted] == ["vllm/d/a.py", "vllm/d/b.py"]
    assert "vllm/d/c.py: added and deleted again" in done.notes[0]
    whole = apply([added, overlay("two", DeleteChange(path="vllm/d"))], {"f": b"c\n"})
    assert [(gone.path, gone.folder) for gone in whole.deleted] == [("vllm/d", True)]
    assert whole.written == ()


def test_several_changes_of_a_path_that_is_expected_to_be_applied_are_all_left_out() -> None:
    patch = make_diff("vllm/c.py", b"c = 0\n", b"c = 1\n")
    both = overlay("one", PatchChange("p"), EditChange("vllm/c.py", "c = 1", "c = 2"))
    done = apply([both], {"p": patch}, expect_applied=("one",))
    assert done.written == ()
    assert done.steps[0].applied


def test_a_second_change_that_was_made_already_by_the_first_is_refused_even_where_expected() -> None:
    twice = overlay("one", EditChange("vllm/c.py", "c = 1", "c = 2"), FileChange("f", "vllm/c.py"))
    assert code_of(lambda: apply([twice], {"f": b"c = 2\n"}, expect_applied=("one",))) == "overlay.already-applied"


def test_many_missing_paths_are_counted() -> None:
    diff = b"".join(make_diff(f"docs/{number}.md", b"a\n", b"b\n") for number in range(12))
    with pytest.raises(ImagebuildError) as caught:
        import_diff("tep", diff, {AMD64: MemoryBase(BASE)}, {"vllm"})
    assert "and 2 more" in caught.value.message
    assert caught.value.found == "12 paths that the base lacks"


def test_many_offsets_are_shortened() -> None:
    old = b"".join(b"line %d\n" % number for number in range(200))
    new = b"".join(b"new %d\n" % n if n % 20 == 10 else b"line %d\n" % n for n in range(200))
    diff = make_diff("vllm/x.py", old, new).replace(b"--- a", b"index 1111111..2222222 100644\n--- a", 1)
    with pytest.raises(ImagebuildError) as caught:
        import_diff("tep", diff, {AMD64: MemoryBase({"vllm/x.py": b"first\n" + old})}, {"vllm"})
    assert "at offsets +1, +1, +1, +1, +1, +1, +1 and 3 more" in caught.value.message


def test_another_base_where_a_hunk_fits_nowhere_says_which(tmp_path: Path) -> None:
    diff = make_diff("vllm/c.py", b"c = 7\n", b"c = 8\n").replace(b"--- a", b"index 1111111..2222222\n--- a", 1)
    with pytest.raises(ImagebuildError) as caught:
        import_diff("tep", diff, {AMD64: MemoryBase(BASE)}, {"vllm"})
    assert "hunk 1 (line 1): differs in line 1: expected 'c = 7', found 'c = 1'" in caught.value.message


def test_empty_text_above_a_diff_is_not_worth_a_remark() -> None:
    made = import_diff("tep", b"\n\n" + make_diff("vllm/c.py", b"c = 1\n", b"c\n"), {AMD64: MemoryBase(BASE)}, {"vllm"})
    assert made.notes == ()


def test_a_link_in_the_work_folder_is_not_followed(tmp_path: Path) -> None:
    open_session(tmp_path, "tep", AMD64, [EditedFile("vllm/c.py", b"c\n", b"c\n")])
    (tmp_path / "vllm/c.py").unlink()
    (tmp_path / "vllm/c.py").symlink_to("/etc/hostname")
    with pytest.raises(ImagebuildError):
        load_session(tmp_path, "tep")


@pytest.mark.parametrize("change", [DeleteChange(path="vllm/d"), DeleteChange(path="vllm/d/a.py")])
def test_an_edited_path_that_a_deletion_covers_is_refused(tmp_path: Path, change: DeleteChange) -> None:
    edited = EditedFile("vllm/d/a.py", BASE["vllm/d/a.py"], b"other\n")
    open_session(tmp_path, "one", AMD64, [edited])
    session = load_session(tmp_path, "one")
    text = f"changes:\n  - delete: {{path: {change.path}}}\n"
    work = lambda: refresh_overlay(overlay("one", change), text, session, {AMD64: MemoryBase(BASE)}, {"vllm"})  # noqa: E731
    assert code_of(work) == "overlay.refresh-mixed"
