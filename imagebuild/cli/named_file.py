"""Files that the command line names: one that is not there is a mistake of the line (exit 2), not of the disk (exit 3)."""

from __future__ import annotations

from pathlib import Path

from imagebuild.content.files import io_faults
from imagebuild.errors import InputError


def read_named(name: str, option: str) -> bytes:
    """The bytes of the file that `option` names.

    Raises InputError `cli.no-file`; UnavailableError `content.io` where it is there and cannot be read.
    """
    path = Path(name)
    if not path.exists() or path.is_dir():
        raise InputError(
            "cli.no-file",
            f"{option}: {name} is " + ("a folder" if path.is_dir() else "not there"),
            expected="a file",
            found=f"looked for {path.absolute()}",
        )
    with io_faults(name, "reading"):
        return path.read_bytes()
