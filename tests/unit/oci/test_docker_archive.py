"""docker-archive as sink."""

import gzip
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.docker_archive import DockerArchiveSink
from imagebuild.oci.source import LocalBlob
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, MadeImage, make_image, make_index
from imagebuild.testing.memory import MemorySource, as_image


def image(*compressions: Any, family: mt.Family = mt.OCI) -> MadeImage:
    layers = tuple(LayerSpec((File(f"f{n}", b"x" * n),), compression=c) for n, c in enumerate(compressions))
    return make_image(ImageSpec(layers, family=family))


def store(tmp_path: Path, made: MadeImage, name: str | None = None, **more: Any) -> dict[str, bytes]:
    DockerArchiveSink(tmp_path / "a").store(as_image(made, base=MemorySource(made), **more), name)
    with tarfile.open(tmp_path / "a") as archive:
        return {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_gzip_layers_go_in_as_stored(tmp_path: Path, family: mt.Family) -> None:
    made = image("gzip", "stored", family=family)
    files = store(tmp_path, made, "repo:v1")
    (listed,) = json.loads(files["manifest.json"])
    config = json.loads(made.raw)["config"]["digest"].removeprefix("sha256:")
    assert listed["Config"] == f"{config}.json"
    assert Digest.of(files[listed["Config"]]).hex == config
    assert listed["RepoTags"] == ["repo:v1"]
    assert listed["Layers"] == [f"{layer.descriptor.digest.hex}.tar.gz" for layer in made.layers]
    assert [files[name] for name in listed["Layers"]] == [layer.blob for layer in made.layers]
    assert set(files) == {"manifest.json", listed["Config"], *listed["Layers"]}


@pytest.mark.parametrize("other", ["none", "zstd"])
def test_one_layer_that_is_not_gzip_makes_all_plain(tmp_path: Path, other: str) -> None:
    made = image("gzip", other, "stored")
    files = store(tmp_path, made)
    (listed,) = json.loads(files["manifest.json"])
    assert listed["RepoTags"] == []
    assert listed["Layers"] == [f"{layer.diff_id.hex}.tar" for layer in made.layers]
    assert [files[name] for name in listed["Layers"]] == [layer.tar for layer in made.layers]


def test_gzip_of_several_members_and_zstd_of_several_frames(tmp_path: Path) -> None:
    import zstandard

    made = image("none", "gzip", "zstd")
    pack = zstandard.ZstdCompressor().compress
    blobs = [
        made.layers[0].blob,
        b"".join(gzip.compress(made.layers[1].tar[n : n + 3000]) for n in range(0, 12_000, 3000)),
        pack(made.layers[2].tar[:5000]) + pack(made.layers[2].tar[5000:]),
    ]
    value = json.loads(made.raw)
    for described, blob in zip(value["layers"], blobs, strict=True):
        described |= {"digest": str(Digest.of(blob)), "size": len(blob)}
    raw = json.dumps(value).encode()
    source = MemorySource(made)
    source.blobs |= {Digest.of(blob): blob for blob in blobs}
    whole = as_image(made, own=0, base=source)
    whole = replace(whole, top=replace(whole.top, raw=raw))
    DockerArchiveSink(tmp_path / "a").store(whole)
    with tarfile.open(tmp_path / "a") as archive:
        for layer in made.layers:
            assert archive.extractfile(f"{layer.diff_id.hex}.tar").read() == layer.tar  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("debian", "debian:latest"),
        ("docker.io/library/debian:12", "debian:12"),
        ("docker.io/vllm/vllm-openai:v1", "vllm/vllm-openai:v1"),
        ("localhost:5000/x:y", "localhost:5000/x:y"),
    ],
)
def test_names_as_docker_shows_them(tmp_path: Path, name: str, tag: str) -> None:
    assert json.loads(store(tmp_path, image("gzip"), name)["manifest.json"])[0]["RepoTags"] == [tag]


def test_equal_layers_are_one_file(tmp_path: Path) -> None:
    layer = LayerSpec((File("a"),))
    files = store(tmp_path, make_image(ImageSpec((layer, layer))))
    assert len(json.loads(files["manifest.json"])[0]["Layers"]) == 2
    with tarfile.open(tmp_path / "a") as archive:
        assert len(archive.getnames()) == len(files) == 3


