"""Images that lie: each document and blob damaged in each way, in a layout and in archives."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError
from imagebuild.oci import media_types as mt
from imagebuild.oci.layout import LayoutSink, LayoutSource
from imagebuild.oci.oci_archive import OciArchiveSource
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import ImageTree, fetch_blob, read_image_tree
from imagebuild.testing.images import (
    File,
    ImageSpec,
    IndexSpec,
    LayerSpec,
    layout_files,
    make_artifact,
    make_image,
    make_index,
    make_tar,
    write_layout,
)
from imagebuild.testing.memory import MemorySource, as_image

LAYERS = (LayerSpec((File("a"),)), LayerSpec((File("b"),), compression="none"))
TWO = make_index(IndexSpec((ImageSpec(LAYERS), ImageSpec(LAYERS, Platform("linux", "arm64"))), attestations=True))
FILES = layout_files({"v": TWO, "s": make_artifact(TWO.descriptor)})
READ = sorted(
    {f"blobs/sha256/{d.hex}" for image in (TWO, *TWO.images) for d in (image.digest,)}
    | {f"blobs/sha256/{layer.descriptor.digest.hex}" for layer in TWO.layers}
    | {f"blobs/sha256/{json.loads(i.raw)['config']['digest'][7:]}" for i in TWO.images}
)

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-1],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"\n",
    "changed": lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:],
    "huge": lambda data: data + bytes(5 << 20),
    "other": lambda data: FILES["index.json"],
}


def read_all(source: ImageSource) -> ImageTree:
    """What a reader of a whole image does, every byte checked."""
    tree = read_image_tree(source, "v")
    for child in tree.children.values():
        for layer in child.manifest.layers:
            fetch_blob(source, layer, "layer", 1 << 30)
    source.referrers(tree.top.digest)
    return tree


def places(tmp_path: Path, files: dict[str, bytes]) -> list[ImageSource]:
    for name, data in files.items():
        path = tmp_path / "layout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    tar = make_tar([File(name, data) for name, data in files.items()])
    (tmp_path / "tar").write_bytes(tar)
    (tmp_path / "tgz").write_bytes(gzip.compress(tar, 1))
    return [LayoutSource(tmp_path / "layout"), OciArchiveSource(tmp_path / "tar"), OciArchiveSource(tmp_path / "tgz")]


def test_undamaged_it_is_read(tmp_path: Path) -> None:
    for source in places(tmp_path, FILES):
        assert len(read_all(source).children) == 2


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("damage", DAMAGE)
def test_every_blob_damaged_in_every_way(tmp_path: Path, name: str, damage: str) -> None:
    for source in places(tmp_path, {**FILES, name: DAMAGE[damage](FILES[name])}):
        with pytest.raises(ImagebuildError) as caught:
            read_all(source)
        assert caught.value.code in ("content.digest-mismatch", "content.size-mismatch", "oci.document-too-large")
        assert caught.value.exit_code == 1


@pytest.mark.parametrize("name", READ)
def test_every_blob_missing(tmp_path: Path, name: str) -> None:
    for source in places(tmp_path, {n: data for n, data in FILES.items() if n != name}):
        with pytest.raises(ImagebuildError) as caught:
            read_all(source)
        assert (caught.value.code, caught.value.exit_code) == ("oci.blob-missing", 3)


def test_every_two_blobs_swapped(tmp_path: Path) -> None:
    for one, other in zip(READ, READ[1:] + READ[:1], strict=True):
        swapped = {**FILES, one: FILES[other], other: FILES[one]}
        for source in places(tmp_path, swapped)[:2]:
            with pytest.raises(ImagebuildError):
                read_all(source)


@pytest.mark.parametrize("damage", [d for d in DAMAGE if d not in ("longer", "other")])
@pytest.mark.parametrize("name", ["index.json", "oci-layout"])
def test_the_files_that_no_digest_covers(tmp_path: Path, name: str, damage: str) -> None:
    for source in places(tmp_path, {**FILES, name: DAMAGE[damage](FILES[name])}):
        with pytest.raises(ImagebuildError):
            read_all(source)


def test_an_index_that_says_another_type_size_or_platform(tmp_path: Path) -> None:
    for key, value in [
        ("mediaType", mt.OCI_MANIFEST),
        ("mediaType", mt.DOCKER_INDEX),
        ("size", 5),
        ("digest", str(Digest.of(FILES["oci-layout"]))),
        ("digest", "sha256:../../../etc/passwd"),
        ("digest", "sha256:" + "A" * 64),
    ]:
        index = json.loads(FILES["index.json"])
        index["manifests"][0][key] = value
        for source in places(tmp_path, {**FILES, "index.json": json.dumps(index).encode()}):
            with pytest.raises(ImagebuildError):
                read_all(source)


def test_an_index_listed_in_itself_cannot_be_made_and_a_deep_one_is_refused() -> None:
    """A digest loop would need a collision; a chain of indexes is what is left to an attacker."""
    inner = make_index(IndexSpec((ImageSpec(LAYERS),)))
    blobs = dict(inner.blobs)
    for _ in range(5):
        inner = make_index(IndexSpec((), extra_children=(inner.descriptor.to_json(),)))
        blobs |= inner.blobs
    source = MemorySource(inner)
    source.blobs = blobs
    with pytest.raises(ImagebuildError) as caught:
        read_image_tree(source, None)
    assert caught.value.code == "oci.index-too-deep"
    assert len(source.reads) <= 3


def test_a_layout_with_a_chain_of_indexes_ends(tmp_path: Path) -> None:
    inner = make_index(IndexSpec((ImageSpec(LAYERS),)))
    blobs = dict(inner.blobs)
    for _ in range(8):
        inner = make_index(IndexSpec((), extra_children=(inner.descriptor.to_json(),)))
        blobs |= inner.blobs
    write_layout(tmp_path, inner)
    for digest, data in blobs.items():
        (tmp_path / "blobs" / "sha256" / digest.hex).write_bytes(data)
    with pytest.raises(ImagebuildError) as caught:
        LayoutSource(tmp_path).read_document(Digest.of(b"nowhere"))
    assert caught.value.code == "oci.not-found"


@pytest.mark.parametrize("where", ["index", "manifest", "config"])
def test_duplicate_keys_are_refused_even_under_the_right_digest(where: str) -> None:
    image = make_image(ImageSpec(LAYERS))
    config = Digest.parse(json.loads(image.raw)["config"]["digest"])
    source = MemorySource(image)
    if where == "index":
        top = b'{"manifests":[],' + make_index(IndexSpec((ImageSpec(LAYERS),))).raw[1:]
    elif where == "manifest":
        top = b'{"layers":[],' + image.raw[1:]
    else:
        raw = b'{"rootfs":{"type":"layers","diff_ids":[]},' + source.blobs[config][1:]
        source.blobs[Digest.of(raw)] = raw
        old, new = (f'"{d}","size":{len(source.blobs[d])}'.encode() for d in (config, Digest.of(raw)))
        top = image.raw.replace(old, new)
        assert top != image.raw
    source.blobs[Digest.of(top)] = top
    with pytest.raises(ImagebuildError, match="duplicate key") as caught:
        read_image_tree(source, Digest.of(top))
    assert caught.value.code == "oci.bad-json"


def test_archives_cut_or_changed_anywhere(tmp_path: Path) -> None:
    """Whatever happens to an archive's bytes: the right image, or one of our errors; never another image, never a trace."""
    tar = make_tar([File(name, data) for name, data in FILES.items()])
    random.seed(20261130)
    for packed in (tar, gzip.compress(tar, 6)):
        for number in range(150):
            at = random.randrange(len(packed))
            data = packed[:at] if number % 3 == 0 else packed[:at] + random.randbytes(1 + number % 4) + packed[at + 1 :]
            (tmp_path / "a").write_bytes(data)
            try:
                tree = read_all(OciArchiveSource(tmp_path / "a"))
            except ImagebuildError:
                continue
            assert tree.top.digest == TWO.digest


