"""Importing a diff: mapped to roots, checked against the base's blob ids, placed, guarded, or refused with every reason."""

from __future__ import annotations

import pytest

from imagebuild.content.digest import Digest, git_blob_id
from imagebuild.errors import ImagebuildError, InputError, RefusedError, SeveralErrors
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import DeleteChange, FileChange, Guard, PatchChange
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.importer import ImportedOverlay, import_diff
from imagebuild.overlay.patch_apply import apply_patch
from imagebuild.overlay.patch_make import make_diff
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.series_tree import MemoryBase

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
OLD = b"".join(b"line %d\n" % number for number in range(1, 41))
NEW = OLD.replace(b"line 9\n", b"nine\n").replace(b"line 30\n", b"thirty\n")
RUNTIME = b"def run():\n    return 1\n"
FILES: dict[str, BaseFile | bytes] = {
    "vllm/envs.py": OLD,
    "vllm/models/runtime.py": RUNTIME,
    "vllm/old.py": b"gone = True\n",
    "aiter/ops.py": b"ops = 1\n",
}


def run(diff: bytes, files: dict[str, BaseFile | bytes] = FILES, **options: object) -> ImportedOverlay:
    bases = {AMD64: MemoryBase(files)}
    return import_diff("tep", diff, bases, {"vllm", "aiter"}, **options)  # type: ignore[arg-type]


def fault(diff: bytes, files: dict[str, BaseFile | bytes] = FILES, **options: object) -> ImagebuildError:
    with pytest.raises(ImagebuildError) as caught:
        run(diff, files, **options)
    return caught.value


def with_ids(diff: bytes, old: bytes, new: bytes, length: int = 10, mode: bytes = b" 100644") -> bytes:
    """The diff as git writes it, with the index line of its two blobs."""
    first, _, rest = diff.partition(b"\n")
    ids = b"index %b..%b%b\n" % (git_blob_id(old)[:length].encode(), git_blob_id(new)[:length].encode(), mode)
    return first + b"\n" + ids + rest


ENVS = make_diff("vllm/envs.py", OLD, NEW)


@pytest.mark.parametrize("length", [7, 10, 40])
def test_a_git_diff_against_the_base_becomes_a_guarded_patch(length: int) -> None:
    made = run(with_ids(ENVS, OLD, NEW, length, b" 100755").replace(b"a/vllm", b"c/vllm").replace(b"b/vllm", b"i/vllm"))
    assert made.changes == (PatchChange("patches/0001-envs.patch"),)
    patch = made.files["patches/0001-envs.patch"]
    assert patch.startswith(b"diff --git a/vllm/envs.py b/vllm/envs.py\n--- a/vllm/envs.py\n")
    assert apply_patch(OLD, parse_patch(patch).files[0].hunks) == NEW
    guard = made.guards["vllm/envs.py"]
    assert guard == Guard((Digest.of(OLD),), Digest.of(NEW), git_blob_id(OLD)[:10], git_blob_id(NEW)[:10])
    assert "100755" in made.notes[0]


def test_another_base_is_refused_with_the_offsets_that_would_do() -> None:
    shifted = {**FILES, "vllm/envs.py": b"first\n" * 2 + OLD.replace(b"line 20\n", b"")}
    error = fault(with_ids(ENVS, OLD, NEW), shifted)
    assert isinstance(error, RefusedError)
    assert error.code == "overlay.index-mismatch"
    assert "would apply at offsets +2 and +1" in error.message
    assert error.expected == f"git blob {git_blob_id(OLD)[:10]}"
    assert error.details["offsets"] == [2, 1]


def test_a_missing_file_is_named_and_the_other_one_s_offsets_are_said() -> None:
    absent = make_diff("vllm/models/hybrid.py", RUNTIME, RUNTIME + b"# more\n")
    shifted = {**FILES, "vllm/envs.py": OLD.replace(b"line 1\n", b"", 1)}
    both = fault(with_ids(ENVS, OLD, NEW) + with_ids(absent, RUNTIME, RUNTIME + b"# more\n"), shifted)
    assert isinstance(both, SeveralErrors)
    assert both.exit_code == 1
    missing, other = both.errors
    assert missing.code == "overlay.path-missing"
    assert "vllm/models/hybrid.py" in missing.message
    assert "vllm/envs.py" in other.message
    assert "would apply at offsets -1 and -1" in other.message
    plain = fault(ENVS + absent, shifted)
    assert plain.code == "overlay.path-missing"
    assert "vllm/envs.py would apply at offsets -1 and -1" in plain.message
    assert [file["state"] for file in plain.details["files"]] == ["fits-at-offsets", "missing"]