def test_a_gzip_layer_of_many_parts_is_unpacked(tmp_path: Path) -> None:
    noise = bytes(n * n * 2654435761 >> 11 & 255 for n in range(400_000))
    made = make_image(ImageSpec((LayerSpec((File("a", noise),)), LayerSpec((File("b"),), compression="none"))))
    assert len(made.layers[0].blob) > 200_000
    files = store(tmp_path, made)
    assert files[f"{made.layers[0].diff_id.hex}.tar"] == made.layers[0].tar


def test_bytes_depend_on_the_image_alone(tmp_path: Path) -> None:
    for compressions in (("gzip",), ("gzip", "zstd")):
        made = image(*compressions)
        for name in ("a", "b"):
            DockerArchiveSink(tmp_path / name).store(as_image(made, base=MemorySource(made)), "x:y")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_one_platform_only(tmp_path: Path) -> None:
    spec = ImageSpec((LayerSpec((File("a"),)),))
    with pytest.raises(InputError, match="one platform") as caught:
        DockerArchiveSink(tmp_path / "a").store(as_image(make_index(IndexSpec((spec, spec)))))
    assert caught.value.code == "oci.several-platforms"
    assert "--platform" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []
    made = make_index(IndexSpec((spec,)))
    result = DockerArchiveSink(tmp_path / "a").store(as_image(made), "x:y")
    assert result.digest == made.images[0].digest
    assert result.reference == f"docker-archive:{tmp_path}/a:x:y"


@pytest.mark.parametrize("name", ["Bad", "a b", f"x@sha256:{'0' * 64}", ":tag"])
def test_bad_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        DockerArchiveSink(tmp_path / "a").store(as_image(image("gzip")), name)
    assert list(tmp_path.iterdir()) == []


def lying(made: MadeImage, data: bytes, media_type: str) -> Any:
    """The image with its lowest layer's stored bytes replaced, and its digest with them."""
    value = json.loads(made.raw)
    value["layers"][0] |= {"digest": str(Digest.of(data)), "size": len(data), "mediaType": media_type}
    whole = as_image(made)
    descriptor = replace(
        made.layers[0].descriptor, digest=Digest.of(data), size=len(data), media_type=media_type, raw={}
    )
    own = LocalBlob(descriptor, lambda: io.BytesIO(data))
    return replace(whole, top=replace(whole.top, raw=json.dumps(value).encode()), own=(own, *whole.own[1:]))


def test_what_a_layer_claims_is_checked(tmp_path: Path) -> None:
    made = image("none", "none")
    tar, zstd, gz = made.layers[0].tar, image("zstd").layers[0].blob, image("gzip").layers[0].blob
    for data, media_type, code in [
        (tar + b"x", mt.OCI_LAYER, "content.digest-mismatch"),
        (gz[:-3], mt.OCI_LAYER_GZIP, "oci.bad-layer"),
        (gz[:-9] + b"?" + gz[-8:], mt.OCI_LAYER_GZIP, "oci.bad-layer"),
        (gz + b"junk", mt.OCI_LAYER_GZIP, "oci.bad-layer"),
        (gz + gz, mt.OCI_LAYER_GZIP, "content.digest-mismatch"),
        (b"", mt.OCI_LAYER_GZIP, "oci.bad-layer"),
        (zstd[:-3], mt.OCI_LAYER_ZSTD, "content.digest-mismatch"),
        (zstd + b"junk", mt.OCI_LAYER_ZSTD, "oci.bad-layer"),
        (b"no zstd at all", mt.OCI_LAYER_ZSTD, "oci.bad-layer"),
    ]:
        with pytest.raises(RefusedError) as caught:
            DockerArchiveSink(tmp_path / "a").store(lying(made, data, media_type))
        assert caught.value.code == code
        assert list(tmp_path.iterdir()) == []


def test_layers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagebuild.oci.docker_image.GIGABYTE", 1000)
    monkeypatch.setattr("imagebuild.oci.docker_image.RATIO", 1)
    made = make_image(ImageSpec((LayerSpec((File("a", bytes(100_000)),), compression="zstd"),)))
    with pytest.raises(RefusedError) as caught:
        DockerArchiveSink(tmp_path / "a").store(as_image(made))
    assert caught.value.code == "oci.layer-too-large"


def test_a_missing_base_layer_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        DockerArchiveSink(tmp_path / "a").store(as_image(image("gzip", "gzip")))
    assert list(tmp_path.iterdir()) == []
