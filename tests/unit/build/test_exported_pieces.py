"""Pieces of an exported script in this process: patches, and where Python would import from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuild.build.exported.guards import Stop, patched
from imagebuild.build.exported.program import prove_root
from imagebuild.overlay.patch_make import make_diff

LINE = st.sampled_from([b"a", b"b", b"", b"\\ No newline", b"@@ -1 +1 @@", b"--- x", b"+++ y", b"c\rd", b"\xff"])
TEXT = st.builds(lambda lines, end: b"\n".join(lines) + end, st.lists(LINE, max_size=30), st.sampled_from([b"", b"\n"]))


@given(TEXT, TEXT)
def test_a_patch_gives_what_it_was_made_from(old: bytes, new: bytes) -> None:
    assert patched(old, make_diff("x", old, new), "x") == new


def test_a_patch_on_another_text_stops() -> None:
    diff = make_diff("x", b"a\nb\nc\n", b"a\nB\nc\n")
    with pytest.raises(Stop, match="x: line 2 is not the one") as caught:
        patched(b"a\nz\nc\n", diff, "x")
    assert caught.value.code == 1


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site folder with a package that must not be imported, on the path of every Python that is started."""
    folder = tmp_path / "site"
    (folder / "fragile" / "deep").mkdir(parents=True)
    (folder / "fragile" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_root_is_found_without_importing_it(site: Path) -> None:
    assert prove_root("fragile", str(site / "fragile"), str(site)) == sys.executable
    assert prove_root("fragile.deep", str(site / "fragile" / "deep"), str(site)) == sys.executable


def test_a_link_to_the_site_folder_is_the_same_place(site: Path, tmp_path: Path) -> None:
    link = tmp_path / "lib64"
    link.symlink_to(site)
    assert prove_root("fragile", str(link / "fragile"), str(link)) == sys.executable


@pytest.mark.parametrize("where", ["PYTHONPATH", "working directory"])
def test_what_would_be_imported_instead_is_named(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    other = tmp_path / "other"
    (other / "fragile").mkdir(parents=True)
    (other / "fragile" / "__init__.py").write_text("")
    if where == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(other), str(site)]))
    else:
        monkeypatch.chdir(other)
    with pytest.raises(Stop, match=f"would import fragile from {other}/fragile, not from {site}/fragile"):
        prove_root("fragile", str(site / "fragile"), str(site))


def test_a_package_that_no_python_finds_stops(site: Path) -> None:
    with pytest.raises(Stop, match="would import absent from nowhere"):
        prove_root("absent", str(site / "absent"), str(site))
    with pytest.raises(Stop, match="no Python here imports json from /nowhere"):
        prove_root("json", "/nowhere/json", "/nowhere")
