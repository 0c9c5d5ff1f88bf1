"""reproduce finds a difference where there is one, and never shows as equal what was not rebuilt."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from imagebuild.build import reproduce as module
from imagebuild.build.events import Emitter
from imagebuild.build.reproduce import Rebuild, export_workspace, find_pythons, image_blobs, reproduce
from imagebuild.content.digest import Digest
from imagebuild.target.workspace import Workspace
from imagebuild.testing.small_engine import EXTRA

THIS = sys.version.split()[0]


@pytest.fixture
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_pythons", lambda: {THIS: sys.executable})


def rebuilt(b: Any, lock: Any, expected: dict[str, int]) -> list[Rebuild]:
    return reproduce(b.workspace, b.workspace.target("tuned"), lock, b.contents, expected, Emitter(b.events.append))


def test_equal_blobs_under_other_conditions(bench: Any, tmp_path: Path, this_python: None) -> None:
    b = bench(platforms=("linux/amd64", "linux/arm64"))
    lock = b.lock().lock
    expected = image_blobs(b.build(lock, tmp_path / "out"))
    assert set(expected) >= {str(lock.result.digest), *(str(p.config) for p in lock.result.platforms)}
    made = rebuilt(b, lock, expected)
    assert [item.equal for item in made] == [True] * (2 if os.geteuid() == 0 else 1)
    assert {item.digest for item in made} == {str(lock.result.digest)}
    assert made[0].conditions["python"] == THIS
    assert made[0].conditions["umask"] == "0077"
    assert len({item.conditions["user"] for item in made}) == len(made)


def test_a_blob_that_differs_is_named(bench: Any, tmp_path: Path, this_python: None) -> None:
    b = bench()
    lock = b.lock().lock
    expected = image_blobs(b.build(lock, tmp_path / "out"))
    layer = str(lock.result.platforms[0].layers[0].digest)
    other = str(Digest.of(b"other"))
    injected = {(other if digest == layer else digest): size for digest, size in expected.items()}
    for item in rebuilt(b, lock, injected):
        assert item.equal is False
        assert set(item.differing) == {layer, other}


def test_a_rebuild_that_is_refused_is_a_difference(bench: Any, tmp_path: Path, this_python: None) -> None:
    """The workspace changes under the feet of the second process: its guards say so."""
    b = bench()
    lock = b.lock().lock
    expected = image_blobs(b.build(lock, tmp_path / "out"))
    (b.space.root / "overlays" / "tune" / "files" / "extra.py").write_bytes(EXTRA + b"MORE = 1\n")
    (first, *_) = rebuilt(b, lock, expected)
    assert (first.equal, first.digest) == (False, None)
    assert "postimage-mismatch" in first.reason or "lock." in first.reason


def test_a_python_that_does_not_run_is_not_run(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()
    lock = b.lock().lock
    broken = tmp_path / "python3.13"
    broken.write_text("#!/bin/sh\necho no module named yaml >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(module, "find_pythons", lambda: {"3.13.0": str(broken), "3.14.0": str(tmp_path / "none")})
    made = rebuilt(b, lock, {})
    assert [item.equal for item in made] == [None, None]
    assert "no module named yaml" in made[0].reason
    assert all(item.to_json()["reason"] for item in made)


@pytest.mark.parametrize(
    ("code", "equal"), [("layer.compressor-version", None), ("host.missing-program", None), ("lock.stale", False)]
)
def test_a_compressor_that_is_missing_there_is_no_difference(code: str, equal: bool | None) -> None:
    answer = {"error": {"message": "said", "code": code}}
    assert module._compared({}, answer, {}).equal is equal


def test_the_export_is_clean_and_whole(bench: Any, tmp_path: Path) -> None:
    b = bench()
    lock = b.lock().lock
    for path in (b.workspace.content_path("tuned")).rglob("*.z"):
        path.unlink()
    (b.space.root / "notes.txt").write_text("not needed")
    folder = tmp_path / "export"
    export_workspace(b.workspace, b.workspace.target("tuned"), lock, b.contents, folder)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert "notes.txt" not in files
    assert not [name for name in files if name.startswith("build/")]
    assert {
        f"manifests/tuned/content/sha256/{text.removeprefix('sha256:')}.z" for text in lock.notes["content"]
    } <= files
    space = Workspace.find(folder, folder)
    assert space.target("tuned").base == b.workspace.target("tuned").base


def test_pythons_are_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (
        ("python3.11", "echo 3.11.99; echo /opt/python3.11"),
        ("python3.12", "exit 3"),
        ("python3.13", "echo 3.13.99; echo /opt/python3.13"),
    ):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = find_pythons()
    assert next(iter(found.items())) == (THIS, sys.executable)
    assert found["3.11.99"] == "/opt/python3.11"
    assert found["3.13.99"] == "/opt/python3.13"
