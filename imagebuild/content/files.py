"""Writing so that a reader, or the next run after a kill, sees either the old file or the new one."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from imagebuild.errors import InputError, UnavailableError

TEMPORARY_PREFIX = ".imagebuild-tmp-"
"""Names of unfinished files begin so; any of them may be deleted when no imagebuild runs."""


@contextmanager
def io_faults(path: Path | str, doing: str) -> Iterator[None]:
    """Turns an OSError while `doing` into UnavailableError `content.disk-full` or `content.io`."""
    try:
        yield
    except OSError as error:
        raise io_error(error, f"{doing} {path}") from error


def refuse_too_many(folder: Path, count: int, limit: int) -> None:
    """What is not looked at might be what says no.  Raises InputError `content.too-many-files`."""
    if count > limit:
        raise InputError(
            "content.too-many-files",
            f"{folder} holds {count} files, too many to be read whole",
            expected=f"at most {limit}",
            found=str(count),
        )


MACHINES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)
"""What the machine refuses whatever a program does: rights, room, a broken disk, too many open files."""


def io_error(error: OSError, doing: str) -> UnavailableError:
    """`content.disk-full` or `content.io`; `doing` says what was tried, with the path."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnavailableError(
            "content.disk-full",
            f"no room left while {doing}",
            hint="free some space, or name another folder (IMAGEBUILD_CACHE for the cache), and run the same command",
        )
    denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return UnavailableError(
        "content.io",
        f"{doing}: {error.strerror or error}",
        hint="run as the user whom it belongs to, or name another place (--output for an image, --cache for the cache)"
        if denied
        else None,
    )


@contextmanager
def atomic_file(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A binary file that appears under `path` whole, when the block ends without an exception, or not at all.

    The bytes are flushed to disk before the rename, the permission bits are `mode` whatever the umask.
    """
    with io_faults(path, "writing"):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
    temporary = Path(name)
    try:
        with io_faults(path, "writing"), os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        with io_faults(path, "writing"):
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def atomic_write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes `data` to `path` in one step; an equal file is left alone, so its time does not move."""
    try:
        if path.read_bytes() == data:
            return
    except OSError:
        pass
    with atomic_file(path, mode) as stream:
        stream.write(data)


def link_or_copy(source: Path, target: Path) -> bool:
    """Makes `target` a hard link of `source`, or a copy where links cannot be made; True for a link.

    A hard link shares the inode: neither name may be opened for writing or chmod-ed afterwards.
    """
    with io_faults(target, "writing"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
            return True
        except FileExistsError:
            return True
        except OSError:
            pass
    with open(source, "rb") as stream, atomic_file(target) as out:
        while part := stream.read(1 << 20):
            out.write(part)
    return False
