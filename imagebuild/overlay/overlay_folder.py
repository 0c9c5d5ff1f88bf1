"""An overlay's folder on disk: read as a tree for an import, written whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from imagebuild.content.files import TEMPORARY_PREFIX, atomic_write, io_faults
from imagebuild.errors import InputError
from imagebuild.overlay.document import FILE_NAME, Overlay, load_overlay
from imagebuild.overlay.importer import ImportedOverlay

MAX_TREE_BYTES = 4 << 30
MAX_TREE_FILES = 20_000
_PASSED_OVER = frozenset((".git", ".hg", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"))


def read_tree(folder: Path) -> dict[str, bytes]:
    """The regular files below `folder`, relative path to bytes, in path order.

    Folders of version control and of caches, and `.pyc` files, are passed over.  Raises InputError
    `overlay.tree-not-regular` for links, devices and names that are not UTF-8 (a tree is copied as it is, and a link
    would bring in what nobody reviewed), `overlay.tree-too-large` above 20,000 files or 4 GiB, `overlay.tree-missing`.
    """
    if not folder.is_dir():
        raise InputError("overlay.tree-missing", f"{folder} is no folder")
    out: dict[str, bytes] = {}
    total = 0
    todo = [folder]
    while todo:
        current = todo.pop()
        with io_faults(current, "reading"):
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        for entry in entries:
            path = Path(entry.path)
            relative = path.relative_to(folder).as_posix()
            with io_faults(path, "reading"):
                mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                if entry.name not in _PASSED_OVER:
                    todo.append(path)
                continue
            if entry.name.endswith(".pyc"):
                continue
            if not stat.S_ISREG(mode) or any(0xD800 <= ord(char) <= 0xDFFF for char in relative):
                raise InputError(
                    "overlay.tree-not-regular",
                    f"{relative!r} in {folder} is no regular file, or its name is not UTF-8",
                    hint="take it out of the tree; a symbolic link is a `symlink` change in overlay.yaml",
                )
            with io_faults(path, "reading"):
                data = path.read_bytes()
            total += len(data)
            out[relative] = data
            if total > MAX_TREE_BYTES or len(out) > MAX_TREE_FILES:
                raise InputError(
                    "overlay.tree-too-large",
                    f"{folder} is larger than an overlay can be",
                    expected=f"at most {MAX_TREE_FILES} files and {MAX_TREE_BYTES} bytes",
                    hint="give a folder that holds the changed files only",
                )
    return dict(sorted(out.items()))


def store_overlay(folder: Path, imported: ImportedOverlay, *, force: bool = False) -> Overlay:
    """Writes an imported overlay to `folder` (…/overlays/NAME) and gives it as it is read back from there.

    The folder appears whole: it is written beside its place, read back and compared, and renamed.  One that exists is left
    alone (InputError `overlay.exists`) unless `force`, and then replaced as a whole.  Raises InputError
    `overlay.name-mismatch` for a folder of another name.
    """
    if folder.name != imported.name:
        raise InputError(
            "overlay.name-mismatch",
            f"the overlay {imported.name} cannot be stored as {folder}",
            expected=imported.name,
            found=folder.name,
        )
    if os.path.lexists(folder) and not force:
        raise InputError(
            "overlay.exists",
            f"there is an overlay {imported.name} already: {folder}",
            hint=f"choose another name, or change that one: `imagebuild overlay edit {imported.name} PATH`",
        )
    with io_faults(folder, "writing"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=folder.parent))
    try:
        made = scratch / imported.name
        write_members(made, {**imported.files, FILE_NAME: imported.text.encode("utf-8")})
        overlay = load_overlay(made)
        if overlay.changes != imported.changes or dict(overlay.guards) != dict(imported.guards):
            raise AssertionError("an imported overlay is read back as another one")
        with io_faults(folder, "writing"):
            made.chmod(0o755)
            _swap(made, folder, scratch / "old")
        return load_overlay(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _swap(made: Path, folder: Path, aside: Path) -> None:
    if os.path.lexists(folder):
        os.rename(folder, aside)
    try:
        os.rename(made, folder)
    except OSError:
        if os.path.lexists(aside):
            os.rename(aside, folder)
        raise


def write_members(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files below `folder`, each in one step; equal ones are left alone."""
    for name, data in files.items():
        atomic_write(folder / name, data)