def test_a_gzip_bomb_is_left_before_it_bursts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagebuild.oci.archive_files.GIGABYTE", 1 << 20)
    monkeypatch.setattr("imagebuild.oci.archive_files.RATIO", 2)
    tar = make_tar([File("blobs/sha256/" + "0" * 64, bytes(8 << 20))])
    (tmp_path / "a").write_bytes(gzip.compress(tar, 9))
    with pytest.raises(ImagebuildError, match="more bytes than it may hold"):
        OciArchiveSource(tmp_path / "a").resolve(None)


@pytest.mark.parametrize("name", ["../index.json", "/etc/passwd", "blobs/../../x", "blobs/sha256/../../../x"])
def test_path_tricks(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_bytes(make_tar([*(File(n, d) for n, d in FILES.items()), File(name, b"x")]))
    with pytest.raises(ImagebuildError, match="leads out"):
        OciArchiveSource(tmp_path / "a").resolve("v")


def test_a_second_index_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(make_tar([*(File(n, d) for n, d in FILES.items()), File("./index.json", b"{}")]))
    with pytest.raises(ImagebuildError, match="one name"):
        OciArchiveSource(tmp_path / "a").resolve("v")


def test_a_sink_writes_into_no_link_of_a_prepared_layout(tmp_path: Path) -> None:
    """A layout from elsewhere may hold links; what is written replaces a link, never what it points at."""
    made = make_image(ImageSpec(LAYERS))
    folder = write_layout(tmp_path / "l", {})
    (folder / "blobs" / "sha256").mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    names = [f"blobs/sha256/{d.hex}" for d in made.blobs]
    for name in names:
        (folder / name).symlink_to(victim)
    index: Any = (folder / "index.json").read_bytes()
    (tmp_path / "index").write_bytes(index)
    (folder / "index.json").unlink()
    (folder / "index.json").symlink_to(tmp_path / "index")
    LayoutSink(folder).store(as_image(made, base=MemorySource(made)), "v", complete=True)
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "index").read_bytes() == index
    assert read_all(LayoutSource(folder)).top.digest == made.digest
