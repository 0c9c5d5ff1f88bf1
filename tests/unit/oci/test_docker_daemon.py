"""A Docker engine as sink: what is sent, what is left out, and what is asked afterwards."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.oci.docker_daemon import DaemonSink
from imagebuild.oci.docker_engine import DockerEngine, EngineImage
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import LocalBlob
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, MadeImage, make_image, make_index
from imagebuild.testing.memory import MemorySource, as_image


def made_image(*compressions: Any, top: bytes = b"top") -> MadeImage:
    layers = [LayerSpec((File(f"f{n}", b"x" * n),), compression=c) for n, c in enumerate(compressions[:-1])]
    layers.append(LayerSpec((File("top", top),), compression=compressions[-1]))
    return make_image(ImageSpec(tuple(layers), config={"Env": ["A=1"], "WorkingDir": "/w"}))


def config_of(made: MadeImage) -> Digest:
    return Digest.parse(json.loads(made.raw)["config"]["digest"])


class FakeEngine:
    """An engine with graph drivers, as far as the sink looks at it: layers by chain, images by name."""

    address = "unix:///fake"

    def __init__(self, *, part_archives: bool = True, own_ids: bool = False) -> None:
        self.part_archives = part_archives
        self.own_ids = own_ids
        self.names: dict[str, EngineImage] = {}
        self.chains: set[tuple[str, ...]] = set()
        self.stacks: list[tuple[str, ...]] = []
        self.archives: list[dict[str, bytes]] = []
        self.closed = 0
        self.after: Any = None

    def image(self, name: str) -> EngineImage | None:
        return self.names.get(name)

    def layer_stacks(self) -> list[tuple[str, ...]]:
        return [*self.stacks, *(image.layers for image in self.names.values())]

    def takes_part_archives(self) -> bool:
        return self.part_archives

    def load(self, parts: Iterator[bytes]) -> None:
        with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
            files = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]
        self.archives.append(files)
        (listed,) = json.loads(files["manifest.json"])
        config = json.loads(files[listed["Config"]])
        chain: tuple[str, ...] = ()
        for name, diff_id in zip(listed["Layers"], config["rootfs"]["diff_ids"], strict=True):
            chain = (*chain, diff_id)
            if chain not in self.chains and name not in files:
                raise UnavailableError("oci.engine-failed", f"open {name}: no such file or directory")
            self.chains.add(chain)
        identity = "sha256:" + "7" * 64 if self.own_ids else str(Digest.of(files[listed["Config"]]))
        image = EngineImage(identity, chain, config["os"], config["architecture"], config.get("config", {}))
        for tag in listed["RepoTags"]:
            self.names[tag] = self.after(image) if self.after else image

    def close(self) -> None:
        self.closed += 1


def store(engine: FakeEngine, made: MadeImage, name: str | None = "demo:test", **more: Any) -> Any:
    return DaemonSink(lambda: engine).store(as_image(made, base=MemorySource(made)), name, **more)


def layer_files(archive: dict[str, bytes]) -> list[bytes | None]:
    """What stands in the archive for each layer that its manifest lists."""
    return [archive.get(name) for name in json.loads(archive["manifest.json"])[0]["Layers"]]


def test_an_empty_engine_gets_every_layer_as_it_is_stored() -> None:
    made = made_image("gzip", "none", "stored")
    engine = FakeEngine()
    result = store(engine, made)
    assert layer_files(engine.archives[0]) == [layer.blob for layer in made.layers]
    assert engine.names["demo:test"].id == str(config_of(made))
    assert result.digest == made.digest
    assert result.reference == "docker-daemon:demo:test"
    assert result.previous is None
    assert result.uploaded_bytes > sum(len(layer.blob) for layer in made.layers)
    assert engine.closed == 1


def test_layers_that_the_engine_has_are_left_out() -> None:
    base, made = made_image("gzip", "gzip", "gzip"), made_image("gzip", "gzip", "gzip", top=b"another")
    engine = FakeEngine()
    store(engine, base, "base")
    result = store(engine, made)
    assert layer_files(engine.archives[1]) == [None, None, made.layers[2].blob]
    assert engine.names["demo:test"].layers == tuple(str(layer.diff_id) for layer in made.layers)
    assert result.uploaded_bytes < 8192


def test_a_layer_counts_as_there_only_on_the_same_layers_below() -> None:
    """An engine knows a layer by its whole chain."""
    made = made_image("gzip", "gzip", "gzip")
    engine = FakeEngine()
    engine.stacks.append(tuple(str(layer.diff_id) for layer in made.layers[1:]))
    store(engine, made)
    assert None not in layer_files(engine.archives[0])


def test_complete_sends_everything() -> None:
    made = made_image("gzip", "gzip")
    engine = FakeEngine()
    store(engine, made)
    store(engine, made, "demo:again", complete=True)
    assert layer_files(engine.archives[1]) == [layer.blob for layer in made.layers]


def test_an_engine_that_takes_no_part_archives_gets_all() -> None:
    made = made_image("gzip", "gzip")
    engine = FakeEngine(part_archives=False)
    store(engine, made)
    store(engine, made, "demo:again")
    assert None not in layer_files(engine.archives[1])


def test_what_the_engine_lost_in_between_is_sent_after_all() -> None:
    made = made_image("gzip", "gzip")
    engine = FakeEngine()
    engine.stacks.append(tuple(str(layer.diff_id) for layer in made.layers))
    result = store(engine, made)
    first, second = engine.archives
    assert layer_files(first) == [None, None]
    assert layer_files(second) == [layer.blob for layer in made.layers]
    assert result.uploaded_bytes > sum(len(layer.blob) for layer in made.layers)


def test_zstd_goes_in_plain() -> None:
    made = made_image("zstd", "gzip")
    engine = FakeEngine()
    store(engine, made)
    assert layer_files(engine.archives[0]) == [made.layers[0].tar, made.layers[1].blob]


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("demo", "demo:latest"),
        ("docker.io/library/demo:v1", "demo:v1"),
        ("docker.io/team/demo:v1", "team/demo:v1"),
        ("127.0.0.1:5000/demo:v1", "127.0.0.1:5000/demo:v1"),
    ],
)
def test_names_are_as_docker_shows_them(name: str, tag: str) -> None:
    engine = FakeEngine()
    store(engine, made_image("gzip"), name)
    assert list(engine.names) == [tag]


def test_the_image_that_had_the_name_is_told() -> None:
    first, second = made_image("gzip"), made_image("gzip", top=b"another")
    engine = FakeEngine()
    store(engine, first)
    assert store(engine, first).previous is None
    assert store(engine, second).previous == config_of(first)


def test_holds_is_about_this_very_config() -> None:
    made = made_image("gzip")
    engine = FakeEngine()
    sink = DaemonSink(lambda: engine)
    assert not sink.holds("demo:test", config_of(made))
    store(engine, made)
    assert sink.holds("docker.io/library/demo:test", config_of(made))
    assert not sink.holds("demo:test", Digest.of(b"another"))


def test_a_corrupt_base_layer_is_never_named() -> None:
    made = made_image("gzip", "gzip")
    source = MemorySource(made)
    blob = made.layers[0].descriptor
    source.blobs[blob.digest] = bytes(blob.size)
    engine = FakeEngine()
    with pytest.raises(RefusedError) as caught:
        DaemonSink(lambda: engine).store(as_image(made, base=source), "demo:test")
    assert caught.value.code == "content.digest-mismatch"
    assert engine.names == {}
    assert engine.closed == 1


def test_a_missing_base_layer_is_could_not_find_out() -> None:
    made = made_image("gzip", "gzip")
    engine = FakeEngine()
    with pytest.raises(UnavailableError) as caught:
        DaemonSink(lambda: engine).store(as_image(made), "demo:test")
    assert caught.value.code == "oci.blob-missing"
    assert engine.names == {}


def test_our_own_layers_are_checked_too() -> None:
    made = made_image("gzip")
    image = as_image(made)
    size = made.layers[0].descriptor.size
    wrong = LocalBlob(made.layers[0].descriptor, lambda: io.BytesIO(bytes(size)))
    with pytest.raises(RefusedError, match="digest"):
        DaemonSink(FakeEngine).store(replace(image, own=(wrong,)), "demo:test")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"layers": ("sha256:" + "1" * 64,)}, "layers"),
        ({"architecture": "arm64"}, "platform"),
        ({"config": {"Env": ["A=2"], "WorkingDir": "/w"}}, "Env"),
        ({"config": {"Env": ["A=1"]}}, "WorkingDir"),
        ({"config": {"Env": ["A=1"], "WorkingDir": "/w", "User": "1000"}}, "User"),
    ],
)
def test_an_engine_that_holds_something_else_is_refused(change: dict[str, Any], word: str) -> None:
    engine = FakeEngine(own_ids=True)
    engine.after = lambda image: replace(image, **change)
    with pytest.raises(RefusedError, match=word) as caught:
        store(engine, made_image("gzip"))
    assert caught.value.code == "oci.engine-differs"


def test_an_engine_with_ids_of_its_own_is_judged_by_layers_and_config() -> None:
    engine = FakeEngine(own_ids=True)
    engine.after = lambda image: replace(image, config={"Hostname": "", **image.config, "Cmd": None, "Labels": {}})
    assert store(engine, made_image("gzip")).digest == made_image("gzip").digest


def test_an_engine_that_names_nothing_is_refused() -> None:
    engine = FakeEngine()
    engine.after = lambda image: None
    with pytest.raises(RefusedError, match="the image"):
        store(engine, made_image("gzip"))


def test_one_platform_and_a_name() -> None:
    specs = tuple(
        ImageSpec((LayerSpec((File("a", b"1"),)),), Platform.parse(p)) for p in ("linux/amd64", "linux/arm64")
    )
    with pytest.raises(InputError) as caught:
        store(FakeEngine(), make_index(IndexSpec(specs)))
    assert caught.value.code == "oci.several-platforms"
    with pytest.raises(InputError) as caught:
        store(FakeEngine(), made_image("gzip"), None)
    assert caught.value.code == "oci.bad-reference"


def test_nobody_at_the_address(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    with pytest.raises(UnavailableError) as caught:
        DockerEngine()
    assert caught.value.code == "oci.engine-unreachable"
    assert "nobody" in caught.value.message
