"""Whole stand-in bases: layout, cache and fixed digests."""

from __future__ import annotations

import gzip
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_wheel import make_wheel, pin_of

from imagebuild.content.digest import Digest
from imagebuild.content.store import ContentStore
from imagebuild.oci import media_types as mt
from imagebuild.oci.documents import ImageConfig, Index, Manifest
from imagebuild.oci.platform import Platform
from imagebuild.testing.base_layers import FilesLayer, InterpreterLayer, RootLayer, WheelLayer
from imagebuild.testing.wheel_base import BaseSpec, MadeBase, make_base
from imagebuild.testing.wheel_fetch import AMD64, ARM64

TIME = 1_793_613_600


@pytest.fixture
def spec(tmp_path: Path) -> BaseSpec:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    pin = pin_of(make_wheel(wheels))
    return BaseSpec(
        "tiny",
        (AMD64, ARM64),
        (
            RootLayer(),
            InterpreterLayer(),
            WheelLayer({AMD64: pin, ARM64: pin}, bytecode_of=("tiny/__init__.py",)),
            FilesLayer({"srv/f": (b"x", 0o600)}, ("srv/d",), {"srv/l": "f"}),
        ),
        TIME,
        entrypoint=("/bin/true",),
        labels={"b": "2", "a": "1"},
    )


def make(spec: BaseSpec, tmp_path: Path, folder: str = "layout") -> MadeBase:
    return make_base(spec, tmp_path / folder, store=ContentStore(tmp_path / "store"), wheel_folder=tmp_path / "wheels")


def blob(made: MadeBase, digest: Digest) -> bytes:
    data = (made.folder / "blobs" / "sha256" / digest.hex).read_bytes()
    assert Digest.of(data) == digest
    return data


def test_the_layout_holds_one_image_a_platform(spec: BaseSpec, tmp_path: Path) -> None:
    made = make(spec, tmp_path)
    entry: dict[str, Any] = json.loads((made.folder / "index.json").read_bytes())["manifests"][0]
    assert entry["digest"] == str(made.digest)
    index = Index.parse(blob(made, made.digest), mt.OCI_INDEX)
    assert [child.platform for child in index.manifests] == [AMD64, Platform("linux", "arm64", "v8")]
    for child in index.manifests:
        manifest = Manifest.parse(blob(made, child.digest), child.media_type)
        config = ImageConfig.parse(blob(made, manifest.config.digest))
        assert child.platform is not None
        assert config.platform == child.platform
        assert config.section["Entrypoint"] == ["/bin/true"]
        assert list(config.labels) == ["a", "b"]
        filled = [line for line in config.value["history"] if not line.get("empty_layer")]
        assert len(filled) == len(manifest.layers) == len(config.diff_ids) == 4
        for layer, diff_id in zip(manifest.layers, config.diff_ids, strict=True):
            assert Digest.of(gzip.decompress(blob(made, layer.digest))) == diff_id
    assert set(made.blobs) == {f"sha256:{p.name}" for p in (made.folder / "blobs" / "sha256").iterdir()}


def test_a_second_run_links_what_the_first_one_made(spec: BaseSpec, tmp_path: Path) -> None:
    first = make(spec, tmp_path)
    (tmp_path / "wheels" / "tiny-1.2-py3-none-any.whl").unlink()
    second = make(spec, tmp_path, "again")
    assert (first.reused, second.reused) == (False, True)
    assert first.digest == second.digest
    for name in first.blobs:
        paths = [base.folder / "blobs" / "sha256" / name.removeprefix("sha256:") for base in (first, second)]
        assert paths[0].samefile(paths[1])
    one = make(replace(spec, platforms=(AMD64,), index=False), tmp_path, "one")
    assert one.reused
    assert one.media_type == mt.OCI_MANIFEST


def test_a_damaged_cache_is_made_again(spec: BaseSpec, tmp_path: Path) -> None:
    first = make(spec, tmp_path)
    for name in first.blobs:
        path = ContentStore(tmp_path / "store").path(Digest.parse(name))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    second = make(spec, tmp_path)
    assert not second.reused
    assert second.digest == first.digest
    for name in second.blobs:
        blob(second, Digest.parse(name))


def test_a_schema_2_base_speaks_one_family(spec: BaseSpec, tmp_path: Path) -> None:
    made = make(replace(spec, family=mt.DOCKER, platforms=(AMD64,)), tmp_path)
    index = Index.parse(blob(made, made.digest), mt.DOCKER_INDEX)
    manifest = Manifest.parse(blob(made, index.manifests[0].digest), mt.DOCKER_MANIFEST)
    assert manifest.config.media_type == mt.DOCKER_CONFIG
    assert {layer.media_type for layer in manifest.layers} == {mt.DOCKER_LAYER_GZIP}
    with pytest.raises(ValueError, match="gzip"):
        replace(spec, family=mt.DOCKER, compression="zstd")


def test_the_bytes_of_the_fixed_layers_are_fixed(tmp_path: Path) -> None:
    """Locks pin them.  When this fails on purpose, count `wheel_base.MAKER` up and pin the demo bases anew."""
    spec = BaseSpec("fixed", (AMD64, ARM64), (RootLayer(), InterpreterLayer()), TIME)
    assert str(make(spec, tmp_path).digest) == "sha256:934e3a90f186d06236e0b64ff9e119084435dc0c5e99d2d58554b157f1638248"


def test_the_root_has_what_overlay_paths_pass_through(tmp_path: Path) -> None:
    made = make(BaseSpec("root", (AMD64,), (RootLayer(),), TIME, compression="none"), tmp_path)
    index = Index.parse(blob(made, made.digest), mt.OCI_INDEX)
    layer = Manifest.parse(blob(made, index.manifests[0].digest), mt.OCI_MANIFEST).layers[0]
    assert layer.media_type == mt.OCI_LAYER
    with tarfile.open(made.folder / "blobs" / "sha256" / layer.digest.hex) as archive:
        entries = {entry.name: entry for entry in archive}
    assert entries["lib"].linkname == "usr/lib"
    assert entries["tmp"].mode == 0o1777
    assert {entry.mtime for entry in entries.values()} == {TIME}
    assert {(entry.uname, entry.gname, entry.uid) for entry in entries.values()} == {("", "", 0)}
