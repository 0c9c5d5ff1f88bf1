"""Images loaded into a real Docker engine (Debian's docker.io 20.10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_engine import RealEngine

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci import docker_daemon
from imagebuild.oci.docker_daemon import DaemonSink
from imagebuild.oci.docker_engine import DockerEngine
from imagebuild.testing.images import File, ImageSpec, LayerSpec, MadeImage, make_image
from imagebuild.testing.memory import MemorySource, as_image
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _engine_in_the_environment(engine: RealEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.host)


def made_image(*compressions: Any, word: str = "top") -> MadeImage:
    layers = [LayerSpec((File(f"f{n}", b"x" * 50_000),), compression=c) for n, c in enumerate(compressions)]
    layers.append(LayerSpec((File("top", word.encode()),)))
    return make_image(ImageSpec(tuple(layers), config={"Env": ["A=1"], "WorkingDir": "/w", "Cmd": ["/x"]}))


def config_of(made: MadeImage) -> str:
    return str(json.loads(made.raw)["config"]["digest"])


def diff_ids(made: MadeImage) -> list[str]:
    return [str(layer.diff_id) for layer in made.layers]


@pytest.mark.parametrize("compression", ["gzip", "stored", "none", "zstd"])
def test_the_engine_holds_our_layers_and_our_config(engine: RealEngine, compression: str) -> None:
    made = made_image(compression, word=f"loaded {compression}")
    DaemonSink().store(as_image(made, base=MemorySource(made)), f"loaded:{compression}")
    found = engine.inspect(f"loaded:{compression}")
    assert found["RootFS"]["Layers"] == diff_ids(made)
    assert found["Id"] == config_of(made)
    assert found["Config"]["Env"] == ["A=1"]


def test_known_layers_are_not_sent_and_need_not_be_at_hand(engine: RealEngine) -> None:
    base, made = made_image("gzip", word="part base"), made_image("gzip", word="part of it")
    DaemonSink().store(as_image(base, base=MemorySource(base)), "part:base")
    source = MemorySource(made)
    DaemonSink().store(as_image(made, base=source), "part:own")
    assert engine.inspect("part:own")["RootFS"]["Layers"] == diff_ids(made)
    assert made.layers[0].descriptor.digest not in source.reads


def test_what_the_engine_only_seems_to_have_is_sent_in_a_second_try(
    engine: RealEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_image(
        ImageSpec((LayerSpec((File("unseen", b"u" * 9000),)), LayerSpec((File("top", b"seems"),))), config={})
    )
    layers = diff_ids(made)
    monkeypatch.setattr(DockerEngine, "layer_stacks", lambda self: [tuple(layers)])
    source = MemorySource(made)
    DaemonSink().store(as_image(made, base=source), "seems:1")
    assert engine.inspect("seems:1")["RootFS"]["Layers"] == layers
    assert made.layers[0].descriptor.digest in source.reads


def test_a_corrupt_layer_names_nothing(engine: RealEngine) -> None:
    made = make_image(
        ImageSpec((LayerSpec((File("damaged", b"d" * 90_000),)), LayerSpec((File("top", b"corrupt"),))), config={})
    )
    source = MemorySource(made)
    source.blobs[made.layers[0].descriptor.digest] = bytes(made.layers[0].descriptor.size)
    with pytest.raises(RefusedError) as caught:
        DaemonSink().store(as_image(made, base=source), "corrupt:1")
    assert caught.value.code == "content.digest-mismatch"
    assert "corrupt" not in engine.run("images", "--format", "{{.Repository}}")


def test_what_the_engine_complains_of_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A config that says another diff_id than the layer has: the engine refuses it, and says why."""
    made = made_image("gzip", word="complains")
    image = as_image(made, base=MemorySource(made))
    members = docker_daemon._Archive._members

    def swapped(self: Any) -> Any:
        other = str(made.layers[1].diff_id).encode()
        for part in members(self):
            yield part.replace(other, b"sha256:" + b"3" * 64)

    monkeypatch.setattr(docker_daemon._Archive, "_members", swapped)
    with pytest.raises(UnavailableError, match="does not take") as caught:
        DaemonSink().store(image, "complains:1")
    assert caught.value.code == "oci.engine-failed"
    assert caught.value.found


def test_build_into_the_engine_and_again(
    tmp_path: Path, engine: RealEngine, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    space = SmallWorkspace(tmp_path / "space", engine_base(("linux/amd64", "linux/arm64")))
    space.write_target()
    space.write_overlay()
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(space.cache))
    monkeypatch.chdir(space.root)
    assert verb("lock", "tuned").code == 0
    ran = verb("build", "tuned", "--platform", "arm64", "--output", "docker-daemon:demo:test", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["reference"] == "docker-daemon:demo:test"
    found = engine.inspect("demo:test")
    assert found["Architecture"] == "arm64"
    made = space.lock()["result"]["platforms"]["linux/arm64"]
    assert found["Id"] == made["config"]
    assert found["RootFS"]["Layers"][-1] == made["layers"][-1]["diff_id"]
    assert ran.document["unchanged"] is False
    again = verb("build", "tuned", "--platform", "arm64", "--output", "docker-daemon:demo:test", "--json")
    assert again.document["unchanged"] is True
    engine.run("rmi", "demo:test")
    assert verb("build", "tuned", "--platform", "arm64", "--output", "docker-daemon:demo:test").code == 0
    assert engine.inspect("demo:test")["Id"] == made["config"]


def test_two_platforms_are_one_too_many(
    tmp_path: Path, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    space = SmallWorkspace(tmp_path / "space", engine_base(("linux/amd64", "linux/arm64")))
    space.write_target()
    space.write_overlay()
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(space.cache))
    monkeypatch.chdir(space.root)
    assert verb("lock", "tuned").code == 0
    ran = verb("build", "tuned", "--output", "docker-daemon:demo:both", "--json")
    assert ran.code == 2
    assert ran.document["code"] == "oci.several-platforms"
    assert verb("build", "tuned", "--output", f"docker-daemon:demo@{Digest.of(b'')}", "--json").code == 2


def test_no_engine_is_could_not_find_out(
    tmp_path: Path, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    space = SmallWorkspace(tmp_path / "space", engine_base())
    space.write_target()
    space.write_overlay()
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(space.cache))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    monkeypatch.chdir(space.root)
    assert verb("lock", "tuned").code == 0
    ran = verb("build", "tuned", "--output", "docker-daemon:demo:test", "--json")
    assert ran.code == 3
    assert ran.document["code"] == "oci.engine-unreachable"
