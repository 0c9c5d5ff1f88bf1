"""The merged view of a stack of layers, the lower ones perhaps unread (images.md, Reading the base, 1 to 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Absent, Entry, Found, Kind, LayerFacts, Lookup, Unknown
from imagebuild.layer.layer_index import LayerIndex
from imagebuild.layer.names import bytes_of, parents
from imagebuild.layer.table import hard_links

LINK_LIMIT = 40
"""Symbolic links followed for one path at most, as in Linux."""
_IMPLIED = -1


def is_implied(entry: Entry) -> bool:
    """Whether the entry stands for a folder that no layer has an entry for, only things below it: engines make such a
    folder with mode 0755, owner 0:0 and the time of unpacking."""
    return entry.kind is Kind.DIRECTORY and entry.offset == _IMPLIED


def _implied(path: str) -> Entry:
    return Entry(path, Kind.DIRECTORY, 0o755, 0, 0, 0, offset=_IMPLIED)


@dataclass(frozen=True, slots=True)
class _Node:
    """A path as far as the read layers say.

    `entry` with its `layer`, or None; `implied` the highest layer that makes a folder of it without an entry, or -1;
    `active` the layers, highest first, whose things below the path can be seen; `closed_by` the layer below which
    nothing can be seen below the path, None where only the end of the stack ends it; `unread` the lowest layer read
    where unread ones could add something below the path, else None; `answer` is None for Found.
    """

    entry: Entry | None
    layer: int
    implied: int
    active: tuple[int, ...]
    closed_by: int | None
    unread: int | None
    answer: Absent | Unknown | None

    @property
    def is_folder(self) -> bool:
        return self.implied >= 0 or (self.entry is not None and self.entry.kind is Kind.DIRECTORY)

    def shown(self, path: str) -> tuple[Entry, int] | None:
        """Entry and layer to list the path by: its own, or an implied folder's; None where there is nothing."""
        if self.entry is not None:
            return self.entry, self.layer
        return (_implied(path), self.implied) if self.implied >= 0 else None


