"""The base of one platform as a series sees it while locking: read through the merged view, every answer recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from imagebuild.build.locked import link_bytes
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Absent, Found, Kind, Lookup, Unknown
from imagebuild.layer.view import MergedView
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.paths import Glob


class NeedsDeeper(Exception):
    """A question that the layers read so far do not settle (images.md, Reading 2)."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class LiveBase:
    """Implements overlay.series_tree.Base over a view.

    `folders` maps root names to image folders (no leading `/`).  `expected_new` are the ROOT/relative paths that the
    overlays expect to be absent; only for those is "not down to the package's own layer" good enough, and only where
    `listed` (the owning RECORD) does not name the path.  `bytes_of` fetches the data of a found file, `at_hand` gives those of
    one that is not needed where they were captured.  Links are followed, but for the
    last component of the paths in `links` and of what a glob finds and `named` does not hold: there the link itself is meant,
    and reads as a file whose bytes are its text.
    """

    def __init__(
        self,
        view: MergedView,
        folders: Mapping[str, str],
        expected_new: Collection[str],
        needs_bytes: Collection[str],
        listed: Callable[[str], bool],
        bytes_of: Callable[[Found], bytes],
        at_hand: Callable[[str, Found], bytes | None] = lambda path, found: None,
        named: Collection[str] = (),
        links: Collection[str] = (),
    ) -> None:
        self.view = view
        self.folders = folders
        self.places: dict[str, str] = {}
        """ROOT/relative to resolved image path, of everything that was asked for."""
        self.found: dict[str, Found] = {}
        self.absent: dict[str, str] = {}
        """ROOT/relative to `absent` or `absent-above`."""
        self.folders_found: dict[str, Found] = {}
        """ROOT/relative to the folder that stands there."""
        self.incomplete: set[str] = set()
        """Folders in which a glob looked and of which unread layers may hold more."""
        self._expected_new = expected_new
        self.whole = needs_bytes
        self._listed = listed
        self._bytes_of = bytes_of
        self._at_hand = at_hand
        self._named = named
        self._links = links
        self._globbed: set[str] = set()

    def _follows(self, path: str) -> bool:
        return path not in self._links and (path in self._named or path not in self._globbed)

    def place(self, path: str) -> str:
        """The resolved image path of a ROOT/relative path.  Raises NeedsDeeper."""
        root, _, relative = path.partition("/")
        folder = self.folders[root]
        resolved = self.view.resolve(f"{folder}/{relative}" if folder else relative, last=self._follows(path))
        if isinstance(resolved, Unknown):
            # a new file below a known folder: nothing above can make a link of it that the layers read do not show
            parent, _, name = f"{folder}/{relative}".rpartition("/")
            above = self.view.resolve(parent)
            if isinstance(above, Unknown) or path not in self._expected_new:
                raise NeedsDeeper(f"{folder}/{relative}")
            resolved = f"{above}/{name}" if above else name
            if isinstance(self.view.lookup(resolved), Found):
                # a link that is known, to where nobody looked yet
                raise NeedsDeeper(resolved)
        return resolved

    def read(self, path: str) -> BaseFile | None:
        resolved = self.place(path)
        self.places[path] = resolved
        found = self.view.lookup(resolved)
        if isinstance(found, Found):
            if not self.view.settled(resolved):
                raise NeedsDeeper(resolved)
            kind = found.data.kind
            if kind is Kind.DIRECTORY:
                self.folders_found[path] = found
                return None
            if kind is Kind.SYMLINK and not self._follows(path):
                self.found[path] = found
                return BaseFile(link_bytes(found.data.link), 0o777)
            if kind is not Kind.FILE:
                raise RefusedError(
                    "base.not-a-file",
                    f"/{resolved} ({path}) is no regular file in the base",
                    expected="a regular file",
                    found=kind.value,
                )
            self.found[path] = found
            data = self._bytes_of(found) if path in self.whole else self._at_hand(path, found)
            return BaseFile(data, found.data.mode, found.data.sha256)
        self._absent(path, resolved, found)
        return None

    def _absent(self, path: str, resolved: str, answer: Lookup) -> None:
        if isinstance(answer, Absent):
            self.absent[path] = "absent"
            return
        parent = resolved.rpartition("/")[0]
        while parent and not isinstance(self.view.lookup(parent), Found):
            # a new folder: the nearest one that exists must be settled
            above = self.view.lookup(parent)
            if isinstance(above, Absent):
                break
            parent = parent.rpartition("/")[0]
        if path not in self._expected_new or self._listed(resolved) or not self.view.settled(parent):
            raise NeedsDeeper(resolved)
        self.absent[path] = "absent-above"

    def glob(self, pattern: str) -> Sequence[str]:
        root, _, rest = pattern.partition("/")
        if root not in self.folders:
            return ()
        glob = Glob(pattern)
        fixed = []
        for part in rest.split("/")[:-1]:
            if any(char in part for char in "*?["):
                break
            fixed.append(part)
        if "/".join([root, *fixed]) in self.absent:
            return ()
        folder = "/".join([part for part in (self.folders[root], *fixed) if part])
        start = self.view.resolve(folder)
        if isinstance(start, Unknown):
            raise NeedsDeeper(folder)
        lookup = self.view.lookup(start)
        if not isinstance(lookup, Found) or lookup.entry.kind is not Kind.DIRECTORY:
            return ()
        if not self.view.children(start)[1]:
            self.incomplete.add(start)
        prefix = "/".join([root, *fixed])
        out = []
        for path, found in self.view.walk(start):
            relative = path[len(start) :].lstrip("/")
            if not relative or found.data.kind is Kind.DIRECTORY:
                continue
            named = f"{prefix}/{relative}"
            if glob.matches(named):
                out.append(named)
        self._globbed.update(out)
        if not out and start in self.incomplete:
            raise NeedsDeeper(start)
        return sorted(out, key=lambda path: path.encode("utf-8", "surrogateescape"))
