"""The small files that say how Python is laid out in an image, captured while its layers stream by."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Found, Kind, Unknown, View

RECORD_LIMIT = 16 << 20
"""Bytes of a RECORD at most; the largest known ones (torch, vllm) have about one megabyte."""
TEXT_LIMIT = 1 << 20
MODULE_LIMIT = 64 << 10

_IN_INFO = {
    "RECORD": RECORD_LIMIT,
    "METADATA": TEXT_LIMIT,
    "WHEEL": TEXT_LIMIT,
    "INSTALLER": TEXT_LIMIT,
    "direct_url.json": TEXT_LIMIT,
    "PKG-INFO": TEXT_LIMIT,
    "installed-files.txt": RECORD_LIMIT,
}
_ANYWHERE = {"pyvenv.cfg": TEXT_LIMIT, "sitecustomize.py": MODULE_LIMIT, "usercustomize.py": MODULE_LIMIT}
_SUFFIXES = (".pth", ".egg-link", ".egg-info")
_INFO_SUFFIXES = (".dist-info", ".egg-info", "EGG-INFO")
_SITE_SUFFIXES = ("site-packages", "dist-packages")


class Contents(Protocol):
    """Bytes of captured files of the merged view."""

    def read(self, path: str) -> bytes | None:
        """The bytes that `path` (as in Entry, no link on any component) shows in the merged view, a hard link's
        too; None where they were not captured."""
        ...


def wanted_name(path: str, size: int) -> bool:
    """Whether the bytes of a regular file are to be captured.  Runs for every entry of every layer, so it looks at the end
    of the path only.  `size` in bytes; files above their kind's bound are never captured.

    Wanted are RECORD, METADATA, WHEEL, INSTALLER, direct_url.json and their egg-info kin, `*.pth`, `*.egg-link`, pyvenv.cfg, the
    customize modules, `_*.py` directly in a site folder (the modules that `.pth` lines import), and etc/passwd.
    """
    folder, _, name = path.rpartition("/")
    limit = _IN_INFO.get(name)
    if limit is not None:
        return size <= limit and folder.endswith(_INFO_SUFFIXES)
    if name.endswith(_SUFFIXES):
        return size <= TEXT_LIMIT
    limit = _ANYWHERE.get(name)
    if limit is not None:
        return size <= limit
    if name.startswith("_"):
        return name.endswith(".py") and size <= MODULE_LIMIT and folder.endswith(_SITE_SUFFIXES)
    return path == "etc/passwd" and size <= TEXT_LIMIT


def join(folder: str, name: str) -> str:
    """`folder/name`, where the folder may be the root ("")."""
    return f"{folder}/{name}" if folder else name


def nearest_of(path: str, paths: Collection[str]) -> str | None:
    """`path` itself or the nearest folder above it that is among `paths`; None where none is."""
    while path:
        if path in paths:
            return path
        path = path.rpartition("/")[0]
    return None


def is_below(path: str, paths: Collection[str]) -> bool:
    """Whether `path` or a folder above it is among `paths`."""
    return nearest_of(path, paths) is not None


def real_path(view: View, path: str) -> str | None:
    """`path` with every link followed, None where unread layers may hold a link.

    A path through links that never end comes back as written: nothing can be opened there, and a loop that no change
    touches is no reason to refuse an image.
    """
    try:
        found = view.resolve(path)
    except RefusedError as error:
        if error.code != "base.symlink-loop":
            raise
        return path
    return None if isinstance(found, Unknown) else found


def read_text(view: View, contents: Contents, path: str) -> str | None:
    """The captured text of the file that `path` leads to, links followed; None where it is not there or was not captured.

    Bytes that are not UTF-8 stand as surrogate escapes; a byte-order mark is dropped.
    """
    where = real_path(view, path)
    if where is None:
        return None
    found = view.lookup(where)
    if not isinstance(found, Found) or found.entry.kind not in (Kind.FILE, Kind.HARDLINK):
        return None
    data = contents.read(where)
    return None if data is None else data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")


def is_complete(view: View) -> bool:
    """Whether nothing below was left unread (the root folder's own list is whole)."""
    return view.children("")[1]
