"""A job's files: into a folder or a tar for a container, and back, bounded and without following anything."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from imagebuild.check.runner import IN, OUT, OUTPUT_LIMIT
from imagebuild.content.files import io_faults
from imagebuild.content.strict_yaml import no_entries

COUNT_LIMIT = 10_000
"""Files that are kept of one job at most."""
TOTAL_LIMIT = 16 * OUTPUT_LIMIT
"""Bytes of all of them at most."""
_IN = IN.strip("/")
_OUT = OUT.strip("/")


@dataclass(frozen=True, slots=True)
class Collected:
    """What a job left: `files` by path below the folder; `left_out` the paths that are no regular files, or too large or
    too many to keep."""

    files: Mapping[str, bytes] = field(default_factory=no_entries, repr=False)
    left_out: tuple[str, ...] = ()

    def machine(self) -> dict[str, list[str]]:
        """What an outcome says of the files that did not come along; nothing where all did."""
        return {"filesLeftOut": list(self.left_out[:100])} if self.left_out else {}


class _Keeping:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.left_out: list[str] = []
        self._total = 0

    def room(self, path: str, size: int) -> bool:
        """Whether a file of that size is kept; one that is not is remembered by name."""
        self._total += size
        if size > OUTPUT_LIMIT or self._total > TOTAL_LIMIT or len(self.files) >= COUNT_LIMIT:
            self.leave(path)
            return False
        return True

    def leave(self, path: str) -> None:
        if len(self.left_out) < COUNT_LIMIT:
            self.left_out.append(path)

    def done(self) -> Collected:
        return Collected(dict(sorted(self.files.items())), tuple(sorted(self.left_out)))


def write_inputs(folder: Path, inputs: Mapping[str, bytes]) -> tuple[Path, Path]:
    """Makes the folders `in`, readable by every user, and `out`, writable by every user, below `folder`."""
    given, left = folder / "in", folder / "out"
    with io_faults(folder, "writing"):
        given.mkdir(parents=True)
        left.mkdir()
        for name, data in inputs.items():
            (given / name).write_bytes(data)
            (given / name).chmod(0o444)
        given.chmod(0o755)
        left.chmod(0o1777)
    return given, left


def collect_folder(folder: Path) -> Collected:
    """The regular files below a folder that a job wrote to.  No link is followed, nothing that blocks is opened."""
    keeping = _Keeping()
    with io_faults(folder, "reading"):
        for path, at in _walk(folder):
            name = str(path.relative_to(folder))
            if not stat.S_ISREG(at.st_mode):
                keeping.leave(name)
            elif keeping.room(name, at.st_size):
                data = _read(path)
                if data is None:
                    keeping.leave(name)
                else:
                    keeping.files[name] = data
    return keeping.done()


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in sorted([*names, *links]):
            path = Path(parent, name)
            yield path, os.lstat(path)


def _read(path: Path) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return stream.read(OUTPUT_LIMIT)


def inputs_tar(inputs: Mapping[str, bytes]) -> bytes:
    """A tar for the root of a container: both folders and the inputs, of root and readable by all."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, mode in ((_IN.split("/")[0], 0o755), (_IN, 0o755), (_OUT, 0o1777)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            archive.addfile(folder)
        for name, data in inputs.items():
            member = tarfile.TarInfo(f"{_IN}/{name}")
            member.size, member.mode = len(data), 0o444
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def collect_tar(stream: IO[bytes]) -> Collected:
    """The regular files of a tar of `OUT` as engines give it, whose names begin with the folder's own.  A tar that breaks
    off, or is none, gives what came before."""
    keeping = _Keeping()
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.partition("/")[2].strip("/")
                if member.isdir() or not name or ".." in name.split("/"):
                    continue
                held = archive.extractfile(member) if member.isreg() else None
                if held is None:
                    keeping.leave(name)
                elif keeping.room(name, member.size):
                    keeping.files[name] = held.read()
    except (tarfile.TarError, OSError):
        keeping.leave("(the archive broke off)")
    return keeping.done()
