"""The base as a series sees it, and the paths that the series has changed so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from imagebuild.errors import RefusedError
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.paths import Glob


class Base(Protocol):
    """What a series asks of the base of one platform; every path is ROOT/relative."""

    def read(self, path: str) -> BaseFile | None:
        """The regular file at `path`, links followed; None where there is nothing or a folder."""
        ...

    def glob(self, pattern: str) -> Sequence[str]:
        """The files and links that match (`paths.Glob`), in order of their bytes."""
        ...


class MemoryBase:
    """A base of files at hand: for trees on disk, for tests, and for what a lock has kept."""

    def __init__(self, files: Mapping[str, BaseFile | bytes]) -> None:
        self.files = {path: BaseFile(file) if isinstance(file, bytes) else file for path, file in files.items()}

    def read(self, path: str) -> BaseFile | None:
        return self.files.get(path)

    def glob(self, pattern: str) -> Sequence[str]:
        glob = Glob(pattern)
        return sorted((path for path in self.files if glob.matches(path)), key=lambda path: path.encode())


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link that the series has made; `to` is its text."""

    to: str


Node = BaseFile | Link | None
"""What stands at a path; None: nothing."""


class Tree:
    """The base under the changes made so far.  Nothing is written anywhere."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.changed: dict[str, Node] = {}
        self.folders: dict[str, None] = {}
        """Folders that were deleted whole."""
        self.brought: dict[str, BaseFile] = {}
        """What artefacts put there: the layer below the changes."""

    def node(self, path: str) -> Node:
        if path in self.changed:
            return self.changed[path]
        if self.under_deleted(path):
            return None
        return self.base.read(path)

    def under_deleted(self, path: str) -> str | None:
        """The folder above `path` that the series deleted, if any."""
        return next((folder for folder in self.folders if path.startswith(folder + "/")), None)

    def put(self, path: str, node: Node) -> None:
        self.changed[path] = node

    def bring(self, path: str, file: BaseFile) -> None:
        """Puts an artefact's file; changes to it stand above it."""
        self.changed[path] = self.brought[path] = file

    def below(self, path: str) -> BaseFile | None:
        """What stands at `path` under the changes: an artefact's file, else the base's."""
        return self.brought[path] if path in self.brought else self.base.read(path)

    def glob(self, pattern: str) -> list[str]:
        """The base's matches under the changes: without what is deleted, with what was added."""
        glob = Glob(pattern)
        found = {path for path in self.base.glob(pattern) if not self.under_deleted(path)}
        for path, node in self.changed.items():
            if node is None:
                found.discard(path)
            elif glob.matches(path):
                found.add(path)
        return sorted(found, key=lambda path: path.encode())

    def is_folder(self, path: str) -> bool:
        return bool(self.glob(f"{escape(path)}/**"))

    def refuse_conflict(self, overlay: str, path: str) -> None:
        """Raises RefusedError `overlay.path-conflict` where a new file or link cannot stand at `path`: a folder is
        there, a file stands where one of its folders would be, or a folder above it is deleted whole."""
        folder = self.under_deleted(path)
        if folder is not None:
            raise _conflict(overlay, path, f"the series deletes {folder} whole; delete what is in it by a glob instead")
        if self.is_folder(path):
            raise _conflict(overlay, path, "a folder stands there")
        parts = path.split("/")
        for length in range(2, len(parts)):
            above = "/".join(parts[:length])
            if self.node(above) is not None:
                raise _conflict(overlay, path, f"{above} is no folder")


def escape(path: str) -> str:
    """A glob that matches this path only."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def _conflict(overlay: str, path: str, why: str) -> RefusedError:
    return RefusedError(
        "overlay.path-conflict",
        f"overlay {overlay}: nothing can be put at {path}: {why}",
        details={"overlay": overlay, "path": path},
    )
