"""The merged view, case by case; the laws over random stacks are in tests/property."""

from __future__ import annotations

import tarfile

import pytest
from view_stacks import Y, data_of, paths, view

from imagebuild.layer.entry import Absent, Found, Kind, Unknown
from imagebuild.layer.view import MergedView, is_implied
from imagebuild.testing.images import (
    File,
    Folder,
    HardLink,
    Item,
    Link,
    Opaque,
    Special,
    Whiteout,
)

# Whiteouts


def test_opaque_and_file_in_one_layer_shows_the_file_only() -> None:
    shown = view((File("d/a", b"x"),), (Opaque("d"), File("d/b", b"y")))
    assert paths(shown) == ["d", "d/b"]
    assert shown.lookup("d/a") == Absent(1)


@pytest.mark.parametrize("reverse", [False, True])
def test_opaque_hides_lower_layers_whatever_the_order_in_the_tar(reverse: bool) -> None:
    items: tuple[Item, ...] = (Opaque("d"), File("d/b", b"y"))
    assert paths(view((File("d/a", b"x"),), items[::-1] if reverse else items)) == ["d", "d/b"]


def test_a_whited_out_folder_that_comes_back_shows_the_new_content_only() -> None:
    shown = view((File("a/foo", b"x"),), (Whiteout("a"),), (File("a/baz", b"y"),))
    assert paths(shown) == ["a", "a/baz"]
    assert shown.lookup("a/foo") == Absent(1)


def test_a_whiteout_never_hides_its_own_layer() -> None:
    shown = view((File("d/x", b"x"),), (File("d/x", b"y"), Whiteout("d/x")))
    assert data_of(shown, "d/x") == Y


def test_a_whiteout_in_the_lowest_layer_hides_nothing() -> None:
    assert paths(view((Whiteout("d/x"), File("d/x", b"x")))) == ["d", "d/x"]
    assert view((Whiteout("x"),)).lookup("x") == Absent(0)


def test_an_opaque_root() -> None:
    shown = view((File("a", b"x"),), (Opaque(""), File("b", b"y")))
    assert paths(shown) == ["b"]
    assert shown.notes() == (("base.unportable", ""),)


def test_a_name_with_the_prefix_twice_hides_the_rest_only() -> None:
    shown = view((File("d/x", b"x"), File("d/z", b"z")), (File("d/.wh..wh..opqX", b""),))
    assert paths(shown) == ["d", "d/x", "d/z"]


# Types that change


def test_a_folder_replaced_by_a_link() -> None:
    shown = view((File("a/a", b"x"),), (Link("a", "b"),))
    assert paths(shown) == ["a"]
    assert shown.lookup("a/a") == Absent(1)


def test_a_file_replaced_by_a_folder() -> None:
    shown = view((File("a", b"x"),), (Folder("a", 0o700), File("a/y", b"y")))
    assert paths(shown) == ["a", "a/y"]


def test_a_folder_keeps_its_content_and_takes_the_upper_attributes() -> None:
    shown = view((Folder("d", 0o700), File("d/a", b"x")), (Folder("d", 0o711), File("d/b", b"y")))
    found = shown.lookup("d")
    assert isinstance(found, Found)
    assert (found.entry.mode, found.layer) == (0o711, 1)
    assert paths(shown) == ["d", "d/a", "d/b"]


def test_what_was_below_a_file_in_between_stays_hidden() -> None:
    shown = view((File("a/x", b"x"),), (File("a", b"f"),), (Folder("a"), File("a/y", b"y")))
    assert paths(shown) == ["a", "a/y"]
    assert shown.lookup("a/x") == Absent(1)


def test_a_device_or_fifo_is_no_folder() -> None:
    shown = view((File("a/x", b"x"),), (Special("a", tarfile.FIFOTYPE),))
    assert shown.lookup("a/x") == Absent(1)


# Implied folders


def test_an_implied_folder_is_found_and_told_apart() -> None:
    found = view((File("a/b/c", b"x"),)).lookup("a/b")
    assert isinstance(found, Found)
    assert is_implied(found.entry)
    assert (found.entry.kind, found.entry.mode) == (Kind.DIRECTORY, 0o755)
    explicit = view((Folder("a"),)).lookup("a")
    assert isinstance(explicit, Found)
    assert not is_implied(explicit.entry)


def test_an_implied_folder_takes_the_lower_entry() -> None:
    found = view((Folder("a", 0o700),), (File("a/x", b"x"),)).lookup("a")
    assert isinstance(found, Found)
    assert (found.entry.mode, found.layer) == (0o700, 0)


def test_an_implied_folder_over_a_link_becomes_a_folder_and_is_unportable() -> None:
    shown = view((File("t/x1", b"x"), Link("s", "t")), (File("s/x2", b"y"),))
    assert paths(shown) == ["s", "s/x2", "t", "t/x1"]
    found = shown.lookup("s")
    assert isinstance(found, Found)
    assert is_implied(found.entry)
    assert shown.notes() == (("base.unportable", "s"),)


@pytest.mark.parametrize(("mode", "uid"), [(0o1777, 0), (0o755, 1000)])
def test_an_implied_folder_over_one_with_other_attributes_is_unportable(mode: int, uid: int) -> None:
    assert view((Folder("tmp", mode, uid),), (File("tmp/x", b"x"),)).notes() == (("base.unportable", "tmp"),)
    assert view((Folder("tmp", mode, uid),), (Folder("tmp"), File("tmp/x", b"x"))).notes() == ()
    assert view((Folder("tmp"),), (File("tmp/x", b"x"),)).notes() == ()


