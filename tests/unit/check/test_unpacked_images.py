"""Unpacking an image: the folder is the merged view, and nothing a layer says gets out of it."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuild.check.runner import CheckedImage
from imagebuild.check.runners import unpack
from imagebuild.check.runners.loading import child_of
from imagebuild.check.runners.rootfs import Rootfs
from imagebuild.check.runners.unpack import layer_facts, unpack_image
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.layer.entry import Kind
from imagebuild.layer.facts_store import FactsStore
from imagebuild.layer.view import MergedView, is_implied
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.platform import Platform
from imagebuild.testing.images import (
    File,
    Folder,
    HardLink,
    ImageSpec,
    Item,
    LayerSpec,
    Link,
    MadeImage,
    Opaque,
    Special,
    Whiteout,
    make_image,
)
from imagebuild.testing.memory import MemorySource
from imagebuild.testing.raw_tar import END, member, padded, pax

AMD64 = Platform("linux", "amd64")
ROOT = os.geteuid() == 0


def image_of(*layers: LayerSpec, **more: Any) -> CheckedImage:
    made = make_image(ImageSpec(layers, **more))
    return CheckedImage("test", made.digest, AMD64, MemorySource(made))


def test_every_kind_of_entry_comes_out(tmp_path: Path) -> None:
    lower = (
        Folder("d", 0o750, mtime=1000),
        File("d/f", b"one" * 1000, 0o640, mtime=2000, xattrs={"user.note": b"kept"}),
        HardLink("d/g", "d/f"),
        Link("d/l", "../../../etc/passwd", mtime=3000),
        File("gone", b"x"),
        Folder("closed"),
        File("closed/hidden", b"x"),
        File("empty", b""),
        Special("pipe", tarfile.FIFOTYPE),
        Special("null", tarfile.CHRTYPE, (1, 3)),
    )
    upper = (
        Whiteout("gone"),
        Opaque("closed"),
        File("closed/shown", b"y"),
        File("implied/below", b"z"),
        File("d/f", b"two"),
    )
    found = unpack_image(image_of(LayerSpec(lower), LayerSpec(upper, compression="zstd")), tmp_path / "root")
    root = tmp_path / "root"
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    assert names == ["closed", "closed/shown", "d", "d/f", "d/g", "d/l", "empty", "implied", "implied/below", "pipe"]
    assert found.left_out == ("null",)
    assert found.size == 3000 + 3 + 1 + 1
    assert (root / "d/f").read_bytes() == b"two"
    assert (root / "d/g").read_bytes() == b"one" * 1000
    assert os.readlink(root / "d/l") == "../../../etc/passwd"
    assert os.lstat(root / "d/l").st_mtime == 3000
    assert (root / "d").stat().st_mtime == 1000
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o750
    assert stat.S_IMODE((root / "d/g").stat().st_mode) == 0o640
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    assert stat.S_IMODE((root / "implied").stat().st_mode) == 0o755


def test_names_of_one_file_are_one_file_also_over_layers(tmp_path: Path) -> None:
    lower = LayerSpec((File("a", b"data", 0o600), HardLink("b", "a")))
    upper = LayerSpec((HardLink("c", "b"),))
    unpack_image(image_of(lower, upper), tmp_path / "root")
    at = {os.stat(tmp_path / "root" / name).st_ino for name in "abc"}
    assert len(at) == 1


def test_a_sparse_file_comes_out_whole(tmp_path: Path) -> None:
    raw = (
        member(b"first", b"1" * 700)
        + pax(
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.realsize", b"900"),
            (b"GNU.sparse.name", b"s"),
        )
        + member(b"GNUSparse/s", padded(b"1\n800\n100\n") + b"z" * 100)
        + member(b"last", b"2" * 700)
        + END
    )
    unpack_image(image_of(LayerSpec(raw=raw)), tmp_path / "root")
    assert (tmp_path / "root/s").read_bytes() == bytes(800) + b"z" * 100
    assert (tmp_path / "root/first").read_bytes() == b"1" * 700
    assert (tmp_path / "root/last").read_bytes() == b"2" * 700


@pytest.mark.skipif(not ROOT, reason="needs root")
def test_owners_and_set_id_bits_are_kept_for_root_only(tmp_path: Path) -> None:
    image = image_of(LayerSpec((File("s", b"x", 0o6755, uid=7, gid=8), Folder("t", 0o1777, uid=9))))
    unpack_image(image, tmp_path / "kept")
    at = (tmp_path / "kept/s").stat()
    assert (stat.S_IMODE(at.st_mode), at.st_uid, at.st_gid) == (0o6755, 7, 8)
    assert stat.S_IMODE((tmp_path / "kept/t").stat().st_mode) == 0o1777
    unpack_image(image, tmp_path / "plain", owners=False)
    at = (tmp_path / "plain/s").stat()
    assert (stat.S_IMODE(at.st_mode), at.st_uid, at.st_gid) == (0o755, 0, 0)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """The lower layer's link leads out; the upper one puts a file below it: engines replace the link by a folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    lower = LayerSpec((Link("d", str(outside)), Link("f", str(outside / "target")), Link("up", "../..")))
    upper = LayerSpec((File("d/planted", b"x"), File("f", b"own"), File("up/planted", b"x")))
    unpack_image(image_of(lower, upper), tmp_path / "root")
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "planted").exists()
    assert (tmp_path / "root/d/planted").read_bytes() == b"x"
    assert not (tmp_path / "root/f").is_symlink()