def test_offsets_are_written_into_the_patch() -> None:
    shifted = {**FILES, "vllm/envs.py": b"first\n" + OLD}
    made = run(ENVS, shifted)
    patch = parse_patch(made.files["patches/0001-envs.patch"])
    assert apply_patch(b"first\n" + OLD, patch.files[0].hunks) == b"first\n" + NEW
    assert any("offsets +1, +1" in note for note in made.notes)


def test_ids_may_be_set_aside() -> None:
    shifted = {**FILES, "vllm/envs.py": b"first\n" + OLD}
    assert run(with_ids(ENVS, OLD, NEW), shifted, check_ids=False).guards["vllm/envs.py"]


def test_a_diff_that_was_edited_after_it_was_made_is_refused() -> None:
    error = fault(with_ids(ENVS, OLD, NEW).replace(b"+nine", b"+ten"))
    assert error.code == "overlay.index-mismatch"
    assert error.details["side"] == "after"


def test_context_that_differs_is_refused_with_line_and_both_sides() -> None:
    error = fault(ENVS, {**FILES, "vllm/envs.py": OLD.replace(b"line 11\n", b"eleven\n")})
    assert error.code == "overlay.patch-mismatch"
    assert (error.expected, error.found) == ("'line 11'", "'eleven'")


def test_already_applied_is_reported_and_never_reversed() -> None:
    for diff in (ENVS, with_ids(ENVS, OLD, NEW)):
        assert fault(diff, {**FILES, "vllm/envs.py": NEW}).code == "overlay.already-applied"
    assert fault(make_diff("vllm/old.py", None, b"gone = True\n")).code == "overlay.already-applied"


def test_files_that_no_wheel_has_are_named_by_path_and_can_be_left_out() -> None:
    extra = make_diff("tests/test_envs.py", b"x\n", b"y\n") + make_diff("examples/new.py", None, b"z\n")
    error = fault(ENVS + extra)
    assert error.code == "overlay.path-missing"
    assert "tests/test_envs.py" in error.message
    assert "examples/new.py" in error.message
    assert error.hint is not None
    assert "--exclude 'examples/**' --exclude 'tests/**'" in error.hint
    made = run(ENVS + extra, exclude=["tests/**", "examples/**"])
    assert made.changes == (PatchChange("patches/0001-envs.patch"),)
    assert "tests/test_envs.py: left out" in made.notes
    assert run(ENVS + extra, include=["vllm/**"]).changes == made.changes


def test_nothing_left_is_an_input_error() -> None:
    error = fault(ENVS, exclude=["**"])
    assert isinstance(error, InputError)
    assert error.code == "overlay.nothing-to-import"


def test_new_deleted_and_renamed_files() -> None:
    new = make_diff("vllm/models/fresh.py", None, b"fresh = 1\n")
    gone = make_diff("vllm/old.py", b"gone = True\n", None)
    tool = new.replace(b"fresh.py", b"tool").replace(b"100644", b"100755")
    rename = b"diff --git a/vllm/models/runtime.py b/vllm/run.py\nrename from vllm/models/runtime.py\nrename to vllm/run.py\n"
    made = run(new + gone + tool + rename)
    assert made.changes == (
        FileChange("files/vllm/models/fresh.py", "vllm/models/fresh.py"),
        DeleteChange(path="vllm/old.py"),
        PatchChange("patches/0001-tool.patch"),
        PatchChange("patches/0002-run.patch"),
    )
    assert made.files["files/vllm/models/fresh.py"] == b"fresh = 1\n"
    assert made.guards["vllm/models/fresh.py"] == Guard(
        (None,), Digest.of(b"fresh = 1\n"), None, git_blob_id(b"fresh = 1\n")[:10]
    )
    assert set(made.guards) == {
        "vllm/models/fresh.py",
        "vllm/old.py",
        "vllm/models/tool",
        "vllm/run.py",
        "vllm/models/runtime.py",
    }


def test_a_new_file_that_the_base_has_is_refused() -> None:
    assert fault(make_diff("vllm/envs.py", None, b"other\n")).code == "overlay.path-exists"


def test_a_deletion_must_know_the_whole_file() -> None:
    gone = make_diff("vllm/old.py", b"gone = True\n", None)
    error = fault(gone, {**FILES, "vllm/old.py": b"gone = True\nimage only\n"})
    assert error.code == "overlay.patch-mismatch"


def test_two_patches_of_one_file_in_one_text_follow_each_other() -> None:
    later = NEW.replace(b"line 35\n", b"thirty-five\n")
    made = run(with_ids(ENVS, OLD, NEW) + with_ids(make_diff("vllm/envs.py", NEW, later), NEW, later))
    assert len(made.changes) == 2
    assert made.guards["vllm/envs.py"] == Guard(
        (Digest.of(OLD),), Digest.of(later), git_blob_id(OLD)[:10], git_blob_id(later)[:10]
    )


