"""`export --as script`: the pristine base's tree becomes the built image's, guarded three ways, whatever interrupts it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagebuild.testing.small_engine import ENVS, ENVS_AFTER, SITE, TIME, SmallWorkspace, pyc, pyc_path

ENVS_AT = f"{SITE}/engine/envs.py"
CACHE_AT = f"{SITE}/{pyc_path('engine/envs.py')}"

CHANGES = """\
  - patch: patches/0001-envs.patch
  - file: files/extra.py
    to: engine/deep/new/extra.py
  - edit: {path: engine/scheduler.py, find: "state + 17", replace: "state + 18"}
  - delete: {path: engine/legacy.py}
  - symlink: {path: engine/current.py, to: envs.py}
  - env: {ENGINE_TUNED: "0"}
"""


@dataclass(frozen=True)
class Exported:
    """A target, its script, and a folder with the pristine base's tree."""

    space: SmallWorkspace
    script: Path
    root: Path

    def run(self, *words: str, python: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [
            python,
            "-E",
            "-s",
            str(self.script),
            "--rootfs",
            str(self.root),
            "--platform",
            "linux/amd64",
            *words,
        ]
        env = {"PATH": os.defpath, **environment}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=60)

    def content_id(self) -> str:
        return str(self.space.lock()["result"]["content_id"])


def unpack(layout: Path, digest: str, into: Path) -> Path:
    """The merged tree of an image in a layout (complete), unpacked by Python's own tarfile and the whiteouts' rules."""
    from imagebuild.content.digest import Digest
    from imagebuild.oci.layout import LayoutSource
    from imagebuild.oci.tree import read_image_tree

    (child,) = read_image_tree(LayoutSource(layout), Digest.parse(digest)).children.values()
    for layer in child.manifest.layers:
        with tarfile.open(layout / "blobs" / "sha256" / layer.digest.hex) as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                if name.startswith(".wh."):
                    (into / folder / name[4:]).unlink()
                else:
                    (into / member.name).unlink(missing_ok=True) if not member.isdir() else None
                    archive.extract(member, into, filter="fully_trusted")
    return into


def seen(root: Path) -> dict[str, tuple[Any, ...]]:
    """What a tree shows: type, mode, time and content of everything but folders' times."""
    out: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        at = path.lstat()
        where = str(path.relative_to(root))
        if path.is_symlink():
            out[where] = ("link", os.readlink(path))
        elif path.is_dir():
            out[where] = ("folder", at.st_mode)
        else:
            out[where] = ("file", at.st_mode, at.st_uid, at.st_gid, int(at.st_mtime), path.read_bytes())
    return out


@pytest.fixture
def exported(in_workspace: Any, verb: Any, tmp_path: Path) -> Callable[..., Exported]:
    def make(changes: str = CHANGES, **of_base: Any) -> Exported:
        space = in_workspace(**of_base)
        shutil.rmtree(space.root / "overlays" / "tune")
        space.write_overlay(changes=changes)
        assert verb("lock", "tuned", "--complete").code == 0
        answer = verb("export", "tuned", "--as", "script", "--json")
        assert answer.code == 0, answer.err
        root = tmp_path / "root"
        root.mkdir()
        unpack(space.root / "build" / "base", str(space.base.digest), root)
        return Exported(space, Path(answer.document["file"]), root)

    return make


def test_the_tree_becomes_the_images(exported: Any, verb: Any, tmp_path: Path) -> None:
    at = exported()
    done = at.run()
    assert done.returncode == 0, done.stderr
    assert done.stdout == at.content_id() + "\n"
    assert "ENGINE_TUNED=0" in done.stderr
    built = verb("build", "tuned", "--output", "oci:built", "--complete", "--json").document
    image = tmp_path / "image"
    image.mkdir()
    unpack(at.space.root / "built", built["digest"], image)
    assert seen(at.root) == seen(image)
    assert (at.root / ENVS_AT).read_bytes() == ENVS_AFTER
    if os.geteuid() == 0:
        assert os.getxattr(at.root / ENVS_AT, "user.note") == b"kept"


def test_again_it_changes_nothing_and_check_only_looks(exported: Any) -> None:
    at = exported()
    before = seen(at.root)
    looked = at.run("--check")
    assert (looked.returncode, looked.stdout) == (1, "")
    assert f"to change: /{ENVS_AT}" in looked.stderr
    assert f"stale: /{CACHE_AT}" in looked.stderr
    assert seen(at.root) == before
    assert at.run().returncode == 0
    after, inode = seen(at.root), (at.root / ENVS_AT).stat().st_ino
    for words in ((), ("--check",)):
        again = at.run(*words)
        assert (again.returncode, again.stdout) == (0, at.content_id() + "\n")
    assert seen(at.root) == after
    assert (at.root / ENVS_AT).stat().st_ino == inode