def test_a_folder_that_only_whiteouts_ask_for_is_unportable() -> None:
    assert view((File("z", b"x"),), (Whiteout("d/x"),)).notes() == (("base.unportable", "d"),)
    assert view((File("d/x", b"x"),), (Whiteout("d/x"),)).notes() == ()


def test_an_implied_folder_in_an_opaque_one_is_unportable() -> None:
    assert view((File("d/a/x", b"x"),), (Folder("d"), File("d/a/y", b"y"), Opaque("d"))).notes() == (
        ("base.unportable", "d/a"),
    )
    assert view((File("d/a/x", b"x"),), (Folder("d"), Folder("d/a"), File("d/a/y", b"y"), Opaque("d"))).notes() == ()


@pytest.mark.parametrize("late", [True, False])
def test_a_folder_over_a_file_and_after_its_content_is_unportable(late: bool) -> None:
    items: tuple[Item, ...] = (Folder("s"), File("s/x", b"y"))
    notes = view((File("s", b"x"),), items[::-1] if late else items).notes()
    assert notes == ((("base.unportable", "s"),) if late else ())


def test_a_hard_link_with_another_owner_than_its_target_is_unportable() -> None:
    assert view((File("f", b"x", uid=7), HardLink("h", "f"))).notes() == (("base.unportable", "h"),)


# Layers that were not read


def test_below_the_read_layers_nothing_is_known() -> None:
    shown = view(None, (Folder("a"), File("a/x", b"x"), Whiteout("gone"), Opaque("o"), Folder("o"), Link("l", "a")))
    assert isinstance(shown.lookup("a/x"), Found)
    assert shown.lookup("a/y") == Unknown(1)
    assert shown.lookup("b") == Unknown(1)
    assert shown.lookup("") == Unknown(1)
    assert shown.lookup("gone/deep") == Absent(1)
    assert shown.lookup("o/any") == Absent(1)
    assert shown.lookup("l/x") == Absent(1)
    assert shown.lookup("a/x/below") == Absent(1)


def test_an_unread_layer_hides_what_was_read_below_it() -> None:
    shown = view((File("a", b"x"),), None, (File("b", b"y"),))
    assert shown.lookup("a") == Unknown(2)
    assert isinstance(shown.lookup("b"), Found)


def test_an_explicit_entry_settles_a_path_only_below_settled_folders() -> None:
    implied = view(None, (File("s/x", b"x"),))
    assert isinstance(implied.lookup("s/x"), Found)
    assert not implied.settled("s/x")
    assert implied.resolve("s/x") == Unknown(1)
    explicit = view(None, (Folder("s"), File("s/x", b"x")))
    assert explicit.settled("s/x")
    assert explicit.resolve("s/x") == "s/x"
    assert not explicit.settled("s/y")
    assert view((Folder("q"),), (File("s/x", b"x"),)).settled("s/x")


def test_whiteouts_and_opaque_markers_settle_a_path() -> None:
    shown = view(None, (Folder("d"), Whiteout("d/x"), Opaque("d/o"), Folder("d/o"), File("i/.wh.x", b"")))
    assert shown.settled("d/x")
    assert shown.settled("d/x/below")
    assert shown.settled("d/o/any")
    assert not shown.settled("d/y")
    assert not shown.settled("i/x")


def test_the_root_needs_no_entry_to_settle() -> None:
    assert view(None, (File("x", b"x"),)).settled("x")


def test_a_folder_s_list_is_complete_only_when_nothing_below_can_add_to_it() -> None:
    shown = view(None, (Folder("d"), File("d/x", b"x"), Folder("o"), Opaque("o"), File("o/y", b"y")))
    names, complete = shown.children("d")
    assert (list(names), complete) == (["x"], False)
    names, complete = shown.children("o")
    assert (list(names), complete) == (["y"], True)
    assert shown.children("nowhere") == ({}, False)
    assert shown.children("d/x") == ({}, True)


def test_named_lists_every_entry_below_a_folder_and_nothing_beside_it() -> None:
    lower = (File("d/a", b"x"), File("d-/b", b"x"), File("d/s/x", b"x"), File("d0", b"x"), File("e", b"x"))
    shown = view(lower, None, (Folder("d/s"), Whiteout("d/a"), File("d/é", b"y")))
    assert shown.named("d") == ["d/s", "d/é"]
    shown = view(lower, (Folder("d/s"), Whiteout("d/a"), File("d/é", b"y")))
    assert shown.named("d") == ["d/a", "d/s", "d/s/x", "d/é"]
    assert shown.named("d/s/x") == []
    assert set(shown.named("")) >= {path for path, found in shown.walk() if path and found.entry.kind is Kind.FILE}


# Paths that are hard on implementations


def test_very_deep_paths_need_no_recursion() -> None:
    deep = "/".join("d" * 1 for _ in range(2000))
    shown = view((File(deep, b"x"),))
    assert isinstance(shown.lookup(deep), Found)
    assert len(shown.walk()) == 2001
    assert shown.resolve(deep) == deep


def test_a_view_of_no_layers_is_empty() -> None:
    shown = MergedView([])
    assert shown.lookup("a") == Absent(None)
    assert shown.walk() == []
