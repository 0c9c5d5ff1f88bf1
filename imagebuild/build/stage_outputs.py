"""The files that a stage leaves, taken from the tar that BuildKit exports."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.content.digest import Digest
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.errors import InputError, RefusedError, clean

OUTPUT_LIMIT = 16 << 30
"""Bytes of one output at most."""
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class StageOutput:
    """A file that a stage left: `path` in the stage, size in bytes, and whether its owner may run it.  The rest of its mode,
    its owner and its time are the builder's business and are dropped."""

    path: str
    sha256: Digest
    size: int
    executable: bool

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "sha256": str(self.sha256), "size": self.size, "executable": self.executable}

    @classmethod
    def from_json(cls, value: Any) -> StageOutput:
        """Raises InputError `stage.bad-artifact` for another form."""
        if (
            not isinstance(value, dict)
            or not isinstance(value.get("path"), str)
            or not isinstance(value.get("sha256"), str)
            or type(value.get("size")) is not int
            or not isinstance(value.get("executable"), bool)
            or not value["path"].startswith("/")
            or not 0 <= value["size"] <= OUTPUT_LIMIT
        ):
            raise InputError(
                "stage.bad-artifact", "an output is not described as outputs are", found=clean(str(value), 200)
            )
        return cls(value["path"], Digest.parse(value["sha256"]), value["size"], value["executable"])


@contextmanager
def scratch_folder(store: ArtefactStore) -> Iterator[Path]:
    """A folder for unfinished files inside the store, so that a finished one is moved in by a link."""
    root = store.store.root
    with io_faults(root, "making"):
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=root))
    try:
        with io_faults(folder, "writing"):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take_outputs(tar: Path, wanted: Sequence[str], store: ArtefactStore, where: str) -> tuple[StageOutput, ...]:
    """Keeps the wanted files (absolute paths in the stage) of an exported tar, and describes them, sorted by path.

    Only regular files are taken, byte by byte; nothing is unpacked under a name that the tar chose.  Raises RefusedError
    `stage.output-missing`, `stage.output-not-a-file` (folders, links, devices), `stage.bad-tar` (damage, names that lead out,
    one name twice).
    """
    found: dict[str, StageOutput] = {}
    others: list[str] = []
    seen: set[str] = set()
    with io_faults(tar, "reading"):
        try:
            with tarfile.open(tar, "r:", errorlevel=2) as archive:
                for member in archive:
                    path = _path(member.name, where)
                    if path in seen and not member.isdir():
                        raise _bad(where, f"{path} stands twice in it")
                    seen.add(path)
                    if path not in wanted:
                        others += [path] if member.isreg() else []
                        continue
                    if not member.isreg():
                        raise _not_a_file(where, path, member)
                    if member.size > OUTPUT_LIMIT:
                        raise _bad(where, f"{path} has {member.size} bytes")
                    found[path] = _keep(archive, member, path, store)
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise _bad(where, str(error)) from error
    missing = [path for path in wanted if path not in found]
    if missing:
        raise RefusedError(
            "stage.output-missing",
            f"{where} leaves no file {', '.join(missing)}",
            expected=", ".join(missing),
            found=", ".join(sorted(others)[:_SHOWN]) + (", …" if len(others) > _SHOWN else "") or "no file at all",
            hint="`out` names files as the last stage has them: COPY them there, or correct the path",
        )
    return tuple(found[path] for path in sorted(found))


def _path(name: str, where: str) -> str:
    parts = name.removeprefix("./").split("/")
    if name.startswith("/") or ".." in parts:
        raise _bad(where, f"it holds the name {clean(name, 200)!r}, which leads out of it")
    return "/" + "/".join(part for part in parts if part not in ("", "."))


def _keep(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, store: ArtefactStore) -> StageOutput:
    stream = archive.extractfile(member)
    assert stream is not None
    with scratch_folder(store) as folder:
        copy = folder / "output"
        size = 0
        with open(copy, "wb") as out:
            while part := stream.read(1 << 20):
                size += out.write(part)
            os.fchmod(out.fileno(), 0o644)
        if size != member.size:
            raise tarfile.ReadError(f"{path} ends early")
        kept = store.keep(copy)
    return StageOutput(path, kept.sha256, kept.size, bool(member.mode & 0o100))


def _not_a_file(where: str, path: str, member: tarfile.TarInfo) -> RefusedError:
    if member.issym():
        kind = f"a symbolic link to {clean(member.linkname, 200)}"
    elif member.islnk():
        kind = f"a hard link to {clean(member.linkname, 200)}"
    else:
        kind = "a folder" if member.isdir() else "a device or pipe"
    return RefusedError(
        "stage.output-not-a-file",
        f"{where} leaves something else than a file at {path}",
        expected="a regular file",
        found=kind,
        hint="COPY the file itself into the last stage (cp -L follows links), and name each file of a folder in `out`",
    )


def _bad(where: str, why: str) -> RefusedError:
    return RefusedError("stage.bad-tar", f"what BuildKit exported of {where} cannot be taken: {clean(why, 300)}")
