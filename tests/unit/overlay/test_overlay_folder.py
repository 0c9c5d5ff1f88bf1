"""Trees in, overlays out: whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.overlay import overlay_folder
from imagebuild.overlay.changes import FileChange, PatchChange
from imagebuild.overlay.importer import ImportedOverlay, import_diff, import_tree
from imagebuild.overlay.overlay_folder import read_tree, store_overlay
from imagebuild.overlay.patch_make import make_diff
from imagebuild.overlay.series import apply_series
from imagebuild.overlay.series_tree import MemoryBase

AMD64 = Platform("linux", "amd64")
OLD, NEW = b"one\ntwo\n", b"one\n2\n"
BASE = MemoryBase({"vllm/envs.py": OLD, "vllm/same.py": b"same\n", "vllm/data.bin": b"\0old"})


def imported(name: str = "tep") -> ImportedOverlay:
    diff = make_diff("vllm/envs.py", OLD, NEW) + make_diff("vllm/new.py", None, b"new\n")
    return import_diff(name, diff, {AMD64: BASE}, {"vllm"})


def test_an_imported_overlay_is_read_back_and_applies(tmp_path: Path) -> None:
    folder = tmp_path / "overlays" / "tep"
    overlay = store_overlay(folder, imported())
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "files/vllm/new.py",
        "overlay.yaml",
        "patches/0001-envs.patch",
    ]
    done = apply_series([overlay], {"vllm"}, BASE, AMD64, require_guards=True)
    assert {file.path: file.data for file in done.written} == {"vllm/envs.py": NEW, "vllm/new.py": b"new\n"}
    assert os.listdir(folder.parent) == ["tep"]


def test_an_existing_overlay_is_left_alone_unless_forced(tmp_path: Path) -> None:
    folder = tmp_path / "tep"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    with pytest.raises(InputError) as caught:
        store_overlay(folder, imported())
    assert caught.value.code == "overlay.exists"
    assert os.listdir(folder) == ["mine"]
    store_overlay(folder, imported(), force=True)
    assert not (folder / "mine").exists()
    assert os.listdir(tmp_path) == ["tep"]


def test_nothing_half_written_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tep"
    store_overlay(folder, imported())
    before = (folder / "overlay.yaml").read_bytes()

    def broken(made: Path, to: Path, aside: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(overlay_folder, "_swap", broken)
    with pytest.raises(KeyboardInterrupt):
        store_overlay(folder, imported(), force=True)
    assert os.listdir(tmp_path) == ["tep"]
    assert (folder / "overlay.yaml").read_bytes() == before


def test_a_folder_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        store_overlay(tmp_path / "other", imported())
    assert caught.value.code == "overlay.name-mismatch"


def test_inside_another_git_work_tree_nothing_changes(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*\n")
    store_overlay(tmp_path / "overlays" / "tep", imported())
    assert b"+2\n" in (tmp_path / "overlays/tep/patches/0001-envs.patch").read_bytes()


def test_a_tree_is_compared_with_the_base(tmp_path: Path) -> None:
    for name, data in {
        "vllm/envs.py": NEW,
        "vllm/same.py": b"same\n",
        "vllm/new.py": b"new\n",
        "vllm/data.bin": b"\0new",
        "vllm/__pycache__/envs.cpython-312.pyc": b"x",
        "vllm/legacy.pyc": b"x",
        ".git/config": b"x",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    made = import_tree("tep", read_tree(tmp_path), {AMD64: BASE}, {"vllm"})
    assert made.changes == (
        FileChange("files/vllm/data.bin", "vllm/data.bin"),
        PatchChange("patches/0001-envs.patch"),
        FileChange("files/vllm/new.py", "vllm/new.py"),
    )
    assert made.notes == ("vllm/same.py: equal to the base's file, left out",)
    whole = import_tree("tep", read_tree(tmp_path), {AMD64: BASE}, {"vllm"}, whole=True)
    assert FileChange("files/vllm/envs.py", "vllm/envs.py") in whole.changes
    assert made.guards == whole.guards


def test_a_tree_that_changes_nothing_is_an_input_error() -> None:
    with pytest.raises(InputError) as caught:
        import_tree("tep", {"vllm/envs.py": OLD}, {AMD64: BASE}, {"vllm"})
    assert caught.value.code == "overlay.nothing-to-import"


def test_files_of_a_tree_that_no_root_holds_are_named() -> None:
    with pytest.raises(Exception, match=r"docs/x\.md"):
        import_tree("tep", {"vllm/envs.py": NEW, "docs/x.md": b"x"}, {AMD64: BASE}, {"vllm"})


def test_links_and_missing_trees_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(InputError) as caught:
        read_tree(tmp_path)
    assert caught.value.code == "overlay.tree-not-regular"
    with pytest.raises(InputError) as caught:
        read_tree(tmp_path / "nothing")
    assert caught.value.code == "overlay.tree-missing"