@pytest.mark.parametrize("prefix", ["src/", "python/", "components/engine/src/"])
def test_a_repository_that_keeps_the_package_below_a_folder(prefix: str) -> None:
    diff = make_diff(f"{prefix}vllm/envs.py", OLD, NEW) + make_diff(f"{prefix}vllm/new.py", None, b"n\n")
    made = run(diff)
    assert set(made.guards) == {"vllm/envs.py", "vllm/new.py"}


def test_a_diff_made_inside_the_package() -> None:
    made = run(make_diff("envs.py", OLD, NEW) + make_diff("new.py", None, b"n\n"))
    assert set(made.guards) == {"vllm/envs.py", "vllm/new.py"}


def test_new_files_outside_never_land_in_a_package() -> None:
    diff = ENVS + make_diff("benchmarks/vllm/x.py", None, b"x\n") + make_diff("models/x.py", None, b"x\n")
    error = fault(diff)
    assert error.code == "overlay.path-missing"
    assert error.details["paths"] == ["benchmarks/vllm/x.py", "models/x.py"]


def test_two_roots_that_would_do_are_ambiguous() -> None:
    files = {**FILES, "aiter/envs.py": OLD}
    error = fault(make_diff("envs.py", OLD, NEW), files)
    assert error.code == "overlay.ambiguous-root"
    assert "aiter/envs.py or vllm/envs.py" in error.message


def test_a_folder_root_takes_any_path_below_it() -> None:
    bases = {AMD64: MemoryBase({"site/flash/x.py": OLD, "vllm/envs.py": OLD})}
    made = import_diff("tep", make_diff("flash/x.py", OLD, NEW) + ENVS, bases, {"vllm", "site"}, folders={"site"})
    assert set(made.guards) == {"site/flash/x.py", "vllm/envs.py"}


def test_platforms_that_agree_share_a_guard_and_others_have_their_own() -> None:
    other = OLD + b"only on arm64\n"
    same = {AMD64: MemoryBase(FILES), ARM64: MemoryBase(FILES)}
    apart = {AMD64: MemoryBase(FILES), ARM64: MemoryBase({**FILES, "vllm/envs.py": other})}
    assert isinstance(import_diff("tep", ENVS, same, {"vllm"}).guards["vllm/envs.py"], Guard)
    guards = import_diff("tep", ENVS, apart, {"vllm"}).guards["vllm/envs.py"]
    assert not isinstance(guards, Guard)
    assert guards[ARM64].preimage == (Digest.of(other),)
    moved = {AMD64: MemoryBase(FILES), ARM64: MemoryBase({**FILES, "vllm/envs.py": b"first\n" + OLD})}
    with pytest.raises(RefusedError) as caught:
        import_diff("tep", ENVS, moved, {"vllm"})
    assert caught.value.code == "overlay.platforms-differ"
    assert "linux/arm64" in caught.value.message


def test_a_provenance_header_is_kept_and_read() -> None:
    header = (
        b"From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001\nFrom: A Person <a@example.org>\n"
        b"Subject: [PATCH 1/2] Shard the shared expert\nForwarded: no\nLast-Update: 2026-11-30\n---\n x | 2 +-\n\n"
    )
    made = run(header + ENVS)
    assert made.files["patches/0001-envs.patch"].startswith(header)
    assert 'description: "Shard the shared expert"\n' in made.text
    assert 'author: "A Person <a@example.org>"\nforwarded: "no"\nlast_update: 2026-11-30\n' in made.text


def test_prose_above_a_diff_is_left_out_and_said() -> None:
    made = run(b"Some page\nwith words: and more\n" + ENVS)
    assert made.files["patches/0001-envs.patch"].startswith(b"diff --git ")
    assert any("no DEP-3 or mail header" in note for note in made.notes)


def test_unsafe_paths_are_refused_before_anything_is_read() -> None:
    diff = ENVS.replace(b"vllm/envs.py", b"vllm/../vllm/envs.py")
    assert fault(diff, {**FILES, "vllm/../vllm/envs.py": OLD}).code == "overlay.bad-path"


def test_lines_added_without_context_need_a_blob_id() -> None:
    bare = b"--- a/vllm/envs.py\n+++ b/vllm/envs.py\n@@ -9,0 +10 @@\n+added\n"
    assert fault(bare).code == "overlay.patch-no-context"
    new = OLD.replace(b"line 9\n", b"line 9\nadded\n")
    made = run(with_ids(b"diff --git a/vllm/envs.py b/vllm/envs.py\n" + bare, OLD, new))
    assert made.guards["vllm/envs.py"]
    assert fault(with_ids(b"diff --git a/vllm/envs.py b/vllm/envs.py\n" + bare, OLD, new), check_ids=False).code == (
        "overlay.patch-no-context"
    )