@pytest.mark.parametrize("what", ["other text", "missing", "link", "folder", "unexpected", "parent link"])
def test_anything_else_stops_it_before_the_first_byte(exported: Any, what: str) -> None:
    at = exported()
    path = at.root / ENVS_AT
    if what == "unexpected":
        path = at.root / SITE / "engine/deep/new/extra.py"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"somebody else's")
    elif what == "parent link":
        (at.root / SITE / "engine").rename(at.root / "elsewhere")
        (at.root / SITE / "engine").symlink_to(at.root / "elsewhere")
    else:
        path.unlink()
        if what == "other text":
            path.write_bytes(ENVS + b"# a fix that only this image has\n")
        elif what == "link":
            path.symlink_to("scheduler.py")
        elif what == "folder":
            path.mkdir()
    before = seen(at.root)
    for words in ((), ("--check",)):
        done = at.run(*words)
        assert (done.returncode, done.stdout) == (1, "")
    assert seen(at.root) == before
    if what == "parent link":
        assert "the root engine is no folder" in done.stderr
    else:
        assert "nothing was written" in done.stderr
        assert str(path.relative_to(at.root)) in done.stderr


KILLER = """
import os, sys, runpy
left = int(sys.argv.pop(1))
def dying(call):
    def inner(*words, **named):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return call(*words, **named)
    return inner
os.replace, os.mkdir, os.unlink, os.utime = map(dying, (os.replace, os.mkdir, os.unlink, os.utime))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script, and dies without any clean-up when it takes one step more than its first argument says."""


def test_killed_after_any_step_the_next_run_completes_it(exported: Any, tmp_path: Path) -> None:
    at = exported()
    (tmp_path / "killer.py").write_text(KILLER)
    assert at.run().returncode == 0
    complete = seen(at.root)
    for steps in range(0, 60, 3):
        shutil.rmtree(at.root)
        at.root.mkdir()
        unpack(at.space.root / "build" / "base", str(at.space.base.digest), at.root)
        command = [sys.executable, str(tmp_path / "killer.py"), str(steps), str(at.script)]
        command += ["--rootfs", str(at.root), "--platform", "linux/amd64"]
        first = subprocess.run(command, capture_output=True, check=False, timeout=60)
        if first.returncode == 0:
            break
        assert first.returncode == 9, first.stderr
        done = at.run()
        assert (done.returncode, done.stdout) == (0, at.content_id() + "\n")
        assert seen(at.root) == complete
    assert 20 < steps < 57


def test_old_bytecode_goes_whenever_it_comes_and_new_bytecode_stays(exported: Any) -> None:
    at = exported()
    assert at.run().returncode == 0
    cache = at.root / CACHE_AT
    mtime = int((at.root / ENVS_AT).stat().st_mtime)
    assert mtime == TIME + 1
    cache.write_bytes(pyc(ENVS_AFTER, mtime))
    assert at.run("--check").returncode == 0
    unchecked = b"\xcb\r\r\n\1\0\0\0" + bytes(8) + b"old code"
    for stale in (pyc(ENVS, TIME), pyc(ENVS, mtime), unchecked, b""):
        cache.write_bytes(stale)
        assert at.run("--check").returncode == 1
        assert at.run().returncode == 0
        assert not cache.exists()


def test_bytecode_under_a_cache_prefix_counts_too(exported: Any) -> None:
    at = exported()
    path = at.root / "var/pyc" / SITE / "engine/envs.cpython-312.pyc"
    path.parent.mkdir(parents=True)
    path.write_bytes(pyc(ENVS, TIME))
    # -E of the other runs is about the interpreter's own reading of the variable; the script looks by itself
    assert at.run(PYTHONPYCACHEPREFIX="/var/pyc").returncode == 0
    assert not path.exists()


def test_it_refuses_another_platform_and_a_missing_root(exported: Any) -> None:
    at = exported()
    done = at.run("--platform", "linux/s390x")
    assert done.returncode == 1
    assert "made for linux/amd64, not for linux/s390x" in done.stderr
    shutil.rmtree(at.root / SITE / "engine")
    assert at.run().returncode == 1


def test_a_read_only_folder_is_could_not(exported: Any, tmp_path: Path) -> None:
    at = exported()
    lines = at.script.read_text().replace(
        "os.replace(temporary, full)", "raise OSError(30, 'Read-only file system', full)"
    )
    broken = tmp_path / "broken.py"
    broken.write_text(lines)
    done = Exported(at.space, broken, at.root).run()
    assert done.returncode == 3
    assert "Read-only file system" in done.stderr
    assert not list(at.root.rglob(".imagebuild-tmp-*"))


def old_pythons() -> list[str]:
    """Interpreters of the oldest versions that the script speaks to, by name or among pyenv's."""
    found = []
    for version in ("3.8", "3.9", "3.10"):
        path = shutil.which(f"python{version}")
        kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python3"))
        found += [path] if path and subprocess.run([path, "-c", ""], check=False).returncode == 0 else map(str, kept)
    return found


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10"])
def test_it_runs_on_old_pythons(exported: Any, version: str) -> None:
    known = [path for path in old_pythons() if version in path]
    if not known:
        pytest.skip(f"no Python {version} on this machine")
    at = exported()
    assert at.run(python=known[0]).returncode == 0
    assert at.run("--check", python=known[0]).stdout == at.content_id() + "\n"
