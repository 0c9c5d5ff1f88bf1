"""Layouts and archives of ours in the hands of skopeo, umoci, podman and docker, and theirs in ours."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_engine import RealEngine
from tools import program, root

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.oci.assemble import derive_index, derive_manifest
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.docker_archive import DockerArchiveSink
from imagebuild.oci.documents import Index
from imagebuild.oci.layout import LayoutSink, LayoutSource
from imagebuild.oci.oci_archive import OciArchiveSink, OciArchiveSource
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import Document, Image, LocalBlob
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.images import (
    File,
    Folder,
    ImageSpec,
    IndexSpec,
    LayerSpec,
    MadeImage,
    Whiteout,
    make,
    make_index,
    make_layer,
    write_layout,
)
from imagebuild.testing.memory import MemorySource, as_image

pytestmark = pytest.mark.integration

BELOW = LayerSpec((File("base", b"base"), Folder("d"), File("d/x", b"1")))
ABOVE = LayerSpec((Whiteout("d/x"), File("new", b"new")), compression="stored")
STACK = (BELOW, ABOVE)
ZSTD = LayerSpec((File("z", b"z"),), compression="zstd")
PLAIN = LayerSpec((File("p", b"p"),), compression="none")
HISTORIES = ("full", "missing", "null", "short", "all-empty", "with-empty")


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def names(tar: Path | bytes) -> set[str]:
    data = tar if isinstance(tar, bytes) else tar.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {m.name for m in archive}


def derived(base: MadeImage) -> Image:
    """The base with one layer more, made as a build makes it."""
    source = MemorySource(base)
    tree = read_image_tree(source, None)
    layer = make_layer(ABOVE)
    manifests, configs, replaced, below = [], [], {}, {}
    for child in tree.children.values():
        config, raw = derive_manifest(
            child.manifest,
            child.config,
            [(layer.descriptor, layer.diff_id, "imagebuild")],
            created=1_800_000_000,
            labels={"a": "b"},
            annotations={"c": "d"},
        )
        descriptor = Descriptor(child.descriptor.media_type, Digest.of(raw), len(raw), child.descriptor.platform)
        manifests.append(Document(descriptor, raw))
        configs.append(Document(Descriptor(child.manifest.config.media_type, Digest.of(config), len(config)), config))
        replaced[child.descriptor.digest] = descriptor
        below |= {d.digest: d for d in child.manifest.layers}
    own = (LocalBlob(layer.descriptor, lambda: io.BytesIO(layer.blob)),)
    top = manifests[0]
    if tree.index is not None:
        raw = derive_index(tree.index, replaced, {"e": "f"})
        top = Document(Descriptor(tree.index.media_type, Digest.of(raw), len(raw)), raw)
    listed = tuple(manifests) if tree.index is not None else ()
    return Image(top, listed, tuple(configs), own, tuple(below.values()), source)


@pytest.mark.parametrize("platforms", [1, 2])
def test_skopeo_copies_what_was_derived_without_changing_it(tmp_path: Path, platforms: int) -> None:
    skopeo = program("skopeo")
    base = make(
        ImageSpec((BELOW,))
        if platforms == 1
        else IndexSpec((ImageSpec((BELOW,)), ImageSpec((BELOW,), Platform("linux", "arm64"))), attestations=True)
    )
    image = derived(base)
    LayoutSink(tmp_path / "l").store(image, "v1", complete=True)
    OciArchiveSink(tmp_path / "a.tar").store(image, "v1")
    for source in ("oci:l:v1", "oci-archive:a.tar:v1"):
        kind, _, rest = source.partition(":")
        run(skopeo, "copy", "--all", "--preserve-digests", f"{kind}:{tmp_path}/{rest}", f"dir:{tmp_path}/{kind}")
        assert Digest.of((tmp_path / kind / "manifest.json").read_bytes()) == image.top.descriptor.digest
    assert json.loads(run(skopeo, "inspect", f"oci:{tmp_path}/l:v1"))["Labels"] == {"a": "b"}


def test_skopeo_copies_schema_2(tmp_path: Path) -> None:
    """By position: skopeo 1.9 looks names up among OCI manifests only."""
    skopeo = program("skopeo")
    image = as_image(made := make(ImageSpec(STACK, family=mt.DOCKER)), base=MemorySource(made))
    LayoutSink(tmp_path / "l").store(image, complete=True)
    run(skopeo, "copy", f"oci:{tmp_path}/l", f"dir:{tmp_path}/out")
    assert Digest.of((tmp_path / "out" / "manifest.json").read_bytes()) == made.digest


def test_what_skopeo_and_umoci_write_is_read(tmp_path: Path) -> None:
    skopeo, umoci = program("skopeo"), program("umoci")
    made = make(ImageSpec(STACK))
    write_layout(tmp_path / "l", {"v": made})
    run(skopeo, "copy", f"oci:{tmp_path}/l:v", f"oci:{tmp_path}/theirs:w")
    run(skopeo, "copy", f"oci:{tmp_path}/l:v", f"oci-archive:{tmp_path}/theirs.tar:w")
    for source in (LayoutSource(tmp_path / "theirs"), OciArchiveSource(tmp_path / "theirs.tar")):
        assert source.names() == ["w"]
        assert source.resolve(None).digest == made.digest
        assert source.has_blob(made.layers[0].descriptor)
        assert read_image_tree(source, made.digest).top.digest == made.digest
    run(umoci, "init", "--layout", tmp_path / "u")
    assert LayoutSource(tmp_path / "u").names() == []
    run(umoci, "new", "--image", f"{tmp_path}/u:x")
    LayoutSink(tmp_path / "u").store(as_image(made, base=MemorySource(made)), "v", complete=True)
    assert LayoutSource(tmp_path / "u").names() == ["v", "x"]
    assert set(run(umoci, "ls", "--layout", tmp_path / "u").split()) == {"v", "x"}


def test_umoci_unpacks_a_layout(tmp_path: Path) -> None:
    umoci = program("umoci")
    image = derived(make(ImageSpec((BELOW,))))
    LayoutSink(tmp_path / "l").store(image, "v1", complete=True)
    run(umoci, "unpack", "--rootless", "--image", f"{tmp_path}/l:v1", tmp_path / "bundle")
    rootfs = tmp_path / "bundle" / "rootfs"
    assert {str(p.relative_to(rootfs)) for p in rootfs.rglob("*")} == {"base", "d", "new"}


@pytest.mark.parametrize("history", HISTORIES)
def test_umoci_reads_every_history(tmp_path: Path, history: Any) -> None:
    umoci = program("umoci")
    LayoutSink(tmp_path / "l").store(derived(make(ImageSpec((BELOW,), history=history))), "v", complete=True)
    run(umoci, "unpack", "--rootless", "--image", f"{tmp_path}/l:v", tmp_path / "bundle")
    assert (tmp_path / "bundle" / "rootfs" / "new").read_bytes() == b"new"


def test_skopeo_reads_docker_archives(tmp_path: Path) -> None:
    skopeo = program("skopeo")
    for number, layers in enumerate((STACK, (*STACK, ZSTD), (BELOW, BELOW))):
        made = make(ImageSpec(layers))
        path = tmp_path / f"{number}.tar"
        DockerArchiveSink(path).store(as_image(made, base=MemorySource(made)), "localhost/t:v1")
        run(skopeo, "copy", f"docker-archive:{path}:localhost/t:v1", f"oci:{tmp_path}/{number}:x")
        child = next(iter(read_image_tree(LayoutSource(tmp_path / str(number)), "x").children.values()))
        assert child.config.diff_ids == tuple(layer.diff_id for layer in made.layers)


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[list[str | Path]]:
    """With a storage of its own; podman 4.3 takes a run root of at most 50 characters."""
    root()
    with tempfile.TemporaryDirectory(prefix="ib-") as short:
        command: list[str | Path] = [program("podman"), "--root", tmp_path / "podman", "--runroot", short]
        command += ["--storage-driver", "vfs"]
        yield command
        run(*command, "system", "reset", "--force")


def test_podman_loads_archives(tmp_path: Path, podman: list[str | Path]) -> None:
    made = make(ImageSpec((*STACK, ZSTD, PLAIN)))
    image = as_image(made, base=MemorySource(made))
    DockerArchiveSink(tmp_path / "d.tar").store(image, "localhost/t:v1")
    OciArchiveSink(tmp_path / "o.tar").store(image, "localhost/t:v2")
    for archive, name in (("d.tar", "localhost/t:v1"), ("o.tar", "localhost/t:v2")):
        assert name in run(*podman, "load", "-i", tmp_path / archive)
        container = run(*podman, "create", name, "x").strip()
        run(*podman, "export", "-o", tmp_path / "export", container)
        assert names(tmp_path / "export") >= {"base", "d", "new", "z", "p"}
        assert "d/x" not in names(tmp_path / "export")


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_docker_loads_archives(tmp_path: Path, engine: RealEngine, family: mt.Family) -> None:
    layers = (*STACK, ZSTD, PLAIN) if family is mt.OCI else STACK
    made = make(ImageSpec(layers, family=family))
    DockerArchiveSink(tmp_path / "d.tar").store(as_image(made, base=MemorySource(made)), f"localhost/t:{family.name}")
    assert f"localhost/t:{family.name}" in engine.run("load", "-i", str(tmp_path / "d.tar"))
    config = json.loads(made.raw)["config"]["digest"]
    assert engine.run("inspect", "-f", "{{.Id}}", f"localhost/t:{family.name}").strip() == config
    container = engine.run("create", f"localhost/t:{family.name}", "x").strip()
    engine.run("export", "-o", str(tmp_path / "export"), container)
    assert names(tmp_path / "export") >= {"base", "d", "new"}
    assert "d/x" not in names(tmp_path / "export")


@pytest.mark.parametrize("history", HISTORIES)
def test_docker_keeps_every_layer_whatever_the_history(tmp_path: Path, engine: RealEngine, history: Any) -> None:
    DockerArchiveSink(tmp_path / "d.tar").store(derived(make(ImageSpec((BELOW,), history=history))), f"t/h:{history}")
    engine.run("load", "-i", str(tmp_path / "d.tar"))
    container = engine.run("create", f"t/h:{history}", "x").strip()
    engine.run("export", "-o", str(tmp_path / "export"), container)
    assert names(tmp_path / "export") >= {"base", "new"}


def test_an_index_of_ours_is_an_index_to_skopeo(tmp_path: Path) -> None:
    skopeo = program("skopeo")
    image = derived(make_index(IndexSpec((ImageSpec((BELOW,)),))))
    LayoutSink(tmp_path / "l").store(image, "v", complete=True)
    raw = run(skopeo, "inspect", "--raw", f"oci:{tmp_path}/l:v").encode()
    assert Index.parse(raw, mt.OCI_INDEX).digest == image.top.descriptor.digest
