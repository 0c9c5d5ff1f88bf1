"""Laws of the merged view, against a model that unpacks layer by layer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Absent, Entry, Found, Kind, LayerFacts, Unknown
from imagebuild.layer.names import bytes_of
from imagebuild.layer.view import MergedView, is_implied
from imagebuild.testing import slow_view

NAMES = ["a", "b", "a-"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
TARGETS = st.one_of(PATHS, PATHS.map("/{}".format), PATHS.map("../{}".format), st.sampled_from(["..", ".", "/"]))


@st.composite
def layers(draw: st.DrawFn) -> LayerFacts:
    """A layer that the reader would accept: nothing stands below something that is no folder."""
    entries: dict[str, Entry] = {}
    for path in draw(st.lists(PATHS, max_size=7)):
        kind = draw(st.sampled_from([Kind.FILE, Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK, Kind.HARDLINK]))
        text = draw(st.sampled_from("xyz"))
        entry = {
            Kind.FILE: Entry(path, kind, 0o644, 0, 0, 1, len(text), Digest.of(text.encode())),
            Kind.DIRECTORY: Entry(path, kind, 0o700, 1, 1, 1),
            Kind.SYMLINK: Entry(path, kind, 0o777, 0, 0, 1, link=draw(TARGETS)),
            Kind.HARDLINK: Entry(path, kind, 0o644, 0, 0, 1, link=draw(PATHS)),
        }[kind]
        entries[path] = entry
    whiteouts = set(draw(st.lists(PATHS, max_size=2)))
    opaques = set(draw(st.lists(st.one_of(PATHS, st.just("")), max_size=1)))
    folders = set(opaques)
    for path in [*entries, *whiteouts]:
        parts = path.split("/")
        folders.update("/".join(parts[:n]) for n in range(1, len(parts)))
    for folder in folders:
        if folder in entries and entries[folder].kind is not Kind.DIRECTORY:
            del entries[folder]
    if draw(st.booleans()):
        entries[""] = Entry("", Kind.DIRECTORY, 0o755, 0, 0, 1)
    ordered = {path: entries[path] for path in sorted(entries, key=bytes_of)}
    digest = Digest.of(b"layer")
    return LayerFacts(digest, digest, 0, ordered, frozenset(whiteouts), frozenset(opaques))


STACKS = st.lists(layers(), min_size=1, max_size=4)
EVERY = sorted({"/".join(p) for p in [[], *[[a] for a in NAMES], *[[a, b] for a in NAMES for b in NAMES]]}) + [
    "/".join((a, b, c)) for a in NAMES for b in NAMES for c in NAMES
]


def shown(found: Found) -> tuple[Any, ...]:
    data = None if found.data.kind is Kind.HARDLINK else found.data
    return (found.entry.kind, None if is_implied(found.entry) else found.entry, data if data else None)


def expected(node: slow_view.SlowNode) -> tuple[Any, ...]:
    kind = Kind.DIRECTORY if node.entry is None else node.entry.kind
    return (kind, node.entry, node.data)


def agree(found: Found, node: slow_view.SlowNode) -> None:
    kind, entry, data = shown(found)
    wanted_kind, wanted_entry, wanted_data = expected(node)
    assert (kind, entry) == (wanted_kind, wanted_entry)
    if kind is not Kind.DIRECTORY:
        assert data == wanted_data
        assert found.layer == node.layer


@settings(max_examples=150, deadline=None)
@given(STACKS)
def test_lookup_agrees_with_unpacking(stack: list[LayerFacts]) -> None:
    tree = slow_view.flatten(slow_view.unpack(stack))
    view = MergedView(stack)
    for path in EVERY:
        found = view.lookup(path)
        if path in tree:
            assert isinstance(found, Found), path
            agree(found, tree[path])
        else:
            assert isinstance(found, Absent), path
        assert view.settled(path)


@settings(max_examples=80, deadline=None)
@given(STACKS)
def test_walk_and_children_agree_with_unpacking(stack: list[LayerFacts]) -> None:
    root = slow_view.unpack(stack)
    tree = slow_view.flatten(root)
    view = MergedView(stack)
    listed = view.walk()
    assert [path for path, _ in listed] == sorted(tree, key=bytes_of)
    for path, found in listed:
        agree(found, tree[path])
        names, complete = view.children(path)
        assert complete
        assert list(names) == sorted(tree[path].inside, key=bytes_of)
    for path in EVERY:
        below = [name for name, _ in view.walk(path)]
        assert below == [
            name for name in sorted(tree, key=bytes_of) if path in ("", name) or name.startswith(path + "/")
        ]


@settings(max_examples=100, deadline=None)
@given(STACKS, st.integers(1, 4))
def test_what_is_decided_without_lower_layers_stays_so(stack: list[LayerFacts], unread: int) -> None:
    assume(unread <= len(stack))
    whole = MergedView(stack)
    part = MergedView([None] * unread + stack[unread:])
    for path in EVERY:
        found = part.lookup(path)
        if isinstance(found, Found):
            full = whole.lookup(path)
            assert isinstance(full, Found)
            assert (full.entry, full.layer) == (found.entry, found.layer)
            if part.settled(path):
                assert full.data == found.data
        elif isinstance(found, Absent):
            assert isinstance(whole.lookup(path), Absent)
            assert found.settled_by is not None
            assert found.settled_by >= unread
        else:
            assert found == Unknown(unread)
            assert not part.settled(path)
        try:
            resolved = part.resolve(path)
        except RefusedError:
            with pytest.raises(RefusedError, match="symbolic links"):
                whole.resolve(path)
            continue
        if not isinstance(resolved, Unknown):
            assert whole.resolve(path) == resolved
        names, complete = part.children(path)
        every, _ = whole.children(path)
        assert set(names) <= set(every)
        if complete:
            assert set(names) == set(every)


@settings(max_examples=100, deadline=None)
@given(STACKS, PATHS, st.booleans())
def test_resolve_agrees_with_the_tree(stack: list[LayerFacts], path: str, last: bool) -> None:
    wanted = slow_view.resolve(slow_view.unpack(stack), path, last=last)
    view = MergedView(stack)
    if wanted is None:
        with pytest.raises(RefusedError) as caught:
            view.resolve(path, last=last)
        assert caught.value.code == "base.symlink-loop"
    else:
        assert view.resolve(path, last=last) == wanted


@settings(max_examples=100, deadline=None)
@given(STACKS)
def test_other_names_are_those_that_share_the_file(stack: list[LayerFacts]) -> None:
    tree = slow_view.flatten(slow_view.unpack(stack))
    view = MergedView(stack)
    for path, node in tree.items():
        if node.data is None or node.is_folder:
            continue
        same = [name for name, other in tree.items() if other.data is node.data and name != path]
        assert view.other_names(path) == sorted(same, key=bytes_of)
