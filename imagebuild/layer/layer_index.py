"""Questions about one layer that its facts do not answer directly: what lies below a path."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Set

from imagebuild.layer.entry import LayerFacts
from imagebuild.layer.names import bytes_of


class LayerIndex:
    """One read layer.  Single questions are answered by bisection over sorted paths; `fold` makes the whole list of
    folders, which a walk needs."""

    def __init__(self, facts: LayerFacts) -> None:
        self.facts = facts
        self.entries = facts.entries
        self.whiteouts: Set[str] = facts.whiteouts
        self.opaques: Set[str] = facts.opaques
        self._sorted: tuple[list[str], ...] | None = None
        self._folders: dict[str, list[str]] | None = None

    def _lists(self) -> tuple[list[str], ...]:
        if self._sorted is None:
            self._sorted = (
                list(self.entries),
                sorted(self.whiteouts, key=bytes_of),
                sorted(self.opaques, key=bytes_of),
            )
        return self._sorted

    def implies(self, path: str) -> bool:
        """Whether the layer has something below `path` (an entry, a whiteout or an opaque marker), which makes a
        folder of it when the layer is unpacked."""
        if path == "":
            return True
        if path in self.opaques:
            return True
        if self._folders is not None:
            return path in self._folders
        return any(_any_below(paths, path) for paths in self._lists())

    def holds(self, path: str) -> bool:
        """Whether the layer has an entry below `path`."""
        return _any_below(self._lists()[0], path)

    def below(self, folder: str) -> list[str]:
        """Paths of the entries below `folder`, by bytes."""
        paths, start = self._lists()[0], bytes_of(folder) + b"/"
        if not folder:
            return [path for path in paths if path]
        at = bisect_left(paths, start, key=bytes_of)
        # "0" is the byte after "/"
        return paths[at : bisect_left(paths, bytes_of(folder) + b"0", lo=at, key=bytes_of)]

    def comes_before(self, folder: str) -> bool:
        """Whether anything in `folder` stands, or may stand, before the folder's own entry in the tar."""
        start, own = bytes_of(folder) + b"/", self.entries[folder].offset
        paths, *markers = self._lists()
        at = bisect_left(paths, start, key=bytes_of)
        while at < len(paths) and bytes_of(paths[at]).startswith(start):
            # A sparse file does not say where it stands: its offset counts as before.
            if self.entries[paths[at]].offset < own:
                return True
            at += 1
        return any(_any_below(marked, folder) for marked in markers)

    def fold(self) -> dict[str, list[str]]:
        """Folders with the names that stand in them, folders without an entry of their own included."""
        if self._folders is None:
            folders: dict[str, list[str]] = {"": []}
            for path in self.entries:
                if path:
                    _add(folders, path)
            seen = set(self.entries)
            for path in _missing(folders, seen):
                _add(folders, path)
            for paths in (self.whiteouts, self.opaques):
                self._add_markers(folders, seen, paths, own=paths is self.opaques)
            self._folders = folders
        return self._folders

    def _add_markers(self, folders: dict[str, list[str]], seen: set[str], paths: Iterable[str], *, own: bool) -> None:
        for path in paths:
            folder = path if own else path.rpartition("/")[0]
            while folder and folder not in seen:
                seen.add(folder)
                folders.setdefault(folder, [])
                _add(folders, folder)
                folder = folder.rpartition("/")[0]
            folders.setdefault(folder, [])

    def names(self, folder: str) -> list[str]:
        """The names that the layer puts into `folder`, in any order."""
        return self.fold().get(folder, [])


def _any_below(paths: list[str], folder: str) -> bool:
    start = bytes_of(folder) + b"/"
    at = bisect_left(paths, start, key=bytes_of)
    return at < len(paths) and bytes_of(paths[at]).startswith(start)


def _add(folders: dict[str, list[str]], path: str) -> None:
    folder, _, name = path.rpartition("/")
    names = folders.get(folder)
    if names is None:
        folders[folder] = [name]
    else:
        names.append(name)


def _missing(folders: dict[str, list[str]], seen: set[str]) -> list[str]:
    """Folders without an entry, each once, their own parents too."""
    out = []
    for folder in list(folders):
        while folder and folder not in seen:
            seen.add(folder)
            out.append(folder)
            folder = folder.rpartition("/")[0]
    return out
