"""Patches made to hurt: counts that lie, endless hunks, names that climb."""

from __future__ import annotations

import pytest

from imagebuild.errors import ImagebuildError, InputError, RefusedError
from imagebuild.overlay.patch import Hunk
from imagebuild.overlay.patch_apply import apply_patch, locate_hunks, split_lines
from imagebuild.overlay.patch_make import make_hunks
from imagebuild.overlay.patch_parse import MAX_PATCH_BYTES, parse_patch
from imagebuild.overlay.paths import Glob, validate_path

HEAD = b"--- a/d/x\n+++ b/d/x\n"


def test_a_count_in_the_billions_is_not_believed() -> None:
    with pytest.raises(InputError):
        parse_patch(HEAD + b"@@ -1,999999999 +1,999999999 @@\n a\n")
    with pytest.raises(InputError):
        parse_patch(HEAD + b"@@ -1,99999999999999999999 +1 @@\n a\n")


def test_a_hundred_thousand_hunks_are_read_and_applied_in_one_pass() -> None:
    text = HEAD + b"".join(b"@@ -%d +%d @@\n-a\n+b\n" % (n, n) for n in range(1, 100_001))
    (file,) = parse_patch(text).files
    assert apply_patch(b"a\n" * 100_000, file.hunks) == b"b\n" * 100_000


def test_a_hundred_thousand_hunks_that_fit_everywhere_end_in_a_refusal() -> None:
    hunks = [Hunk(n * 5 + 1, 3, n * 5 + 1, 3, (b" a\n", b"-a\n", b"+b\n", b" a\n")) for n in range(100_000)]
    hunks[0] = Hunk(1, 3, 1, 3, (b" a\n", b"-missing\n", b"+b\n", b" a\n"))
    with pytest.raises(RefusedError) as caught:
        locate_hunks([b"a\n"] * 500_000, hunks)
    assert caught.value.code == "overlay.patch-too-repetitive"


def test_a_line_of_many_megabytes() -> None:
    line = b"x" * (8 << 20)
    (file,) = parse_patch(HEAD + b"@@ -1 +1 @@\n-" + line + b"\n+y\n").files
    with pytest.raises(RefusedError) as caught:
        apply_patch(b"z\n", file.hunks)
    assert len(str(caught.value)) < 2000


def test_a_patch_above_the_limit_is_not_read() -> None:
    with pytest.raises(InputError) as caught:
        parse_patch(bytes(MAX_PATCH_BYTES + 1))
    assert caught.value.code == "overlay.patch-too-large"


def test_nul_bytes_are_data() -> None:
    (file,) = parse_patch(HEAD + b"@@ -1 +1 @@\n-a\0b\n+\0\n").files
    assert apply_patch(b"a\0b\n", file.hunks) == b"\0\n"


def test_control_characters_of_a_patch_do_not_reach_a_message() -> None:
    (file,) = parse_patch(HEAD + b"@@ -1 +1 @@\n-\x1b[2J\x1b]0;x\x07\n+y\n").files
    with pytest.raises(RefusedError) as caught:
        apply_patch(b"z\n", file.hunks)
    assert "\x1b" not in str(caught.value) + repr(caught.value.details)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "vllm",
        "/etc/passwd",
        "vllm/../../etc/passwd",
        "vllm/./x",
        "vllm//x",
        "vllm/",
        "../x",
        "vllm/.wh.x",
        "vllm/.wh..wh..opq",
        "vllm/.wh.d/x",
        "vllm/a\nb",
        "vllm/a\0b",
        "vllm/\udcff",
        "vllm/" + "x" * 256,
        "vllm/" + "x/" * 2100 + "y",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(InputError) as caught:
        validate_path(path, "a test")
    assert caught.value.code == "overlay.bad-path"


def test_good_paths_and_unknown_roots() -> None:
    assert validate_path("vllm/a b/ü.py", "a test", {"vllm"}) == "vllm/a b/ü.py"
    with pytest.raises(InputError) as caught:
        validate_path("vlm/envs.py", "a test", {"vllm", "aiter"})
    assert caught.value.code == "overlay.unknown-root"
    assert caught.value.hint == "did you mean 'vllm'?"


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("aiter/jit/module_*.so", ["aiter/jit/module_a.so"], ["aiter/jit/x/module_a.so", "aiter/jit/module_a.py"]),
        ("tests/**", ["tests/a", "tests/a/b"], ["tests", "x/tests/a"]),
        ("**/*.py", ["a.py", "x/y/a.py"], ["a.pyc"]),
        ("a/**/z", ["a/z", "a/b/c/z"], ["az", "a/bz"]),
        ("a/[!b]c", ["a/xc"], ["a/bc", "a//c"]),
        ("a/[]x]", ["a/]", "a/x"], ["a/y"]),
        ("a/[b", ["a/[b"], ["a/b"]),
        ("a.b?", ["a.bc"], ["axbc", "a.b/"]),
    ],
)
def test_globs(pattern: str, yes: list[str], no: list[str]) -> None:
    glob = Glob(pattern)
    assert [path for path in yes if not glob.matches(path)] == []
    assert [path for path in no if glob.matches(path)] == []


@pytest.mark.parametrize("pattern", ["", "/x", "a/../b"])
def test_bad_globs(pattern: str) -> None:
    with pytest.raises(ImagebuildError) as caught:
        Glob(pattern)
    assert caught.value.code == "overlay.bad-glob"


def test_two_large_files_without_anything_in_common() -> None:
    old, new = (
        b"".join(b"o%d\n" % (n % 97) for n in range(20_000)),
        b"".join(b"n%d\n" % (n % 89) for n in range(20_000)),
    )
    (hunk,) = make_hunks(old, new)
    assert (hunk.old_count, hunk.new_count) == (20_000, 20_000)
    assert len(split_lines(apply_patch(old, [hunk]))) == 20_000
