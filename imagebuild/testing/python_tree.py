"""Merged views of small made-up Python installations, for tests of what reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.content.digest import Digest
from imagebuild.layer.entry import Entry, Found, Kind, LayerFacts
from imagebuild.layer.view import MergedView


@dataclass
class TreeLayer:
    """One layer, mutable while a test fills it: `files` by image path (bytes; a folder is "PATH/" with b""), `links` symbolic links,
    `hard_links`, `whiteouts`, `opaques`, `mtimes` in seconds.  Parents get an entry each."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    hard_links: dict[str, str] = field(default_factory=dict)
    whiteouts: frozenset[str] = frozenset()
    opaques: frozenset[str] = frozenset()
    mtimes: dict[str, int] = field(default_factory=dict)

    def facts(self) -> LayerFacts:
        entries: dict[str, Entry] = {}

        def put(path: str, kind: Kind, data: bytes = b"", link: str = "") -> None:
            parent = path.rpartition("/")[0]
            if parent and parent not in entries:
                put(parent, Kind.DIRECTORY)
            is_file = kind is Kind.FILE
            entries[path] = Entry(
                path,
                kind,
                0o644 if is_file else 0o755,
                0,
                0,
                self.mtimes.get(path, 0),
                size=len(data),
                sha256=Digest.of(data) if is_file else None,
                link=link,
                head=data[:16] if path.endswith(".pyc") else b"",
            )

        for path, data in self.files.items():
            put(path.rstrip("/"), Kind.DIRECTORY if path.endswith("/") else Kind.FILE, data)
        for path, link in self.links.items():
            put(path, Kind.SYMLINK, link=link)
        for path, link in self.hard_links.items():
            put(path, Kind.HARDLINK, link=link)
        ordered = dict(sorted(entries.items(), key=lambda item: os.fsencode(item[0])))
        digest = Digest.of(repr(sorted(self.files.items())).encode("utf-8", "surrogateescape"))
        return LayerFacts(digest, digest, 0, ordered, self.whiteouts, self.opaques)


class TreeContents:
    """The bytes of every file of some layers, by their digest; `hidden` paths were not captured."""

    def __init__(self, view: MergedView, layers: list[TreeLayer], hidden: frozenset[str]) -> None:
        self._view = view
        self._hidden = hidden
        self._known = {Digest.of(data): data for layer in layers for data in layer.files.values()}

    def read(self, path: str) -> bytes | None:
        found = self._view.lookup(path)
        if path in self._hidden or not isinstance(found, Found) or found.data.sha256 is None:
            return None
        return self._known.get(found.data.sha256)


def python_tree(
    *layers: TreeLayer | Mapping[str, bytes] | None, hidden: frozenset[str] = frozenset()
) -> tuple[MergedView, TreeContents]:
    """The merged view of `layers` (the lowest first; None: not read) and the contents of their files."""
    made = [TreeLayer(dict(item)) if isinstance(item, Mapping) else item for item in layers]
    view = MergedView([None if item is None else item.facts() for item in made])
    return view, TreeContents(view, [item for item in made if item is not None], hidden)


def folder_layer(root: Path) -> TreeLayer:
    """A folder of this machine as one layer, times in whole seconds."""
    layer = TreeLayer()
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = Path(folder) / name
            where = str(path.relative_to(root))
            status = path.lstat()
            layer.mtimes[where] = int(status.st_mtime)
            if stat.S_ISLNK(status.st_mode):
                layer.links[where] = os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                layer.files[where + "/"] = b""
            elif stat.S_ISREG(status.st_mode):
                layer.files[where] = path.read_bytes()
    return layer
