"""File systems that are really full: a tiny tmpfs as cache, as output, as temporary folder, as workspace."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tools import missing, program, root

from imagebuild.testing.small_engine import SmallWorkspace

pytestmark = pytest.mark.integration

Tiny = Callable[..., Any]


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    """Mounts a tmpfs of so many KiB."""
    root()
    mount, umount = program("mount"), program("umount")

    @contextmanager
    def mounted(folder: Path, kib: int) -> Iterator[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [mount, "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)], capture_output=True, check=False
        )
        if done.returncode != 0:
            missing(f"no tmpfs can be mounted here: {done.stderr.decode('utf-8', 'replace').strip()}")
        try:
            yield folder
        finally:
            subprocess.run([umount, "-l", str(folder)], check=True)

    return mounted


def fill(folder: Path, leave: int) -> None:
    """Leaves so many bytes free (a tmpfs counts in pages of 4 KiB)."""
    with open(folder / "ballast", "wb") as out:
        stat = os.statvfs(folder)
        out.write(bytes(max(0, stat.f_bavail * stat.f_frsize - leave)))


def refused(verb: Any, *words: str | Path) -> dict[str, Any]:
    ran = verb(*words, "--json")
    assert (ran.code, ran.document["code"]) == (3, "content.disk-full"), ran.out + ran.err
    document: dict[str, Any] = ran.document
    return document


@pytest.mark.parametrize("leave", [0, 4096, 12288])
def test_a_full_cache(in_workspace: Any, verb: Any, tiny: Tiny, tmp_path: Path, leave: int) -> None:
    space: SmallWorkspace = in_workspace()
    with tiny(tmp_path / "cache", 256) as cache:
        fill(cache, leave)
        before = space.snapshot()
        refused(verb, "lock", "tuned", "--complete", "--cache", cache)
        assert space.snapshot() == before
        assert not list(cache.rglob(".imagebuild-tmp-*"))
        (cache / "ballast").unlink()
        assert verb("lock", "tuned", "--complete", "--cache", cache).code == 0


@pytest.mark.parametrize("leave", [0, 4096, 16384])
def test_a_full_output(in_workspace: Any, verb: Any, tiny: Tiny, tmp_path: Path, leave: int) -> None:
    space: SmallWorkspace = in_workspace()
    assert verb("lock", "tuned").code == 0
    with tiny(tmp_path / "out", 128) as out:
        fill(out, leave)
        for output in (f"oci:{out}/layout:v", f"oci-archive:{out}/a.tar:v", f"docker-archive:{out}/d.tar:x:v"):
            refused(verb, "build", "tuned", "--output", output, "--complete")
        assert not list(out.rglob(".imagebuild-tmp-*"))
        assert not (out / "a.tar").exists()
        (out / "ballast").unlink()
        built = verb("build", "tuned", "--output", f"oci:{out}/layout:v", "--complete", "--json")
        assert (built.code, built.document["digest"]) == (0, str(space.digest()))


def test_a_full_temporary_folder(
    in_workspace: Any, verb: Any, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not even a byte can be written Python takes another folder by itself."""
    space: SmallWorkspace = in_workspace()
    with tiny(tmp_path / "tmp", 64) as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr("tempfile.tempdir", None)
        fill(folder, 8192)
        before = space.snapshot()
        refused(verb, "lock", "tuned")
        assert space.snapshot() == before
        (folder / "ballast").unlink()
        assert verb("lock", "tuned").code == 0
        fill(folder, 8192)
        refused(verb, "build", "tuned")
        (folder / "ballast").unlink()
        assert verb("build", "tuned").code == 0
        monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.mark.parametrize("leave", [0, 4096, 8192, 16384])
def test_a_full_workspace(in_workspace: Any, verb: Any, tiny: Tiny, tmp_path: Path, leave: int) -> None:
    """The earlier lock stays whole and usable; with room again the same command completes."""
    with tiny(tmp_path / "small", 256):
        space: SmallWorkspace = in_workspace(name="small/ws")
        assert verb("lock", "tuned").code == 0
        old = space.lock_path().read_bytes()
        space.write_target(env={"ADDED": "1"})
        fill(tmp_path / "small", leave)
        ran = verb("lock", "tuned", "--json", "--cache", tmp_path / "roomy")
        if ran.code != 0:
            assert (ran.code, ran.document["code"]) == (3, "content.disk-full")
            assert space.lock_path().read_bytes() == old
        (tmp_path / "small" / "ballast").unlink()
        assert verb("lock", "tuned").code == 0
        assert space.lock_path().read_bytes() != old
        assert verb("build", "tuned").code == 0
