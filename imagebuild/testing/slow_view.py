"""The merged view done the slow and obvious way: a tree of dicts, one layer unpacked onto it after the other.

A model for tests of the real view: nothing here is lazy, nothing is shared, every rule stands where it acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from imagebuild.layer.entry import Entry, Kind, LayerFacts


@dataclass(slots=True)
class SlowNode:
    """A path in the tree: its entry (None for a folder that nothing but its content asks for), the layer that the
    entry came from, the entry whose data it shows (None for a broken hard link), and what is in it."""

    entry: Entry | None
    layer: int
    data: Entry | None
    inside: dict[str, SlowNode] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return self.entry is None or self.entry.kind is Kind.DIRECTORY


def unpack(layers: Sequence[LayerFacts]) -> SlowNode:
    """The tree after all layers, the lowest first."""
    root = SlowNode(None, 0, None)
    for number, facts in enumerate(layers):
        _remove(root, facts)
        _add(root, facts, number)
    return root


def flatten(node: SlowNode, path: str = "") -> dict[str, SlowNode]:
    """All paths at and below a node."""
    out = {path: node}
    for name, child in node.inside.items():
        out.update(flatten(child, f"{path}/{name}" if path else name))
    return out


def _remove(root: SlowNode, facts: LayerFacts) -> None:
    for path in facts.whiteouts:
        folder, _, name = path.rpartition("/")
        node = find(root, folder)
        if node is not None:
            node.inside.pop(name, None)
    for path in facts.opaques:
        node = find(root, path)
        if node is not None:
            node.inside.clear()


def _add(root: SlowNode, facts: LayerFacts, number: int) -> None:
    markers = [path.rpartition("/")[0] for path in facts.whiteouts] + list(facts.opaques)
    for folder in markers:
        _folder(root, folder, number)
    links = []
    for path in sorted(facts.entries):
        entry = facts.entries[path]
        if path == "":
            root.entry, root.layer = entry, number
            continue
        folder, _, name = path.rpartition("/")
        parent = _folder(root, folder, number)
        old = parent.inside.get(name)
        node = SlowNode(entry, number, entry)
        if entry.kind is Kind.DIRECTORY and old is not None and old.is_folder:
            node.inside = old.inside
        parent.inside[name] = node
        if entry.kind is Kind.HARDLINK:
            node.data = None
            links.append(node)
    # Links to links need as many rounds as they are long.
    for _ in range(len(links)):
        for node in links:
            assert node.entry is not None
            target = _follow(root, node.entry.link)
            if target is not None and not target.is_folder:
                node.data = target.data


def _folder(root: SlowNode, path: str, number: int) -> SlowNode:
    """The folder at `path`, made where there is none (and in place of anything else)."""
    node = root
    for name in path.split("/") if path else []:
        child = node.inside.get(name)
        if child is None or not child.is_folder:
            child = node.inside[name] = SlowNode(None, number, None)
        node = child
    return node


def find(root: SlowNode, path: str) -> SlowNode | None:
    """The node at a path, no link followed."""
    node: SlowNode | None = root
    for name in path.split("/") if path else []:
        if node is None or not node.is_folder:
            return None
        node = node.inside.get(name)
    return node


def _follow(root: SlowNode, path: str) -> SlowNode | None:
    """The node at a path, links followed on every component but the last."""
    resolved = resolve(root, path, last=False)
    return None if resolved is None else find(root, resolved)


def resolve(root: SlowNode, path: str, *, last: bool, depth: int = 0) -> str | None:
    """The path without links; None for a loop."""
    done = ""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for number, part in enumerate(parts):
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        here = f"{done}/{part}" if done else part
        node = find(root, here)
        link = node.data if node is not None and node.data is not None else None
        if link is None or link.kind is not Kind.SYMLINK or (number == len(parts) - 1 and not last):
            done = here
            continue
        if depth > 200:
            return None
        start = "" if link.link.startswith("/") else done
        rest = "/".join(parts[number + 1 :])
        return resolve(root, "/".join(x for x in (start, link.link, rest) if x), last=last, depth=depth + 1)
    return done
