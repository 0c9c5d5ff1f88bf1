"""Reading unified diffs: every form that git, GNU diff and quilt write, and clear refusals for the rest."""

from __future__ import annotations

import pytest

from imagebuild.errors import InputError
from imagebuild.overlay.patch import EXECUTABLE, REGULAR, format_patch, normalise, patch_digest
from imagebuild.overlay.patch_apply import apply_patch
from imagebuild.overlay.patch_parse import parse_patch

HUNK = b"@@ -1,2 +1,2 @@\n one\n-two\n+2\n"


def git(path: bytes, old: bytes = b"a/", new: bytes = b"b/", extra: bytes = b"") -> bytes:
    names = b"diff --git %b%b %b%b\n" % (old, path, new, path)
    return names + extra + b"--- %b%b\n+++ %b%b\n" % (old, path, new, path) + HUNK


@pytest.mark.parametrize(
    ("old", "new"), [(b"a/", b"b/"), (b"c/", b"i/"), (b"i/", b"w/"), (b"c/", b"w/"), (b"o/", b"w/"), (b"", b"")]
)
def test_every_prefix_that_git_writes_is_taken_off(old: bytes, new: bytes) -> None:
    (file,) = parse_patch(git(b"vllm/envs.py", old, new)).files
    assert (file.old_path, file.new_path) == ("vllm/envs.py", "vllm/envs.py")


def test_p1_of_two_folders_side_by_side() -> None:
    (file,) = parse_patch(b"--- vllm-0.33.0/vllm/envs.py\n+++ vllm-new/vllm/envs.py\n" + HUNK).files
    assert file.path == "vllm/envs.py"


def test_orig_suffix() -> None:
    (file,) = parse_patch(b"--- vllm/envs.py.orig\n+++ vllm/envs.py\n" + HUNK).files
    assert file.path == "vllm/envs.py"


def test_two_different_names_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        parse_patch(b"--- x/one.py\n+++ y/two.py\n" + HUNK)
    assert caught.value.code == "overlay.patch-bad-header"


def test_timestamps_are_dropped() -> None:
    text = b"--- a/vllm/envs.py\t2026-11-01 10:00:00.000000000 +0100\n+++ b/vllm/envs.py\t2026-11-02 00:00:00 +0000\n"
    assert parse_patch(text + HUNK).files[0].path == "vllm/envs.py"


def test_names_with_spaces_and_octal_escapes() -> None:
    text = b'diff --git "a/d/\\303\\274 \\"x\\".py" "b/d/\\303\\274 \\"x\\".py"\n'
    text += b'--- "a/d/\\303\\274 \\"x\\".py"\n+++ "b/d/\\303\\274 \\"x\\".py"\n' + HUNK
    assert parse_patch(text).files[0].path == 'd/ü "x".py'
    assert parse_patch(git(b"d/a b.py\t").replace(b"\t b/", b" b/")).files[0].path == "d/a b.py"


def test_mode_only_change_reads_the_names_of_the_git_line() -> None:
    text = b"diff --git a/d/my tool b/d/my tool\nold mode 100644\nnew mode 100755\n"
    (file,) = parse_patch(text).files
    assert (file.path, file.old_mode, file.new_mode, file.hunks) == ("d/my tool", REGULAR, EXECUTABLE, ())


def test_index_line_with_mode_is_only_a_note() -> None:
    (file,) = parse_patch(git(b"vllm/envs.py", extra=b"index 064565cf1e..7f01d49cda 100755\n")).files
    assert (file.old_id, file.new_id, file.index_mode) == ("064565cf1e", "7f01d49cda", EXECUTABLE)
    assert (file.old_mode, file.new_mode) == (None, None)


def test_new_and_deleted_files() -> None:
    new = b"diff --git a/d/n b/d/n\nnew file mode 100755\nindex 0000000..1234567\n--- /dev/null\n+++ b/d/n\n@@ -0,0 +1 @@\n+x\n"
    gone = b"diff --git a/d/o b/d/o\ndeleted file mode 100644\n--- a/d/o\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    empty = b"diff --git a/d/e b/d/e\nnew file mode 100644\nindex 0000000..e69de29\n"
    made, removed, hollow = parse_patch(new + gone + empty).files
    assert (made.created, made.path, made.new_mode) == (True, "d/n", EXECUTABLE)
    assert (removed.deleted, removed.path) == (True, "d/o")
    assert (hollow.created, hollow.path, hollow.hunks) == (True, "d/e", ())