class MergedView:
    """Implements `View` over `layers`, index 0 the lowest; None stands for a layer that was not read, and hides
    whatever lies below it.  Lookups go down the folders of one path and keep only those; nothing is unpacked."""

    def __init__(self, layers: Sequence[LayerFacts | None]) -> None:
        self._setup([None if facts is None else LayerIndex(facts) for facts in layers], set())

    def _setup(self, layers: list[LayerIndex | None], busy: set[tuple[int, str]]) -> None:
        self._layers = layers
        self._busy = busy
        bottom = 0
        read: dict[int, LayerIndex] = {}
        for number in range(len(layers) - 1, -1, -1):
            index = layers[number]
            if index is None:
                bottom = number + 1
                break
            read[number] = index
        self._read = read
        self._folders: dict[str, _Node] = {}
        self._views: dict[int, MergedView] = {}
        self._groups: dict[tuple[int, str], list[tuple[int, str]]] | None = None
        start = _Node(None, -1, 0, tuple(read), None, bottom or None, None)
        self._root = self._step(start, "")

    # Lookup

    def lookup(self, path: str) -> Lookup:
        """The path itself, no link followed on any component (a parent that is a link makes it Absent).

        For a hard link, `data` is what it shows as of its layer; where that cannot be found (a broken link, or a target
        in an unread layer) `data` is the link's own entry, of kind HARDLINK and without a digest.
        """
        node = self._node(path)
        if node.answer is not None:
            return node.answer
        shown = node.shown(path)
        assert shown is not None
        return self._found(*shown)

    def settled(self, path: str) -> bool:
        """Whether layers that were not read cannot change what is known of `path`: it is decided, as is each folder
        above it (the root, which is always a folder, apart), and so are the data of a hard link (images.md, Reading 2).
        A folder that is only implied by what lies below it does not count while lower layers are unread: one of them
        might hold a link there."""
        at = path.find("/")
        while at >= 0:
            node = self._node(path[:at])
            if isinstance(node.answer, Unknown):
                return False
            if node.answer is not None:
                return True
            at = path.find("/", at + 1)
        found = self.lookup(path)
        if isinstance(found, Found):
            return found.data.kind is not Kind.HARDLINK or len(self._read) == len(self._layers)
        return isinstance(found, Absent)

    def _found(self, entry: Entry, layer: int) -> Found:
        data = self._data(entry, layer)
        return Found(entry, layer, entry if data is None else data[1])

    def origin(self, found: Found) -> tuple[int, Entry] | None:
        """Layer and entry of the data that a path of this view shows, for itself or for another name; None for a hard link
        whose data cannot be found.  Paths of one origin are names of one file."""
        return self._data(found.entry, found.layer)

    def _node(self, path: str) -> _Node:
        node = self._folders.get(path)
        if node is not None:
            return node
        node = self._root
        at = path.find("/") if path else -2
        while at != -2:
            part = path if at < 0 else path[:at]
            known = self._folders.get(part)
            if known is None:
                known = self._step(node, part)
                if known.is_folder:
                    self._folders[part] = known
            node = known
            at = -2 if at < 0 else path.find("/", at + 1)
        return node

    def _step(self, parent: _Node, path: str) -> _Node:
        """A path in a folder whose node is known."""
        if not parent.is_folder:
            reached = Absent(parent.layer) if parent.answer is None else parent.answer
            return _Node(None, -1, -1, (), parent.closed_by, None, reached)
        entry: Entry | None = None
        layer = implied = -1
        active = []
        closed_by = parent.closed_by
        closed = ended = False
        for number in parent.active:
            index = self._read[number]
            own = index.entries.get(path)
            here = own is not None or index.implies(path)
            if own is not None and own.kind is not Kind.DIRECTORY:
                if entry is None and implied < 0:
                    return _Node(own, number, -1, (), number, None, None)
                closed_by, ended = (closed_by if closed else number), True
                break
            if own is not None:
                if entry is None:
                    entry, layer = own, number
            elif here and implied < 0:
                implied = number
            if here and not closed:
                active.append(number)
            if path in index.whiteouts:
                closed_by, ended = (closed_by if closed else number), True
                break
            if path in index.opaques and not closed:
                closed, closed_by = True, number
        below = None if ended else parent.unread
        answer: Absent | Unknown | None = None
        if entry is None and (implied < 0 or below is not None):
            answer = Absent(closed_by) if below is None else Unknown(below)
        return _Node(entry, layer, implied, tuple(active), closed_by, None if closed else below, answer)

    # Links

    def resolve(self, path: str, *, last: bool = True) -> str | Unknown:
        """The path with links followed on every component (on the last one only with `last`), at most LINK_LIMIT.

        Components that do not exist are kept as written; `..` takes back one component, at the root none.  Unknown where
        a component could be a link in an unread layer.  Raises RefusedError `base.symlink-loop`.
        """
        resolved = self._resolve(path, last)
        if resolved is None:
            raise RefusedError(
                "base.symlink-loop",
                f"{path!r} leads through more than {LINK_LIMIT} symbolic links",
                details={"path": path},
            )
        return resolved

    def _resolve(self, path: str, last: bool) -> str | Unknown | None:
        done: list[str] = []
        ahead = _components(path)
        followed = 0
        while ahead:
            part = ahead.pop()
            if part == "..":
                del done[-1:]
                continue
            done.append(part)
            if not ahead and not last:
                break
            name = "/".join(done)
            node = self._node(name)
            if isinstance(node.answer, Unknown):
                return node.answer
            if node.entry is None or node.entry.kind not in (Kind.SYMLINK, Kind.HARDLINK):
                continue
            data = self._found(node.entry, node.layer).data
            if data.kind is Kind.HARDLINK and len(self._read) < len(self._layers):
                return Unknown(len(self._layers) - len(self._read))
            if data.kind is not Kind.SYMLINK:
                continue
            followed += 1
            if followed > LINK_LIMIT:
                return None
            done = [] if data.link.startswith("/") else done[:-1]
            ahead += _components(data.link)
        return "/".join(done)

    def _upto(self, layer: int) -> MergedView:
        """The view of the stack that ends with `layer`."""
        if layer == len(self._layers) - 1:
            return self
        view = self._views.get(layer)
        if view is None:
            view = MergedView.__new__(MergedView)
            view._setup(self._layers[: layer + 1], self._busy)
            self._views[layer] = view
        return view

    def _data(self, entry: Entry, layer: int) -> tuple[int, Entry] | None:
        """Layer and entry of the data that an entry shows; None for a hard link whose data cannot be found: a broken
        one, one that leads to itself, or through more than LINK_LIMIT others."""
        entered = []
        try:
            while entry.kind is Kind.HARDLINK:
                key = (layer, entry.path)
                if key in self._busy or len(self._busy) > LINK_LIMIT:
                    return None
                # Also seen by what `resolve` asks below: a folder of the target may be a hard link to a symbolic one.
                self._busy.add(key)
                entered.append(key)
                view = self._upto(layer)
                target = view._resolve(entry.link, False) if "/" in entry.link else entry.link
                if not isinstance(target, str):
                    return None
                node = view._node(target)
                if node.entry is None or node.entry.kind is Kind.DIRECTORY:
                    return None
                entry, layer = node.entry, node.layer
            return layer, entry
        finally:
            self._busy.difference_update(entered)

    def other_names(self, path: str) -> list[str]:
        """The other names under which the file at `path` can be seen (hard links, images.md, Reading 3), in path
        order: replacing one name leaves the others with the old data."""
        node = self._node(path)
        if node.entry is None or node.answer is not None:
            return []
        own = self._data(node.entry, node.layer)
        if own is None:
            return []
        key = (own[0], own[1].path)
        out = []
        for layer, name in [*self._link_groups().get(key, []), key]:
            other = self._node(name)
            if name != path and other.entry is not None and other.layer == layer:
                out.append(name)
        return sorted(out, key=bytes_of)

    def _link_groups(self) -> dict[tuple[int, str], list[tuple[int, str]]]:
        """Hard links by the file (layer and path) whose data they show."""
        if self._groups is None:
            self._groups = {}
            for layer, index in self._read.items():
                for name in hard_links(index.entries):
                    data = self._data(index.entries[name], layer)
                    if data is not None:
                        self._groups.setdefault((data[0], data[1].path), []).append((layer, name))
        return self._groups

    # Lists

    def children(self, path: str) -> tuple[dict[str, Found], bool]:
        """Names and nodes of a folder as far as read, by bytes, and whether that list is complete.  A folder that is
        only implied stands among them though its own entry may lie in an unread layer (`is_implied`)."""
        node = self._node(path)
        if not node.is_folder:
            return {}, not isinstance(node.answer, Unknown)
        out = {}
        for name, child in self._inside(node, path):
            shown = child.shown(name)
            if shown is not None:
                out[name.rpartition("/")[2]] = self._found(*shown)
        return out, node.unread is None

    def _inside(self, node: _Node, path: str) -> Iterator[tuple[str, _Node]]:
        names: set[str] = set()
        for number in node.active:
            names.update(self._read[number].names(path))
        for name in sorted(names, key=bytes_of):
            full = f"{path}/{name}" if path else name
            yield full, self._step(node, full)

    def named(self, path: str) -> list[str]:
        """The paths below a folder that entries of read layers name, hidden ones too, in path order: cheap, for callers
        that look up the few whose names they want."""
        return sorted({name for index in self._read.values() for name in index.below(path)}, key=bytes_of)

    def walk(self, path: str = "") -> list[tuple[str, Found]]:
        """Every path at and below `path` that read layers show, in path order (by bytes), as in `children`."""
        out = []
        waiting = [(path, self._node(path))]
        while waiting:
            name, node = waiting.pop()
            shown = node.shown(name)
            if shown is None:
                continue
            out.append((name, self._found(*shown)))
            if node.is_folder:
                waiting.extend(self._inside(node, name))
        out.sort(key=lambda item: bytes_of(item[0]))
        return out

    def notes(self) -> tuple[tuple[str, str], ...]:
        """The notes of every read layer, and what only several layers together show.  Sorted, each once.

        `base.unportable` stands for what docker, podman (overlay and vfs) and umoci were seen to unpack differently, or
        not at all:
        * a hard link whose target is only in a lower layer (or nowhere), or has another mode or owner than the link's own
          header (docker and podman apply the header to the file, umoci does not);
        * a folder that a layer only implies over a lower path of another type, over a lower folder that is not 0755 and
          root's (overlay drivers make a new one), or in an opaque folder (some delete it when the marker comes later);
        * a folder that replaces something else and comes after what is in it;
        * a folder that nothing but whiteouts ask for;
        * an opaque root (overlay drivers ignore it).
        """
        out: set[tuple[str, str]] = set()
        for layer, index in self._read.items():
            out.update(index.facts.notes)
            for name in hard_links(index.entries):
                entry = index.entries[name]
                data = self._data(entry, layer)
                if data is None or data[0] != layer or _attributes(entry) != _attributes(data[1]):
                    out.add(("base.unportable", name))
            if layer > 0 and "" in index.opaques:
                out.add(("base.unportable", ""))
            if layer == 0 or layer - 1 in self._read:
                below = self._upto(layer - 1)
                for folder in index.fold():
                    if folder and _differs(below._node(folder), index, folder):
                        out.add(("base.unportable", folder))
        return tuple(sorted(out))


def _attributes(entry: Entry) -> tuple[int, int, int]:
    return entry.mode, entry.uid, entry.gid


def _differs(lower: _Node, index: LayerIndex, folder: str) -> bool:
    """Whether engines make different things of a folder with something in it; `lower` is what is below it."""
    if isinstance(lower.answer, Unknown):
        return False
    over_other = lower.entry is not None and lower.entry.kind is not Kind.DIRECTORY
    if folder in index.entries:
        return over_other and index.comes_before(folder)
    if any(above in index.opaques for above in parents(folder)):
        return True
    if lower.entry is not None:
        plain = _attributes(lower.entry) == (0o755, 0, 0) and not lower.entry.xattrs
        return over_other or not plain
    return not lower.is_folder and not index.holds(folder)


def _components(path: str) -> list[str]:
    """Components from the last to the first, without empty ones and `.`."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
