"""The loop of edit and refresh: files out, changed by hand, patch and guards back."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import Guard
from imagebuild.overlay.document import Overlay, load_overlay
from imagebuild.overlay.editing import files_to_edit, load_session, open_session
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.importer import import_diff
from imagebuild.overlay.overlay_folder import store_overlay
from imagebuild.overlay.patch_make import make_diff
from imagebuild.overlay.refreshing import refresh_overlay, store_refreshed
from imagebuild.overlay.series import apply_series
from imagebuild.overlay.series_tree import MemoryBase

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
OLD = b"".join(b"line %d\n" % number for number in range(1, 41))
NEW = OLD.replace(b"line 9\n", b"nine\n")
FILES: dict[str, BaseFile | bytes] = {
    "vllm/envs.py": OLD,
    "vllm/other.py": b"other = 1\n",
    "vllm/tool": BaseFile(b"#!/bin/sh\n", 0o755),
}


class Bench:
    """A workspace with one overlay, driven as the two verbs do."""

    def __init__(self, folder: Path, files: dict[str, BaseFile | bytes] = FILES) -> None:
        self.work = folder / ".imagebuild" / "edit" / "tep"
        self.folder = folder / "overlays" / "tep"
        self.base = MemoryBase(files)
        diff = make_diff("vllm/envs.py", OLD, NEW) + make_diff("vllm/new.py", None, b"new = 1\n")
        store_overlay(self.folder, import_diff("tep", diff, {AMD64: MemoryBase(FILES)}, {"vllm"}))

    def overlay(self) -> Overlay:
        return load_overlay(self.folder)

    def edit(self, *paths: str) -> tuple[str, ...]:
        files, notes = files_to_edit(self.overlay(), paths, {"vllm"}, self.base, AMD64)
        open_session(self.work, "tep", AMD64, files)
        return notes

    def refresh(self) -> tuple[Path, ...]:
        text = (self.folder / "overlay.yaml").read_text()
        session = load_session(self.work, "tep")
        return store_refreshed(
            self.folder, refresh_overlay(self.overlay(), text, session, {AMD64: self.base}, {"vllm"})
        )

    def result(self) -> dict[str, bytes | None]:
        done = apply_series([self.overlay()], {"vllm"}, self.base, AMD64, require_guards=True)
        return {file.path: file.data for file in done.written} | {gone.path: None for gone in done.deleted}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def code_of(work: object) -> str:
    with pytest.raises(ImagebuildError) as caught:
        work()  # type: ignore[operator]
    return caught.value.code


def test_the_patched_file_is_put_out_and_the_patch_made_anew(bench: Bench) -> None:
    bench.edit("vllm/envs.py")
    file = bench.work / "vllm/envs.py"
    assert file.read_bytes() == NEW
    assert (bench.work / ".before/vllm/envs.py").read_bytes() == OLD
    text = (bench.folder / "overlay.yaml").read_text()
    (bench.folder / "overlay.yaml").write_text(f"# mine\n{text}# the end\n")
    newer = NEW.replace(b"line 30\n", b"thirty\n")
    file.write_bytes(newer)
    bench.refresh()
    assert bench.result() == {"vllm/envs.py": newer, "vllm/new.py": b"new = 1\n"}
    assert (bench.folder / "patches/0001-envs.patch").read_bytes() == make_diff("vllm/envs.py", OLD, newer)
    after = (bench.folder / "overlay.yaml").read_text()
    assert after.startswith(f"# mine\n{text[: text.index('guards:')]}guards:\n")
    assert after.endswith("# the end\n")


def test_a_refresh_without_a_change_writes_nothing(bench: Bench) -> None:
    bench.edit("vllm/envs.py", "vllm/new.py", "vllm/other.py")
    assert bench.refresh() == ()
    assert bench.refresh() == ()


def test_files_that_no_change_touches_go_into_one_new_patch(bench: Bench) -> None:
    notes = bench.edit("vllm/other.py", "vllm/tool", "vllm/deep/fresh.py")
    assert notes == ("vllm/deep/fresh.py: neither the base nor the overlay has it; it will be a new file",)
    (bench.work / "vllm/other.py").write_bytes(b"other = 2\n")
    (bench.work / "vllm/tool").write_bytes(b"#!/bin/bash\n")
    (bench.work / "vllm/deep/fresh.py").write_bytes(b"fresh = 1\n")
    assert (bench.work / "vllm/tool").stat().st_mode & 0o777 == 0o755
    bench.refresh()
    assert sorted(path.name for path in (bench.folder / "patches").iterdir()) == ["0001-envs.patch", "0002-other.patch"]
    assert (bench.folder / "files/vllm/deep/fresh.py").read_bytes() == b"fresh = 1\n"
    result = bench.result()
    assert result["vllm/other.py"] == b"other = 2\n"
    assert result["vllm/tool"] == b"#!/bin/bash\n"
    assert result["vllm/deep/fresh.py"] == b"fresh = 1\n"


def test_a_whole_file_is_replaced_deleted_and_taken_back(bench: Bench) -> None:
    bench.edit("vllm/new.py", "vllm/other.py")
    (bench.work / "vllm/new.py").write_bytes(b"new = 2\n")
    bench.refresh()
    assert bench.result()["vllm/new.py"] == b"new = 2\n"
    (bench.work / "vllm/new.py").unlink()
    (bench.work / "vllm/other.py").unlink()
    bench.refresh()
    assert bench.result() == {"vllm/envs.py": NEW, "vllm/other.py": None}
    assert not (bench.folder / "files/vllm/new.py").exists()
    assert "vllm/new.py" not in bench.overlay().guards


def test_a_file_put_back_as_it_was_loses_its_part_of_the_patch(bench: Bench) -> None:
    bench.edit("vllm/envs.py")
    (bench.work / "vllm/envs.py").write_bytes(OLD)
    bench.refresh()
    assert bench.result() == {"vllm/new.py": b"new = 1\n"}
    assert not (bench.folder / "patches/0001-envs.patch").exists()
    bench.edit("vllm/new.py")
    (bench.work / "vllm/new.py").unlink()
    assert code_of(bench.refresh) == "overlay.refresh-empties"


def test_other_parts_and_the_header_of_a_patch_stay(bench: Bench) -> None:
    bench.edit("vllm/other.py", "vllm/tool")
    (bench.work / "vllm/other.py").write_bytes(b"other = 2\n")
    (bench.work / "vllm/tool").write_bytes(b"#!/bin/bash\n")
    bench.refresh()
    patch = bench.folder / "patches/0002-other.patch"
    patch.write_bytes(b"Description: two\n" + patch.read_bytes())
    (bench.work / "vllm/other.py").write_bytes(b"other = 3\n")
    bench.refresh()
    text = patch.read_bytes()
    assert text.startswith(b"Description: two\ndiff --git a/vllm/other.py")
    assert b"+other = 3\n" in text
    assert b"+#!/bin/bash\n" in text


def test_on_another_base_the_patch_is_moved_and_the_guards_follow(tmp_path: Path) -> None:
    moved = b"first\n" + OLD
    bench = Bench(tmp_path, {**FILES, "vllm/envs.py": moved})
    assert code_of(bench.result) == "overlay.preimage-mismatch"
    notes = bench.edit("vllm/envs.py")
    assert any("would apply at offset +1" in note for note in notes)
    assert any("not the file that the guard names" in note for note in notes)
    assert (bench.work / "vllm/envs.py").read_bytes() == b"first\n" + NEW
    bench.refresh()
    assert bench.result()["vllm/envs.py"] == b"first\n" + NEW
    guard = bench.overlay().guards["vllm/envs.py"]
    assert isinstance(guard, Guard)
    assert guard.preimage == (Digest.of(moved),)


def test_where_the_patch_does_not_fit_the_base_s_file_is_given(tmp_path: Path) -> None:
    other = OLD.replace(b"line 8\n", b"eight\n")
    bench = Bench(tmp_path, {**FILES, "vllm/envs.py": other})
    notes = bench.edit("vllm/envs.py")
    assert (bench.work / "vllm/envs.py").read_bytes() == other
    assert any("given as it is before the overlay" in note for note in notes)


def test_guards_of_paths_that_were_not_edited_must_still_hold(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {**FILES, "vllm/envs.py": b"first\n" + OLD})
    bench.edit("vllm/other.py")
    (bench.work / "vllm/other.py").write_bytes(b"other = 2\n")
    before = (bench.folder / "overlay.yaml").read_bytes()
    assert code_of(bench.refresh) == "overlay.preimage-mismatch"
    assert (bench.folder / "overlay.yaml").read_bytes() == before


def test_a_base_that_moved_since_the_edit_is_refused(bench: Bench) -> None:
    bench.edit("vllm/other.py")
    (bench.work / "vllm/other.py").write_bytes(b"other = 1\nmore = 2\n")
    bench.base = MemoryBase({**FILES, "vllm/other.py": b"other = 1\nchanged = 1\n"})
    assert code_of(bench.refresh) in ("overlay.session-stale", "overlay.patch-mismatch")
    assert code_of(lambda: bench.edit("vllm/other.py")) == "overlay.session-stale"


def test_changes_that_cannot_be_taken_apart_are_refused(bench: Bench) -> None:
    text = (bench.folder / "overlay.yaml").read_text()
    edit = "changes:\n  - edit: {path: vllm/other.py, find: other, replace: another}\n"
    (bench.folder / "overlay.yaml").write_text(text.replace("changes:\n", edit))
    bench.edit("vllm/other.py")
    assert (bench.work / "vllm/other.py").read_bytes() == b"another = 1\n"
    assert code_of(bench.refresh) == "overlay.refresh-mixed"


def test_work_that_goes_on_is_not_overwritten(bench: Bench) -> None:
    bench.edit("vllm/envs.py")
    (bench.work / "vllm/envs.py").write_bytes(b"half done\n")
    bench.edit("vllm/envs.py", "vllm/other.py")
    assert (bench.work / "vllm/envs.py").read_bytes() == b"half done\n"
    assert (bench.work / "vllm/other.py").exists()


def test_files_that_were_not_opened_are_named_and_what_editors_leave_is_not(bench: Bench) -> None:
    bench.edit("vllm/envs.py")
    (bench.work / "vllm/envs.py~").write_bytes(b"backup")
    assert load_session(bench.work, "tep").files[0].now == NEW
    (bench.work / "vllm/stray.py").write_bytes(b"x")
    with pytest.raises(InputError) as caught:
        bench.refresh()
    assert caught.value.code == "overlay.not-in-session"
    assert "vllm/stray.py" in caught.value.message


def test_sessions_that_are_missing_or_damaged(bench: Bench) -> None:
    assert code_of(bench.refresh) == "overlay.no-session"
    bench.edit("vllm/envs.py")
    before = bench.work / ".before/vllm/envs.py"
    before.chmod(0o644)
    before.write_bytes(b"other")
    with pytest.raises(RefusedError) as caught:
        bench.refresh()
    assert caught.value.code == "overlay.session-damaged"
    (bench.work / ".session.json").write_text("{}")
    assert code_of(bench.refresh) == "overlay.session-damaged"
    (bench.work / ".session.json").write_text(
        '{"files": {"../../x": {"before": null, "mode": 420}}, "platform": "linux/amd64"}'
    )
    assert code_of(bench.refresh) == "overlay.session-damaged"


def test_the_guards_of_every_platform_are_written(bench: Bench) -> None:
    arm = MemoryBase({**FILES, "vllm/other.py": b"other = 1\narm = 1\n"})
    bases = {AMD64: bench.base, ARM64: arm}
    text = (bench.folder / "overlay.yaml").read_text()
    bench.edit("vllm/other.py", "vllm/envs.py")
    (bench.work / "vllm/other.py").write_bytes(b"first = 0\nother = 1\n")
    (bench.work / "vllm/envs.py").write_bytes(NEW.replace(b"line 20\n", b"20\n"))
    done = refresh_overlay(bench.overlay(), text, load_session(bench.work, "tep"), bases, {"vllm"})
    assert isinstance(done.guards["vllm/envs.py"], Guard)
    apart = done.guards["vllm/other.py"]
    assert not isinstance(apart, Guard)
    assert apart[ARM64].preimage == (Digest.of(b"other = 1\narm = 1\n"),)
    assert "linux/arm64:" in done.text
    (bench.work / "vllm/other.py").write_bytes(b"other = 1\nlast = 0\n")
    with pytest.raises(RefusedError) as caught:
        refresh_overlay(bench.overlay(), text, load_session(bench.work, "tep"), bases, {"vllm"})
    assert caught.value.code == "overlay.platforms-differ"
