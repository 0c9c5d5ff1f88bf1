"""The files in an overlay's folder."""

from __future__ import annotations

from imagebuild.content.files import io_faults
from imagebuild.errors import InputError
from imagebuild.overlay.document import Overlay

MAX_MEMBER_BYTES = 1 << 30


def read_member(overlay: Overlay, name: str) -> bytes:
    """The bytes of a file below the overlay's folder, at most 1 GiB.

    Raises InputError `overlay.file-outside` for a path or link that leads out of the folder, `overlay.file-missing`,
    `overlay.file-too-large`.
    """
    top = overlay.folder.resolve()
    path = (top / name).resolve()
    if not path.is_relative_to(top):
        raise InputError("overlay.file-outside", f"{name} leads out of the folder {overlay.folder}")
    if not path.is_file():
        raise InputError("overlay.file-missing", f"{name} is no file below {overlay.folder}")
    with io_faults(path, "reading"):
        size = path.stat().st_size
        if size > MAX_MEMBER_BYTES:
            raise InputError(
                "overlay.file-too-large",
                f"{path} has {size} bytes",
                expected=f"at most {MAX_MEMBER_BYTES} bytes",
                found=f"{size} bytes",
            )
        return path.read_bytes()
