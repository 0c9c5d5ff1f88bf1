"""Reading the base's layers: facts by digest, learned once and kept for ever, and the few files that are needed whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imagebuild.build.contents import Contents
from imagebuild.build.events import Emitter
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Entry, Kind, LayerFacts
from imagebuild.layer.facts_store import FactsStore
from imagebuild.layer.tar_reader import read_layer
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.source import ImageSource

CAPTURE_LIMIT = 16 << 20
"""Bytes of a file that is kept whole; larger ones are known by their digest only."""


def too_large(entry: Entry) -> RefusedError:
    """The refusal of a file that would have to be kept whole."""
    return RefusedError(
        "base.file-too-large",
        f"/{entry.path} is too large to be patched",
        expected=f"at most {CAPTURE_LIMIT} bytes",
        found=f"{entry.size} bytes",
    )


class BaseReader:
    """Reads layers of one source.

    `names` tells which files are needed whole (by path and size); they go to `contents`.  A layer whose facts are in
    the store is not read again, unless a needed file of it is in neither place.
    """

    def __init__(
        self,
        source: ImageSource,
        facts: FactsStore,
        contents: Contents,
        emitter: Emitter,
        names: Callable[[str, int], bool],
    ) -> None:
        self.source = source
        self.contents = contents
        self.emitter = emitter
        self.read_bytes = 0
        self._facts = facts
        self._names = names
        self._known: dict[Digest, LayerFacts] = {}

    def _needed(self, path: str, size: int) -> bool:
        return size <= CAPTURE_LIMIT and self._names(path, size)

    def _missing(self, facts: LayerFacts) -> bool:
        # Sizes only ever rule a file out, so the few entries whose names count are made and no others.
        entries = (facts.entries[path] for path in facts.entries if self._names(path, 0))
        return any(
            entry.sha256 is not None and self.contents.get(entry.sha256) is None
            for entry in entries
            if entry.kind is Kind.FILE and self._needed(entry.path, entry.size)
        )

    def layer(self, descriptor: Descriptor, number: int, count: int) -> LayerFacts:
        """The facts of layer `number` (from 1, the lowest) of `count`.

        Raises RefusedError for a stream that is not what its digest promises or that breaks a rule of layers,
        UnavailableError where it cannot be had.
        """
        known = self._known.get(descriptor.digest)
        if known is not None:
            return known
        facts = self._facts.load(descriptor.digest)
        if facts is None or self._missing(facts):
            facts = self._read(descriptor, number, count, self._needed)
        self._known[descriptor.digest] = facts
        return facts

    def _read(self, descriptor: Descriptor, number: int, count: int, needed: Callable[[str, int], bool]) -> LayerFacts:
        what = f"layer {number} of {count} ({descriptor.digest.short(12)})"
        advance = self.emitter.task(f"reading {what}", descriptor.size)
        stream = self.source.open_blob(descriptor, what)
        try:
            facts = read_layer(
                stream, descriptor, capture=needed, captured=lambda _, data: self._keep(data), progress=advance
            )
        finally:
            close = getattr(stream, "close", None)
            if close is not None:
                close()
        self.read_bytes += descriptor.size
        self._facts.store(facts)
        self.emitter.emit("layer.read", digest=str(descriptor.digest), size=descriptor.size, entries=len(facts.entries))
        return facts

    def read_for(self, descriptor: Descriptor, number: int, count: int, wanted: Mapping[Digest, str]) -> None:
        """Keeps the files with these digests, looked for at their paths first and then, where the layer holds one under
        another name (a hard link), there; what the layer does not hold is not there afterwards."""
        facts = self._facts.load(descriptor.digest)
        if facts is None:
            paths = set(wanted.values())
            facts = self._read(descriptor, number, count, lambda name, size: name in paths and size <= CAPTURE_LIMIT)
        missing = {digest for digest in wanted if self.contents.get(digest) is None}
        if missing:
            names = {entry.path for entry in facts.entries.values() if entry.sha256 in missing}
            if names:
                self._read(descriptor, number, count, lambda name, size: name in names and size <= CAPTURE_LIMIT)

    def _keep(self, data: bytes) -> None:
        self.contents.put(data)

    def file(self, entry: Entry, descriptor: Descriptor, number: int, count: int) -> bytes:
        """The bytes of one regular file of a layer, read again where they are not at hand.

        Raises RefusedError `base.file-too-large` for files over CAPTURE_LIMIT.
        """
        assert entry.sha256 is not None
        data = self.contents.get(entry.sha256)
        if data is None:
            if entry.size > CAPTURE_LIMIT:
                raise too_large(entry)
            self._read(descriptor, number, count, lambda path, _: path == entry.path)
            data = self.contents.get(entry.sha256)
        if data is None:
            raise AssertionError(f"/{entry.path} was read and is not there")
        return data


class ViewContents:
    """What the Python layout reader asks: bytes of a path of the merged view, as far as they were kept."""

    def __init__(self, view: Any, contents: Contents) -> None:
        self._view = view
        self._contents = contents

    def read(self, path: str) -> bytes | None:
        from imagebuild.layer.entry import Found

        found = self._view.lookup(path)
        if not isinstance(found, Found) or found.data.sha256 is None:
            return None
        return self._contents.get(found.data.sha256)


def suffix_names(relative_paths: Sequence[str], other: Callable[[str, int], bool]) -> Callable[[str, int], bool]:
    """A predicate that takes every path ending in one of `relative_paths` (whole components), and what `other` takes.

    Roots are found while layers are read, so the full path of a patched file is not known before its layer was; the end
    of it is.
    """
    by_name: Mapping[str, list[str]] = {}
    table: dict[str, list[str]] = {}
    for path in relative_paths:
        table.setdefault(path.rpartition("/")[2], []).append("/" + path)
    by_name = table

    def names(path: str, size: int) -> bool:
        endings = by_name.get(path.rpartition("/")[2])
        if endings is not None:
            rooted = "/" + path
            if any(rooted.endswith(ending) for ending in endings):
                return True
        return other(path, size)

    return names
