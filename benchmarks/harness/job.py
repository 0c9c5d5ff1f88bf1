"""The job: two Python files of the engine changed, in the forms in which each program wants it."""

from __future__ import annotations

import difflib
import hashlib
import io
import shutil
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.engine_base import ENGINE
from imagebuild.testing.wheel_fetch import obtain

SITE = "usr/local/lib/python3.12/dist-packages"
CHANGED = ("vllm/envs.py", "vllm/engine/arg_utils.py")
NEW = "vllm/benchmark_addition.py"
MTIME = 1793700000


@cache
def original(path: str) -> bytes:
    with zipfile.ZipFile(obtain(ENGINE)) as archive:
        return archive.read(path)


@dataclass(frozen=True, slots=True)
class Job:
    """One variant of the change.  Another `series` gives other bytes, so that nothing is found ready from the run
    before; `new` is the overlay with one new file instead."""

    series: int = 0
    new: bool = False

    def files(self) -> Mapping[str, bytes]:
        """The changed files, wheel path -> bytes."""
        line = f"# Changed by the benchmark, series {self.series}.\n".encode()
        if self.new:
            return {NEW: line}
        out = {}
        for path in CHANGED:
            lines = original(path).splitlines(keepends=True)
            out[path] = b"".join([*lines[:2], line, *lines[2:]])
        return out

    def paths(self) -> dict[str, bytes]:
        """The same by path in the image."""
        return {f"{SITE}/{path}": data for path, data in self.files().items()}

    def write_tree(self, folder: Path) -> None:
        """Below `folder` as in the image."""
        shutil.rmtree(folder, ignore_errors=True)
        for path, data in self.paths().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)

    def write_context(self, folder: Path, base: str) -> None:
        """A build context for docker."""
        self.write_tree(folder / "files")
        (folder / "Dockerfile").write_text(f"FROM {base}\nCOPY files/ /\n")

    def write_tar(self, path: Path) -> None:
        """A layer with the two files and nothing else."""
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for name, data in self.paths().items():
                member = tarfile.TarInfo(name)
                member.size, member.mode, member.mtime = len(data), 0o644, MTIME
                archive.addfile(member, io.BytesIO(data))

    def write_workspace(self, folder: Path, targets: Mapping[str, str]) -> None:
        """A workspace of ours: target name -> base reference, one overlay."""
        shutil.rmtree(folder, ignore_errors=True)
        self.write_overlay(folder)
        for target, base in targets.items():
            (folder / "manifests" / target).mkdir(parents=True)
            (folder / "manifests" / target / "target.yaml").write_text(_TARGET.format(name=target, base=base))

    def write_overlay(self, folder: Path) -> None:
        """The overlay of a workspace, in the place of what was there."""
        overlay = folder / "overlays" / "bench"
        shutil.rmtree(overlay, ignore_errors=True)
        overlay.mkdir(parents=True)
        changes, guards = [], []
        for number, (path, data) in enumerate(self.files().items(), 1):
            if self.new:
                (overlay / "files").mkdir()
                (overlay / "files" / "addition.py").write_bytes(data)
                changes.append(f"  - file: files/addition.py\n    to: {path}\n")
                before = "absent"
            else:
                (overlay / "patches").mkdir(exist_ok=True)
                name = f"patches/{number:04}-{Path(path).stem}.patch"
                (overlay / name).write_bytes(_diff(path, original(path), data))
                changes.append(f"  - patch: {name}\n")
                before = _sha256(original(path))
            guards.append(f"  {path}: {{preimage: {before}, postimage: {_sha256(data)}}}\n")
        (overlay / "overlay.yaml").write_text(_OVERLAY.format(changes="".join(changes), guards="".join(guards)))


def _sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _diff(path: str, before: bytes, after: bytes) -> bytes:
    lines = difflib.unified_diff(
        before.decode().splitlines(keepends=True), after.decode().splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return f"diff --git a/{path} b/{path}\n{''.join(lines)}".encode()


_OVERLAY = """schema: 1
name: bench
description: one line more
origin: {{kind: other}}
author: the benchmark
forwarded: not-needed
upstream_status: Inappropriate
last_update: 2026-11-30
numerics: bitwise
remove_when: never
license: Apache-2.0
changes:
{changes}guards:
{guards}"""

_TARGET = """schema: 1
name: {name}
base: {base}
platforms: [linux/amd64]
overlays: [bench]
roots: {{vllm: {{python: vllm}}}}
identity: {{vllm: "0.33.0"}}
"""