@pytest.mark.parametrize(
    "stamp",
    [b"1970-01-01 00:00:00.000000000 +0000", b"1970-01-01 01:00:00.000000000 +0100", b"1969-12-31 16:00:00 -0800"],
)
def test_gnu_diff_says_absent_by_the_epoch(stamp: bytes) -> None:
    new = b"--- old/d/n\t%b\n+++ new/d/n\t2026-01-01 00:00:00 +0000\n@@ -0,0 +1 @@\n+x\n" % stamp
    gone = b"--- old/d/o\t2026-01-01 00:00:00 +0000\n+++ new/d/o\t%b\n@@ -1 +0,0 @@\n-x\n" % stamp
    made, removed = parse_patch(new + gone).files
    assert made.created
    assert removed.deleted


def test_emptied_file_is_not_a_deleted_one() -> None:
    text = b"--- a/d/o\t2026-01-01 00:00:00 +0000\n+++ b/d/o\t2026-01-02 00:00:00 +0000\n@@ -1 +0,0 @@\n-x\n"
    (file,) = parse_patch(text).files
    assert not file.deleted
    assert apply_patch(b"x\n", file.hunks) == b""


def test_rename_and_copy() -> None:
    text = b"diff --git a/d/x b/d/y\nsimilarity index 100%\nrename from d/x\nrename to d/y\n"
    text += b"diff --git a/d/x b/d/z\nsimilarity index 90%\ncopy from d/x\ncopy to d/z\n--- a/d/x\n+++ b/d/z\n" + HUNK
    renamed, copied = parse_patch(text).files
    assert (renamed.old_path, renamed.new_path, renamed.moved, renamed.copied) == ("d/x", "d/y", True, False)
    assert (copied.old_path, copied.new_path, copied.copied, len(copied.hunks)) == ("d/x", "d/z", True, 1)


def test_header_text_is_kept_and_a_mail_signature_passed_over() -> None:
    header = b"Description: more room\nOrigin: upstream, https://example.org/1\nForwarded: no\n---\n"
    patch = parse_patch(header + git(b"vllm/envs.py") + b"-- \n2.39.5\n\n")
    assert patch.header == header
    assert len(patch.files) == 1


def test_lines_that_tools_write_above_a_diff_are_no_header() -> None:
    tools = b"Index: vllm/envs.py\n" + b"=" * 67 + b"\n"
    assert parse_patch(b"Why.\n" + tools + git(b"vllm/envs.py")).header == b"Why.\n"


def test_no_newline_at_end_of_file() -> None:
    text = b"--- a/d/x\n+++ b/d/x\n@@ -1 +1 @@\n-one\n\\ No newline at end of file\n+two\n\\ Kein Zeilenumbruch\n"
    (file,) = parse_patch(text).files
    assert file.hunks[0].lines == (b"-one", b"+two")
    assert apply_patch(b"one", file.hunks) == b"two"


def test_carriage_returns_belong_to_lines_but_not_to_headers() -> None:
    text = b"--- a/d/x\r\n+++ b/d/x\r\n@@ -1 +1 @@\r\n-one\r\n+two\r\n"
    (file,) = parse_patch(text).files
    assert file.path == "d/x"
    assert file.hunks[0].lines == (b"-one\r\n", b"+two\r\n")


