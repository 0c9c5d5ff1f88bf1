"""Links of the base and whole folders under changes: what is followed, what is deleted, what is refused.

Reports retold here: opencontainers/umoci#254 (one topmost whiteout), opencontainers/umoci#572 (delete and add in one
overlay), GoogleContainerTools/kaniko#2308 (a folder replaced by a link), bazel-contrib/rules_oci#857 and
NixOS/nixpkgs#110696 (overlays below linked folders), moby/moby#41035, GoogleContainerTools/jib#1270,
opencontainers/image-spec#737.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.testing.images import File, Folder, HardLink, ImageSpec, Item, LayerSpec, Link, Special, make_image
from imagebuild.testing.small_engine import with_folders

TOP = {"app": {"path": "/r"}}


def below(item: Item) -> Item:
    """The item in the folder `r`, which is the overlay's root."""
    moved = replace(item, path=f"r/{item.path}")
    if isinstance(moved, HardLink):
        return replace(moved, target=f"r/{moved.target}")
    if isinstance(moved, Link) and moved.target.startswith("/"):
        return replace(moved, target=f"/r{moved.target}")
    return moved


@pytest.fixture
def changed(bench: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Locks the changes on a base of these layers, builds from the committed content, and gives the items by path."""

    def make(
        layers: list[list[Item]], changes: str, files: dict[str, bytes] | None = None, *, complete: bool = True
    ) -> dict[str, Any]:
        stack = tuple(LayerSpec((Folder("r"), *map(below, items))) for items in layers)
        b = bench(make_image(ImageSpec(stack)))
        b.space.write_target(roots=TOP, identity=None)
        b.space.write_overlay(changes=changes, files=files or {})
        lock = b.lock(complete=complete).lock
        for path in (b.space.cache / "content").rglob("*"):
            if path.is_file():
                path.unlink()
        image = b.build(lock, tmp_path / "out")
        assert image.top.descriptor.digest == lock.result.digest
        return {item.path.removeprefix("/r"): item for item in lock.inputs.platforms[0].changes}

    return make


FILES = {"files/x": b"new\n"}
ADD = "  - file: files/x\n    to: app/{}\n"


def test_a_folder_is_deleted_by_one_whiteout(changed: Any) -> None:
    items = changed([[*with_folders([File("t/x", b"1"), File("t/u/y", b"2")])]], "  - delete: {path: app/t}\n")
    assert {path: item.kind for path, item in items.items()} == {"/t": "whiteout"}


def test_a_folder_whose_files_are_in_lower_layers_is_deleted_without_reading_them_all(changed: Any) -> None:
    low = with_folders([File("t/x", b"1"), File("s/x", b"1")])
    items = changed([[*low], [Folder("t")], [Folder("s")]], "  - delete: {path: app/t}\n", complete=False)
    assert items["/t"].kind == "whiteout"


def test_deleting_and_adding_in_one_overlay(changed: Any) -> None:
    items = changed(
        [[*with_folders([File("d/old", b"1"), File("d/kept", b"1")])]],
        "  - delete: {path: app/d/old}\n" + ADD.format("d/new"),
        FILES,
    )
    assert {path: item.kind for path, item in items.items()} == {"/d/old": "whiteout", "/d/new": "file"}


def test_a_link_is_deleted_and_not_what_it_leads_to(changed: Any) -> None:
    base = [File("real", b"1"), Link("alias", "real"), Link("broken", "nowhere")]
    items = changed([base], "  - delete: {path: app/alias}\n  - delete: {path: app/broken}\n")
    assert set(items) == {"/alias", "/broken"}
    assert items["/alias"].preimage == Digest.of(b"real")


def test_links_that_a_glob_finds_are_deleted_themselves(changed: Any) -> None:
    base = [
        *with_folders([File("jit/module_a.so", b"1"), Link("jit/module_b.so", "module_a.so"), File("jit/x.py", b"")])
    ]
    items = changed([base], "  - delete: {glob: app/jit/module_*.so, count: 2}\n")
    assert set(items) == {"/jit/module_a.so", "/jit/module_b.so"}


def test_a_link_is_replaced_and_not_what_it_leads_to(changed: Any) -> None:
    base = [*with_folders([File("v1/x", b"1"), File("v2/x", b"2")]), Link("current", "v1")]
    items = changed([base], "  - symlink: {path: app/current, to: v2}\n")
    assert {path: (item.kind, item.link) for path, item in items.items()} == {"/current": ("symlink", "v2")}


def test_a_file_goes_to_where_a_link_leads(changed: Any) -> None:
    base = [
        *with_folders([File("usr/lib/libc.so", b"1"), Folder("usr/bin")]),
        Link("lib", "usr/lib"),
        Link("bin", "/usr/bin"),
    ]
    items = changed([base], ADD.format("lib/x") + ADD.format("bin/tool"), FILES)
    assert set(items) == {"/usr/lib/x", "/usr/bin/tool"}


def test_a_link_to_where_nobody_looked_is_looked_up(changed: Any) -> None:
    """The link is in the layer that was read, what it leads to in one that was not."""
    low = [*with_folders([File("store/real", b"old\n", 0o600)])]
    items = changed([low, [Link("alias", "store/real")]], ADD.format("alias"), FILES, complete=False)
    assert {path: item.mode for path, item in items.items()} == {"/store/real": 0o600}


def test_a_count_of_a_glob_asks_deeper_layers_before_it_is_refused(changed: Any) -> None:
    low, high = [*with_folders([File("jit/a.so", b"1")])], [*with_folders([File("jit/b.so", b"2")])]
    items = changed([low, high, [File("top")]], "  - delete: {glob: 'app/jit/*.so', count: 2}\n", complete=False)
    assert set(items) == {"/jit/a.so", "/jit/b.so"}


def test_folders_of_new_files_are_explicit_and_inherit_the_owner(changed: Any) -> None:
    items = changed([[Folder("srv", 0o755, 1000, 1000)]], ADD.format("srv/new/deep/f"), FILES)
    made = {path: (item.kind, item.mode, item.uid) for path, item in items.items() if path != "/srv"}
    assert made == {
        "/srv/new": ("directory", 0o755, 1000),
        "/srv/new/deep": ("directory", 0o755, 1000),
        "/srv/new/deep/f": ("file", 0o644, 1000),
    }


def test_folders_of_the_base_keep_mode_and_owner(changed: Any) -> None:
    base = [Folder("tmp", 0o1777), Folder("srv", 0o750, 1000, 1000)]
    items = changed([base], ADD.format("tmp/x") + ADD.format("srv/y"), FILES)
    for path, mode, uid in (("/tmp", 0o1777, 0), ("/srv", 0o750, 1000)):
        assert path not in items or (items[path].kind, items[path].mode, items[path].uid) == ("directory", mode, uid)


def test_a_replaced_file_keeps_mode_owner_and_attributes(changed: Any) -> None:
    capability = {"security.capability": bytes.fromhex("0100000200040000"), "security.selinux": b"label"}
    items = changed([[File("tool", b"old", 0o4750, 7, 8, xattrs=capability)]], ADD.format("tool"), FILES)
    (item,) = items.values()
    assert (item.mode, item.uid, item.gid) == (0o4750, 7, 8)
    assert set(item.xattrs) == {"security.capability"}


def test_one_name_of_a_hard_linked_file_is_replaced(changed: Any) -> None:
    items = changed([[File("a", b"old"), HardLink("b", "a")]], ADD.format("b"), FILES)
    assert {path: item.mode for path, item in items.items()} == {"/b": 0o644}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (ADD.format("a/x") + "  - edit: {path: app/b/x, find: old, replace: new}\n", "both lead to /r/a/x"),
        ("  - delete: {path: app/a}\n" + ADD.format("b/new"), "/r/a is deleted whole"),
    ],
)
def test_changes_that_links_lead_to_one_place_are_refused(changed: Any, changes: str, word: str) -> None:
    base = [*with_folders([File("a/x", b"old\n"), File("a/y", b"")]), Link("b", "a")]
    with pytest.raises(RefusedError) as caught:
        changed([base], changes, FILES)
    assert caught.value.code == "overlay.path-conflict"
    assert word in caught.value.message


@pytest.mark.parametrize("path", ["etc/service", "usr/local/bin"])
def test_types_that_conflict_are_refused(changed: Any, path: str) -> None:
    base = [*with_folders([File("usr/local/bin/tool", b"1"), File("etc/service", b"file")])]
    where = f"{path}/x" if path == "etc/service" else path
    with pytest.raises(RefusedError) as caught:
        changed([base], ADD.format(where), FILES)
    assert caught.value.code == "overlay.path-conflict"


@pytest.mark.parametrize("kind", ["device", "fifo"])
def test_what_is_no_file_is_not_replaced(changed: Any, kind: str) -> None:
    special = Special("odd", tarfile.CHRTYPE if kind == "device" else tarfile.FIFOTYPE)
    with pytest.raises(RefusedError) as caught:
        changed([[special]], ADD.format("odd"), FILES)
    assert caught.value.code == "base.not-a-file"


def test_a_loop_of_links_is_refused(changed: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        changed([[Link("a", "b"), Link("b", "a")]], ADD.format("a/x"), FILES)
    assert caught.value.code == "base.symlink-loop"
