"""Advisory locks on folders, so that two writers of one layout do not lose each other's entries."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagebuild.content.files import io_faults
from imagebuild.errors import UnavailableError

LOCK_FILE = ".imagebuild-lock"
"""Made only on file systems that cannot lock a folder itself (NFS)."""
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def locked(folder: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Holds a lock on `folder` (which must exist) while the block runs.

    Gives True with the lock held; False where another holds it and `wait` is False.  The kernel lets go when the
    process dies, so a kill leaves no lock behind.  Raises UnavailableError `oci.cannot-lock`, `content.io`.
    """
    flags = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    with io_faults(folder, "locking"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        held = _flock(handle, flags)
        if held is None:
            os.close(handle)
            handle = -1
            with io_faults(folder / LOCK_FILE, "locking"):
                handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            held = _flock(handle, flags)
        if held is None:
            raise UnavailableError(
                "oci.cannot-lock",
                f"the file system of {folder} has no file locks, which writing a layout needs",
                hint="name a folder on a local file system",
            )
        yield held
    finally:
        if handle >= 0:
            os.close(handle)


def _flock(handle: int, flags: int) -> bool | None:
    """True: held; False: busy; None: this file cannot be locked."""
    try:
        fcntl.flock(handle, flags)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True
