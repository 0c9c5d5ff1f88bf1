"""A series applied to a base in memory: every kind of change, later overlays on earlier results, all faults at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from imagebuild.content.digest import Digest, git_blob_id
from imagebuild.errors import ImagebuildError, InputError, RefusedError, SeveralErrors, UnavailableError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import (
    Change,
    DeleteChange,
    EditChange,
    EnvChange,
    FileChange,
    Guard,
    PatchChange,
    StageChange,
    SymlinkChange,
)
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.guards import BaseFile, make_guard
from imagebuild.overlay.patch_apply import apply_patch
from imagebuild.overlay.patch_make import make_diff
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.series import AppliedSeries, apply_series
from imagebuild.overlay.series_tree import MemoryBase

AMD64 = Platform("linux", "amd64")
ENVS = b"".join(b"line %d\n" % number for number in range(1, 31))
NEW = ENVS.replace(b"line 9\n", b"nine\n")
NEWER = NEW.replace(b"line 25\n", b"twenty-five\n")
BASE: Mapping[str, BaseFile | bytes] = {
    "vllm/envs.py": ENVS,
    "vllm/tool": BaseFile(b"#!/bin/sh\n", 0o755),
    "vllm/models/a.py": b"a = 1\n",
    "vllm/models/b.py": b"b = 1\n",
    "aiter/jit/module_a.so": BaseFile(None, 0o755, Digest.of(b"so a")),
    "aiter/jit/module_b.so": BaseFile(None, 0o755, Digest.of(b"so b")),
}
PATCH = make_diff("vllm/envs.py", ENVS, NEW)


def overlay(name: str, *changes: Change, guards: Mapping[str, Guard] | None = None) -> Overlay:
    return Overlay(name, "a test", changes, Path("/nowhere") / name, guards=guards or {})


def apply(
    overlays: list[Overlay],
    files: Mapping[str, bytes],
    base: Mapping[str, BaseFile | bytes] = BASE,
    *,
    expect_applied: tuple[str, ...] = (),
    require_guards: bool = False,
) -> AppliedSeries:
    return apply_series(
        overlays,
        {"vllm", "aiter"},
        MemoryBase(base),
        AMD64,
        expect_applied=expect_applied,
        require_guards=require_guards,
        read=lambda overlay, name: files[name],
    )


def fault(*args: object, **options: object) -> ImagebuildError:
    with pytest.raises(ImagebuildError) as caught:
        apply(*args, **options)  # type: ignore[arg-type]
    return caught.value


def test_a_patch_gives_the_file_its_diff_and_a_guard() -> None:
    done = apply([overlay("one", PatchChange("p"))], {"p": PATCH})
    (file,) = done.written
    assert (file.path, file.data, file.mode, file.preimage) == ("vllm/envs.py", NEW, 0o644, Digest.of(ENVS))
    assert file.overlays == ("one",)
    assert apply_patch(ENVS, parse_patch(file.diff).files[0].hunks) == NEW
    assert done.guards("one") == {
        "vllm/envs.py": Guard((Digest.of(ENVS),), Digest.of(NEW), git_blob_id(ENVS)[:10], git_blob_id(NEW)[:10])
    }
    assert done.unguarded == (("one", "vllm/envs.py"),)


def test_later_overlays_see_what_earlier_ones_made() -> None:
    second = make_diff("vllm/envs.py", NEW, NEWER)
    guard = {"vllm/envs.py": make_guard(BaseFile(NEW), NEWER)}
    done = apply(
        [overlay("one", PatchChange("p")), overlay("two", PatchChange("q"), guards=guard)], {"p": PATCH, "q": second}
    )
    (file,) = done.written
    assert (file.data, file.overlays, file.preimage) == (NEWER, ("one", "two"), Digest.of(ENVS))
    assert [(step.overlay, step.before, step.after) for step in done.steps] == [
        ("one", Digest.of(ENVS), Digest.of(NEW)),
        ("two", Digest.of(NEW), Digest.of(NEWER)),
    ]
    assert done.unguarded == (("one", "vllm/envs.py"),)


def test_a_new_file_and_a_replaced_one() -> None:
    done = apply(
        [overlay("one", FileChange("f", "vllm/new/deep.py"), FileChange("t", "vllm/tool"))],
        {"f": b"new\n", "t": b"#!/bin/bash\n"},
    )
    new, tool = sorted(done.written, key=lambda file: file.path)
    assert (new.path, new.mode, new.preimage, new.diff) == ("vllm/new/deep.py", 0o644, None, b"")
    assert (tool.mode, tool.preimage_mode) == (0o755, 0o755)
    assert b"-#!/bin/sh\n+#!/bin/bash\n" in tool.diff


def test_a_replaced_file_whose_bytes_are_not_at_hand_needs_only_its_facts() -> None:
    done = apply([overlay("one", FileChange("f", "aiter/jit/module_a.so"))], {"f": b"new so"})
    (file,) = done.written
    assert (file.preimage, file.mode, file.diff) == (Digest.of(b"so a"), 0o755, b"")


def test_a_file_known_only_by_its_digest_cannot_be_patched() -> None:
    error = fault([overlay("one", EditChange("aiter/jit/module_a.so", "a", "b"))], {})
    assert isinstance(error, UnavailableError)
    assert error.code == "overlay.preimage-unavailable"


def test_an_edit_compiles_to_a_patch() -> None:
    done = apply([overlay("one", EditChange("vllm/envs.py", "line 9\n", "nine\n"))], {})
    assert done.written[0].data == NEW
    (step,) = done.steps
    assert apply_patch(ENVS, parse_patch(step.diff).files[0].hunks) == NEW


def test_an_edit_matches_exactly_once() -> None:
    many = fault([overlay("one", EditChange("vllm/envs.py", "line 2", "x"))], {})
    none = fault([overlay("one", EditChange("vllm/envs.py", "line 99", "x"))], {})
    assert (many.code, many.found) == ("overlay.edit-ambiguous", "in lines 2, 20, 21, 22, 23")
    assert (none.code, none.found) == ("overlay.edit-no-match", "nowhere")
    overlapping = fault([overlay("one", EditChange("vllm/o", "aa", "b"))], {}, {"vllm/o": b"aaa"})
    assert overlapping.code == "overlay.edit-ambiguous"


def test_deletions_of_a_path_a_glob_and_a_folder() -> None:
    done = apply(
        [
            overlay(
                "one",
                DeleteChange(path="vllm/envs.py"),
                DeleteChange(glob="aiter/jit/module_*.so", count=2),
                DeleteChange(path="vllm/models"),
            )
        ],
        {},
    )
    assert [(item.path, item.folder) for item in done.deleted] == [
        ("aiter/jit/module_a.so", False),
        ("aiter/jit/module_b.so", False),
        ("vllm/envs.py", False),
        ("vllm/models", True),
    ]
    assert done.deleted[0].preimage == Digest.of(b"so a")


def test_a_glob_counts() -> None:
    error = fault([overlay("one", DeleteChange(glob="aiter/jit/module_*.so", count=3))], {})
    assert (error.code, error.expected) == ("overlay.glob-count", "3")
    assert "aiter/jit/module_a.so" in (error.found or "")


def test_deleting_what_is_not_there_is_refused() -> None:
    assert fault([overlay("one", DeleteChange(path="vllm/nothing"))], {}).code == "overlay.path-missing"


def test_nothing_is_put_below_a_deleted_folder_or_a_file() -> None:
    gone = overlay("one", DeleteChange(path="vllm/models"), FileChange("f", "vllm/models/c.py"))
    below = overlay("one", FileChange("f", "vllm/envs.py/x"))
    folder = overlay("one", FileChange("f", "vllm/models"))
    for one in (gone, below, folder):
        assert fault([one], {"f": b""}).code == "overlay.path-conflict"


def test_links_and_environment() -> None:
    done = apply(
        [
            overlay("one", SymlinkChange("vllm/link", "envs.py"), EnvChange({"A": "1"})),
            overlay("two", SymlinkChange("vllm/tool", "/bin/true"), EnvChange({"A": "2"})),
        ],
        {},
    )
    assert [(link.path, link.to, link.preimage) for link in done.links] == [
        ("vllm/link", "envs.py", None),
        ("vllm/tool", "/bin/true", Digest.of(b"#!/bin/sh\n")),
    ]
    assert [(edit.name, edit.value, edit.overlay) for edit in done.environment] == [
        ("A", "1", "one"),
        ("A", "2", "two"),
    ]
    assert "overlay two sets '2' over '1'" in done.notes[0]


def test_modes_change_by_mode_lines_only() -> None:
    index = b"diff --git a/vllm/envs.py b/vllm/envs.py\nindex %b..%b 100755\n" % (
        git_blob_id(ENVS)[:10].encode(),
        git_blob_id(NEW)[:10].encode(),
    )
    noted = apply([overlay("one", PatchChange("p"))], {"p": index + PATCH.partition(b"\n")[2]})
    assert noted.written[0].mode == 0o644
    assert "notes mode 100755" in noted.written[0].notes[0]
    lines = b"diff --git a/vllm/envs.py b/vllm/envs.py\nold mode 100644\nnew mode 100755\n"
    made = apply([overlay("one", PatchChange("p"))], {"p": lines})
    assert (made.written[0].mode, made.written[0].data) == (0o755, ENVS)
    back = lines.replace(b"envs.py", b"tool")
    assert fault([overlay("one", PatchChange("p"))], {"p": back}).code == "overlay.mode-mismatch"


def test_index_ids_must_be_those_of_the_files() -> None:
    wrong = (
        b"diff --git a/vllm/envs.py b/vllm/envs.py\nindex 064565cf1e..7f01d49cda 100644\n" + PATCH.partition(b"\n")[2]
    )
    error = fault([overlay("one", PatchChange("p"))], {"p": wrong})
    assert error.code == "overlay.index-mismatch"
    assert error.expected == "git blob 064565cf1e"


def test_renames_and_copies() -> None:
    rename = (
        b"diff --git a/vllm/models/a.py b/vllm/models/c.py\nrename from vllm/models/a.py\nrename to vllm/models/c.py\n"
    )
    copy = b"diff --git a/vllm/tool b/vllm/tool2\ncopy from vllm/tool\ncopy to vllm/tool2\n"
    done = apply([overlay("one", PatchChange("p"))], {"p": rename + copy})
    assert [(file.path, file.data, file.mode) for file in done.written] == [
        ("vllm/models/c.py", b"a = 1\n", 0o644),
        ("vllm/tool2", b"#!/bin/sh\n", 0o755),
    ]
    assert [item.path for item in done.deleted] == ["vllm/models/a.py"]
    taken = rename.replace(b"c.py", b"b.py")
    assert fault([overlay("one", PatchChange("p"))], {"p": taken}).code == "overlay.path-exists"


def test_what_the_base_has_and_lacks() -> None:
    new = make_diff("vllm/envs.py", None, b"x\n")
    absent = make_diff("vllm/absent.py", b"x\n", b"y\n")
    assert fault([overlay("one", PatchChange("p"))], {"p": new}).code == "overlay.path-exists"
    assert fault([overlay("one", PatchChange("p"))], {"p": absent}).code == "overlay.path-missing"


def test_a_deletion_by_patch_takes_the_whole_file() -> None:
    gone = make_diff("vllm/models/a.py", b"a = 1\n", None)
    assert [item.path for item in apply([overlay("one", PatchChange("p"))], {"p": gone}).deleted] == [
        "vllm/models/a.py"
    ]
    more = {**BASE, "vllm/models/a.py": b"a = 1\nmore\n"}
    assert fault([overlay("one", PatchChange("p"))], {"p": gone}, more).code == "overlay.patch-mismatch"


@pytest.mark.parametrize(
    ("change", "files", "found"),
    [
        (PatchChange("p"), {"p": PATCH}, NEW),
        (FileChange("f", "vllm/envs.py"), {"f": NEW}, NEW),
        (EditChange("vllm/envs.py", "line 9\n", "nine\n"), {}, NEW),
        (PatchChange("p"), {"p": make_diff("vllm/envs.py", None, NEW)}, NEW),
    ],
)
def test_already_applied_is_refused_unless_expected(change: Change, files: Mapping[str, bytes], found: bytes) -> None:
    base = {**BASE, "vllm/envs.py": found}
    error = fault([overlay("one", change)], files, base)
    assert isinstance(error, RefusedError)
    assert error.code == "overlay.already-applied"
    done = apply([overlay("one", change)], files, base, expect_applied=("one",))
    assert done.written == ()
    assert done.steps[0].applied
    assert done.guards("one") == {}


def test_all_faults_are_reported_at_once_and_each_once() -> None:
    bad = {"vllm/envs.py": Guard((Digest.of(b"other"),), Digest.of(NEW))}
    overlays = [
        overlay("one", PatchChange("p"), DeleteChange(path="vllm/nothing"), guards=bad),
        overlay("two", EditChange("vllm/envs.py", "nine", "9"), StageChange("Dockerfile", {"/a": "vllm/a.so"})),
    ]
    error = fault(overlays, {"p": PATCH})
    assert isinstance(error, SeveralErrors)
    assert [one.code for one in error.errors] == [
        "overlay.preimage-mismatch",
        "overlay.path-missing",
        "overlay.kind-not-supported",
    ]
    assert error.exit_code == 2


def test_an_unreadable_patch_names_overlay_and_file() -> None:
    error = fault([overlay("one", PatchChange("p"))], {"p": b"nothing\n"})
    assert error.message.startswith("overlay one, p: ")


def test_roots_and_paths_of_a_patch_are_checked() -> None:
    other = make_diff("vlm/envs.py", ENVS, NEW)
    climbing = PATCH.replace(b"vllm/envs.py", b"vllm/../etc/passwd")
    whiteout = make_diff("vllm/.wh.x", None, b"x\n")
    assert fault([overlay("one", PatchChange("p"))], {"p": other}).code == "overlay.unknown-root"
    assert fault([overlay("one", PatchChange("p"))], {"p": climbing}).code == "overlay.bad-path"
    assert fault([overlay("one", PatchChange("p"))], {"p": whiteout}).code == "overlay.bad-path"


def test_a_guard_that_no_change_needs_is_an_input_error() -> None:
    guards = {"vllm/tool": make_guard(BaseFile(b"#!/bin/sh\n"), b"x")}
    error = fault([overlay("one", PatchChange("p"), guards=guards)], {"p": PATCH})
    assert isinstance(error, InputError)
    assert error.code == "overlay.guard-without-change"


def test_guards_can_be_demanded() -> None:
    error = fault([overlay("one", PatchChange("p"))], {"p": PATCH}, require_guards=True)
    assert error.code == "overlay.unguarded"
    guards = {"vllm/envs.py": make_guard(BaseFile(ENVS), NEW)}
    assert apply([overlay("one", PatchChange("p"), guards=guards)], {"p": PATCH}, require_guards=True).written


def test_a_series_that_ends_where_it_began_writes_nothing() -> None:
    back = make_diff("vllm/envs.py", NEW, ENVS)
    done = apply([overlay("one", PatchChange("p")), overlay("two", PatchChange("q"))], {"p": PATCH, "q": back})
    assert done.written == ()
    assert "nothing is written" in done.notes[0]
