"""Symbolic and hard links in the merged view."""

from __future__ import annotations

import pytest
from view_stacks import X, Y, data_of, view

from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Found, Kind
from imagebuild.testing.images import (
    File,
    Folder,
    HardLink,
    Item,
    Link,
    Whiteout,
)

# Links


BASE: tuple[Item, ...] = (
    Folder("usr"),
    Folder("usr/lib"),
    File("usr/lib/libc.so", b"x"),
    Folder("usr/bin"),
    Link("lib", "usr/lib"),
    Link("bin", "usr/bin"),
    Link("lib64", "/usr/lib64"),
    Folder("usr/lib64"),
    Folder("run"),
    Folder("var"),
    Link("var/run", "../run"),
    Link("etc-link", "./etc/."),
    Folder("etc"),
)


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("lib/x", "usr/lib/x"),
        ("bin/tool", "usr/bin/tool"),
        ("lib64/ld.so", "usr/lib64/ld.so"),
        ("var/run/x", "run/x"),
        ("etc-link/x", "etc/x"),
        ("lib/../bin/y", "usr/bin/y"),
        ("new/deep/f", "new/deep/f"),
        ("usr/lib/libc.so/odd", "usr/lib/libc.so/odd"),
        ("../../x", "x"),
        ("", ""),
    ],
)
def test_links_are_followed_on_every_component(path: str, resolved: str) -> None:
    assert view(BASE).resolve(path) == resolved


def test_the_last_component_is_followed_where_asked() -> None:
    shown = view(BASE)
    assert shown.resolve("lib") == "usr/lib"
    assert shown.resolve("lib", last=False) == "lib"
    assert shown.resolve("lib/libc.so", last=False) == "usr/lib/libc.so"


def test_a_service_folder_that_is_a_link_is_resolved() -> None:
    shown = view((Folder("etc"), Link("etc/service", "/run/s"), Folder("run"), Folder("run/s")))
    assert shown.resolve("etc/service/x") == "run/s/x"


def test_links_and_the_root_entry_are_kept() -> None:
    shown = view((Folder("./"), Link("lib64", "/usr/lib64"), Folder("var"), Link("var/run", "../run")))
    assert [(path, found.entry.link) for path, found in shown.walk()] == [
        ("", ""),
        ("lib64", "/usr/lib64"),
        ("var", ""),
        ("var/run", "../run"),
    ]


@pytest.mark.parametrize("items", [(Link("a", "a"),), (Link("a", "b"), Link("b", "/a")), (Link("a", "a/x"),)])
def test_loops_are_refused(items: tuple[Item, ...]) -> None:
    with pytest.raises(RefusedError) as caught:
        view(items).resolve("a/x")
    assert caught.value.code == "base.symlink-loop"


@pytest.mark.parametrize(("count", "fine"), [(40, True), (41, False)])
def test_at_most_forty_links_are_followed(count: int, fine: bool) -> None:
    shown = view((*(Link(f"l{n}", f"l{n + 1}") for n in range(count)), File(f"l{count}", b"x")))
    if fine:
        assert shown.resolve("l0") == f"l{count}"
    else:
        with pytest.raises(RefusedError):
            shown.resolve("l0")


# Hard links


def test_a_hard_link_shows_the_data_as_of_its_layer() -> None:
    shown = view((File("a", b"x"), HardLink("b", "a")), (File("a", b"y"),))
    assert (data_of(shown, "a"), data_of(shown, "b")) == (Y, X)
    assert shown.other_names("b") == []
    assert shown.notes() == ()


def test_a_hard_link_to_a_lower_layer_is_unportable_and_read_as_of_its_layer() -> None:
    shown = view((File("a", b"x"),), (HardLink("b", "a"),), (File("a", b"y"),))
    assert data_of(shown, "b") == X
    assert shown.notes() == (("base.unportable", "b"),)


def test_a_hard_link_through_a_linked_folder_and_other_links() -> None:
    shown = view(
        (
            Link("l", "d"),
            File("d/f", b"x"),
            HardLink("h", "l/f"),
            HardLink("i", "h"),
            Link("s", "d"),
            HardLink("t", "s"),
        )
    )
    assert data_of(shown, "h") == X
    assert data_of(shown, "i") == X
    found = shown.lookup("t")
    assert isinstance(found, Found)
    assert (found.data.kind, found.data.link) == (Kind.SYMLINK, "d")
    assert shown.resolve("t/f") == "d/f"


@pytest.mark.parametrize(
    "layers",
    [
        ((HardLink("h", "nowhere"),),),
        ((Folder("d"), HardLink("h", "d")),),
        ((File("f", b"x"),), (Whiteout("f"), HardLink("h", "f"))),
        ((Link("l", "l"), HardLink("h", "l/x")),),
    ],
)
def test_a_hard_link_without_data_has_no_digest(layers: tuple[tuple[Item, ...], ...]) -> None:
    shown = view(*layers)
    found = shown.lookup("h")
    assert isinstance(found, Found)
    assert (found.data.kind, found.data.sha256) == (Kind.HARDLINK, None)
    assert ("base.unportable", "h") in shown.notes()
    assert shown.settled("h")


def test_a_hard_link_into_an_unread_layer_is_not_settled() -> None:
    shown = view(None, (HardLink("h", "a"), Folder("d"), HardLink("d/h", "d/x")))
    assert not shown.settled("h")
    assert not shown.settled("d/h")
    assert view(None, (File("a", b"x"), HardLink("h", "a"))).settled("h")


def test_a_file_linked_under_other_names_is_reported() -> None:
    shown = view(
        (File("a", b"x"), HardLink("b", "a"), HardLink("c", "b"), HardLink("d", "a"), File("e", b"x")), (Whiteout("d"),)
    )
    assert shown.other_names("a") == ["b", "c"]
    assert shown.other_names("c") == ["a", "b"]
    assert shown.other_names("e") == []
    assert shown.other_names("nowhere") == []


def test_a_long_chain_of_links_ends() -> None:
    items = [File("h0", b"x"), *(HardLink(f"h{n}", f"h{n - 1}") for n in range(1, 60))]
    shown = view(tuple(items))
    assert data_of(shown, "h30") == X
    assert data_of(shown, "h59") is None
