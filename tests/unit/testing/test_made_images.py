"""The maker of images for tests, looked at through Python's own readers."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
import zstandard

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.oci.platform import Platform
from imagebuild.testing.images import (
    File,
    Folder,
    HardLink,
    ImageSpec,
    IndexSpec,
    LayerSpec,
    Link,
    Opaque,
    Special,
    Whiteout,
    layout_files,
    make,
    make_archive,
    make_artifact,
    make_image,
    make_index,
    make_layer,
    make_tar,
    write_layout,
)

ITEMS = (
    Folder("d", 0o1777, 1, 2, 3),
    File("d/f", b"data", 0o4755, 1000, 1001, 12, {"user.a": b"\x01\xff"}),
    Link("l", "/d/f"),
    HardLink("h", "d/f"),
    Whiteout("d/gone"),
    Whiteout("top"),
    Opaque("d"),
    Opaque(""),
    Special("c", tarfile.CHRTYPE, (1, 3)),
)


def test_every_item_becomes_its_entry() -> None:
    with tarfile.open(fileobj=io.BytesIO(make_tar(ITEMS))) as archive:
        found = {m.name: m for m in archive}
        assert list(found) == ["d", "d/f", "l", "h", "d/.wh.gone", ".wh.top", "d/.wh..wh..opq", ".wh..wh..opq", "c"]
        folder, file = found["d"], found["d/f"]
        assert (folder.isdir(), folder.mode, folder.uid, folder.gid, folder.mtime) == (True, 0o1777, 1, 2, 3)
        assert (file.mode, file.uid, file.gid, file.mtime, file.size) == (0o4755, 1000, 1001, 12, 4)
        assert file.pax_headers["SCHILY.xattr.user.a"].encode("utf-8", "surrogateescape") == b"\x01\xff"
        assert (found["l"].linkname, found["h"].linkname, found["h"].islnk()) == ("/d/f", "d/f", True)
        assert (found["c"].devmajor, found["c"].devminor) == (1, 3)


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_layers_are_stored_as_asked(family: mt.Family) -> None:
    made = {c: make_layer(LayerSpec(ITEMS, compression=c), family) for c in ("none", "stored", "gzip", "zstd")}
    tar = make_tar(ITEMS)
    assert made["none"].blob == tar
    assert gzip.decompress(made["gzip"].blob) == gzip.decompress(made["stored"].blob) == tar
    assert len(made["stored"].blob) > len(tar) > len(made["gzip"].blob)
    assert zstandard.ZstdDecompressor().decompress(made["zstd"].blob) == tar
    for name, layer in made.items():
        assert layer.diff_id == Digest.of(tar)
        assert (layer.descriptor.digest, layer.descriptor.size) == (Digest.of(layer.blob), len(layer.blob))
        expected = {"stored": "gzip"}.get(name, name)
        assert mt.COMPRESSION[layer.descriptor.media_type] == expected
        assert layer.descriptor.media_type.startswith(f"application/vnd.{'oci' if family is mt.OCI else 'docker'}.")
    assert make_layer(LayerSpec(raw=b"any")).tar == b"any"


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("full", [False, False]),
        ("short", [False]),
        ("all-empty", [True, True]),
        ("with-empty", [True, False, False, True]),
        ("null", None),
        ("missing", "missing"),
    ],
)
def test_histories(kind: str, flags: object) -> None:
    made = make_image(ImageSpec((LayerSpec(), LayerSpec()), history=kind))  # type: ignore[arg-type]
    config = json.loads(made.blobs[Digest.parse(json.loads(made.raw)["config"]["digest"])])
    history = config.get("history", "missing")
    found = [line.get("empty_layer", False) for line in history] if isinstance(history, list) else history
    assert found == flags


def test_an_index_with_attestations() -> None:
    spec = IndexSpec(
        (ImageSpec(), ImageSpec(platform=Platform("linux", "arm64"))), attestations=True, annotations={"a": "b"}
    )
    made = make_index(spec)
    value = json.loads(made.raw)
    assert [(c["platform"]["os"], c["platform"]["architecture"]) for c in value["manifests"]] == [
        ("linux", "amd64"),
        ("linux", "arm64"),
        ("unknown", "unknown"),
        ("unknown", "unknown"),
    ]
    about = [c["annotations"]["vnd.docker.reference.digest"] for c in value["manifests"][2:]]
    assert about == [str(image.digest) for image in made.images]
    assert value["annotations"] == {"a": "b"}
    bare = json.loads(make_index(IndexSpec((ImageSpec(),), platforms=False)).raw)
    assert "platform" not in bare["manifests"][0]


def test_a_layout_is_whole_or_sparse_and_the_same_each_time(tmp_path: Path) -> None:
    spec = ImageSpec((LayerSpec(ITEMS),), extra_manifest={"x": 1}, indent=2)
    made = make(spec)
    assert made == make(spec)
    images = {"v": made, None: make_artifact(made.descriptor)}
    files = layout_files(images)
    for name, data in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{Digest.of(data).hex}"
    layer = f"blobs/sha256/{made.layers[0].descriptor.digest.hex}"
    assert set(files) - set(layout_files(images, sparse=True)) == {layer}
    folder = write_layout(tmp_path / "l", images)
    assert {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == files
    for compressed in (False, True):
        with tarfile.open(fileobj=io.BytesIO(make_archive(images, compressed=compressed))) as archive:
            assert {m.name: archive.extractfile(m).read() for m in archive} == files  # type: ignore[union-attr]