def test_a_hard_link_to_a_link_shows_no_file_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the machine")
    layer = LayerSpec((Link("l", str(tmp_path / "secret")), HardLink("h", "l")))
    unpack_image(image_of(layer), tmp_path / "root")
    assert os.readlink(tmp_path / "root/h") == str(tmp_path / "secret")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (member(b"../x", b"1") + END, "base.bad-path"),
        (member(b"a/../../x", b"1") + END, "base.bad-path"),
        (member(b"l", kind=b"2", link=b"/tmp") + member(b"l/x", b"1") + END, "base.entry-below-link"),
        (member(b"h", kind=b"1", link=b"../../etc/passwd") + END, "base.bad-path"),
    ],
)
def test_a_layer_that_leads_out_is_refused_before_anything_is_written(tmp_path: Path, raw: bytes, code: str) -> None:
    with pytest.raises(RefusedError) as caught:
        unpack_image(image_of(LayerSpec(raw=raw)), tmp_path / "root")
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_got_past_the_reader_is_refused_all_the_same() -> None:
    with pytest.raises(RefusedError, match=r"base\.bad-path"):
        unpack._check("a/../b")
    unpack._check("a/b")


def test_an_image_larger_than_the_disk_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = image_of(LayerSpec((File("f", b"x" * 100),)))
    monkeypatch.setattr(unpack.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 64 << 20}))
    with pytest.raises(UnavailableError, match=r"content\.disk-full"):
        unpack_image(image, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_config_that_says_another_diff_id_is_refused(tmp_path: Path) -> None:
    other = "sha256:" + "0" * 64
    image = image_of(LayerSpec((File("f", b"x"),)), extra_config={"rootfs": {"type": "layers", "diff_ids": [other]}})
    with pytest.raises(RefusedError, match="does not hold what its config says"):
        unpack_image(image, tmp_path / "root")


class Fickle(MemorySource):
    """Gives a layer right the first time, and another one after that."""

    def __init__(self, made: MadeImage, other: bytes) -> None:
        super().__init__(made)
        self.other = other
        self.asked = 0

    def open_blob(self, descriptor: Descriptor, what: str = "blob") -> Any:
        if what == "layer":
            self.asked += 1
            if self.asked > 1:
                return io.BytesIO(self.other)
        return super().open_blob(descriptor, what)


def test_a_source_that_gives_other_bytes_the_second_time_is_found_out(tmp_path: Path) -> None:
    made = make_image(ImageSpec((LayerSpec((File("f", b"good"),), compression="none"),)))
    bad = make_image(ImageSpec((LayerSpec((File("f", b"evil"),), compression="none"),)))
    layer = child_of(CheckedImage("bad", bad.digest, AMD64, MemorySource(bad))).manifest.layers[0]
    source = Fickle(made, bad.blobs[layer.digest])
    with pytest.raises(RefusedError, match=r"content\.digest-mismatch"):
        unpack_image(CheckedImage("test", made.digest, AMD64, source), tmp_path / "root")


def test_layers_that_are_known_are_read_once(tmp_path: Path) -> None:
    made = make_image(ImageSpec((LayerSpec((File("f", b"good"),)),)))
    source = Fickle(made, b"never asked for")
    image = CheckedImage("test", made.digest, AMD64, source)
    facts = FactsStore(tmp_path / "facts")
    layer_facts(source, child_of(image), facts)
    layer_facts(source, child_of(image), facts)
    assert source.asked == 1


def test_an_image_is_unpacked_once_and_a_half_unpacked_one_is_none(tmp_path: Path) -> None:
    image = image_of(LayerSpec((File("f", b"x"),)))
    folder = tmp_path / "images" / image.digest.hex
    (folder / ".imagebuild-tmp-rootfs" / "f").mkdir(parents=True)
    first = Rootfs(tmp_path / "images")
    root = first.of(image)
    assert (root / "f").read_bytes() == b"x"
    at = (root / "f").stat().st_ino
    second = Rootfs(tmp_path / "images")
    assert (second.of(image) / "f").stat().st_ino == at
    second.close()  # not its own
    assert root.is_dir()
    assert [path.name for path in folder.iterdir()] == ["rootfs"]
    first.close()
    assert not folder.exists()
    kept = Rootfs(tmp_path / "images", keep=True)
    kept.of(image)
    kept.close()
    assert root.is_dir()


NAMES = ["a", "b", "c"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)


@st.composite
def layers(draw: st.DrawFn) -> LayerSpec:
    """A layer that the reader takes: each path once, nothing below what is no folder, link targets before links."""
    chosen: dict[str, Item] = {}
    for path in draw(st.lists(PATHS, max_size=6, unique=True)):
        kind = draw(st.sampled_from(["file", "folder", "link", "whiteout", "opaque"]))
        chosen[path] = {
            "file": File(path, draw(st.sampled_from([b"", b"x", b"y" * 600]))),
            "folder": Folder(path, 0o710),
            "link": Link(path, draw(st.sampled_from(["a", "../a", "/b", "/"]))),
            "whiteout": Whiteout(path),
            "opaque": Opaque(path),
        }[kind]
    for path in sorted(chosen):
        above = ["/".join(path.split("/")[:n]) for n in range(1, path.count("/") + 1)]
        if any(isinstance(chosen.get(folder), File | Link) for folder in above):
            del chosen[path]
    items: list[Item] = [chosen[path] for path in sorted(chosen)]
    files = [item.path for item in items if isinstance(item, File)]
    if files and draw(st.booleans()):
        name = draw(st.sampled_from(["h", "a-h"]))
        items.append(HardLink(name, draw(st.sampled_from(files))))
    return LayerSpec(tuple(items), compression=draw(st.sampled_from(["none", "stored", "zstd"])))


@settings(max_examples=60, deadline=None)
@given(st.lists(layers(), min_size=1, max_size=3))
def test_the_folder_is_the_merged_view(stack: Sequence[LayerSpec]) -> None:
    image = image_of(*stack)
    view = MergedView(layer_facts(image.source, child_of(image)))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        unpack_image(image, root)
        wanted = {path: found for path, found in view.walk() if path}
        assert {str(path.relative_to(root)) for path in root.rglob("*")} == set(wanted)
        inodes: dict[Any, int] = {}
        for path, found in wanted.items():
            at = os.lstat(root / path)
            if found.entry.kind is Kind.DIRECTORY:
                assert stat.S_ISDIR(at.st_mode)
                assert stat.S_IMODE(at.st_mode) == (0o755 if is_implied(found.entry) else 0o710)
            elif found.data.kind is Kind.SYMLINK:
                assert os.readlink(root / path) == found.data.link
            else:
                assert found.data.sha256 is not None
                assert Digest.of((root / path).read_bytes()) == found.data.sha256
                assert at.st_size == found.data.size
                origin = view.origin(found)
                assert origin is not None
                assert inodes.setdefault((origin[0], origin[1].path), at.st_ino) == at.st_ino
        assert len(set(inodes.values())) == len(inodes)