def test_empty_context_line_that_lost_its_space() -> None:
    (file,) = parse_patch(b"--- a/d/x\n+++ b/d/x\n@@ -1,3 +1,3 @@\n one\n\n-two\n+2\n").files
    assert apply_patch(b"one\n\ntwo\n", file.hunks) == b"one\n\n2\n"


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        (b"", "patch-empty"),
        (b"just words\n", "patch-empty"),
        (b"diff --cc d/x\nindex 1,2..3\n--- a/d/x\n+++ b/d/x\n@@@ -1,1 -1,1 +1,2 @@@\n", "patch-unsupported"),
        (b"*** d/x\t2026\n--- d/x\t2026\n***************\n*** 1 ****\n", "patch-unsupported"),
        (b"Only in new/d: added.py\n" + git(b"d/x"), "patch-unsupported"),
        (b"Binary files a/d/x and b/d/x differ\n", "patch-binary"),
        (b"diff --git a/d/x b/d/x\nindex 1234567..89abcde 100644\nBinary files a/d/x and b/d/x differ\n", "patch-binary"),
        (b"diff --git a/d/x b/d/x\nindex 1234567..89abcde\nGIT binary patch\nliteral 4\nLcmZQz\n", "patch-binary"),
        (HUNK, "patch-bad-header"),
        (b"--- a/d/x\n" + HUNK, "patch-bad-header"),
        (b"--- a/d/x\n+++ b/d/x\n", "patch-bad-header"),
        (b"diff --git a/d/x b/d/x\nindex 1234567..89abcde\n", "patch-bad-header"),
        (b"diff --git a/d/x b/d/x\nnew file mode 120000\n--- /dev/null\n+++ b/d/x\n@@ -0,0 +1 @@\n+y\n", "patch-unsupported"),
        (b"diff --git a/d/x b/d/x\nnew file mode 160000\n--- /dev/null\n+++ b/d/x\n@@ -0,0 +1 @@\n+y\n", "patch-unsupported"),
        (b"--- /dev/null\n+++ /dev/null\n" + HUNK, "patch-bad-header"),
        (b"--- a/d/x\n+++ b/d/x\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n", "patch-bad-hunk"),
        (b"--- a/d/x\n+++ b/d/x\n@@ -1,1 +1,1 @@\n one\n-two\n+2\n", "patch-bad-hunk"),
        (b"--- a/d/x\n+++ b/d/x\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n three\n", "patch-bad-hunk"),
        (b"--- a/d/x\n+++ b/d/x\n@@ -9 +9 @@\n-a\n+b\n@@ -2 +2 @@\n-a\n+b\n", "patch-bad-hunk"),
        (b"--- a/d/x\n+++ b/d/x\n@@ -1 @@\n-a\n", "patch-bad-hunk"),
        (b"--- a/d/x\n+++ b/d/x\n@@ -0 +1 @@\n-a\n+b\n", "patch-bad-hunk"),
        (b"--- a/d/x\n+++ b/d/x\n@@ -1,2 +1,2 @@\n-a\n\\ No newline\n-b\n+c\n+d\n", "patch-bad-hunk"),
        (b"--- a/d/\xff\n+++ b/d/\xff\n" + HUNK, "bad-path"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(text: bytes, slug: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_patch(text)
    assert caught.value.code == f"overlay.{slug}"


def test_a_fault_names_its_line() -> None:
    with pytest.raises(InputError) as caught:
        parse_patch(git(b"d/x") + b"diff --git a/d/y b/d/y\n--- a/d/y\n+++ b/d/y\n@@ -1,9 +1,9 @@\n one\n")
    assert "line 11 of the patch" in caught.value.message
    assert caught.value.details["line"] == 11


def test_the_normalised_digest_does_not_see_how_a_diff_was_served() -> None:
    short = git(b"vllm/envs.py", extra=b"index 064565cf1e..7f01d49cda 100755\n")
    long = git(b"vllm/envs.py", b"c/", b"i/", b"index %b..%b 100644\n" % (b"064565cf1e" * 4, b"7f01d49cda" * 4))
    mail = b"From: a\nSubject: b\n\n" + git(b"vllm/envs.py").replace(b"+1,2 @@", b"+1,2 @@ def f():") + b"-- \n2.4\n"
    plain = b"--- a/vllm/envs.py\t2026-01-01 00:00:00 +0000\n+++ b/vllm/envs.py\t2026-01-01 00:00:00 +0000\n" + HUNK
    digests = {patch_digest(parse_patch(text)) for text in (short, long, mail, plain)}
    assert len(digests) == 1
    assert patch_digest(parse_patch(git(b"vllm/envs.py").replace(b"+2\n", b"+3\n"))) not in digests


def test_both_texts_are_read_back_as_the_same_change() -> None:
    text = b"Why: because.\n" + git(b"d/a b", extra=b"old mode 100644\nnew mode 100755\n").replace(
        b"/a b\n", b"/a b\t\n", 2
    )
    text = text.replace(b"a b\t b/", b"a b b/").replace(b"b/d/a b\t\nold", b"b/d/a b\nold")
    text += b"diff --git a/d/x b/d/y\nrename from d/x\nrename to d/y\n"
    text += b"diff --git a/d/n b/d/n\nnew file mode 100755\n--- /dev/null\n+++ b/d/n\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n"
    text += b"diff --git a/d/e b/d/e\ndeleted file mode 100644\n"
    patch = parse_patch(text)
    again = parse_patch(format_patch(patch))
    assert normalise(again) == normalise(patch)
    assert again.header == patch.header
    assert [(f.old_path, f.new_path, f.old_mode, f.new_mode) for f in again.files] == [
        ("d/a b", "d/a b", REGULAR, EXECUTABLE),
        ("d/x", "d/y", None, None),
        (None, "d/n", None, EXECUTABLE),
        ("d/e", None, REGULAR, None),
    ]
    assert parse_patch(normalise(patch)).header == b""
