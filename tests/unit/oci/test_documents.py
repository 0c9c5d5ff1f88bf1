"""Manifest, index and config: one document, one reading."""

import json
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import (
    CONFIG_LIMIT,
    MANIFEST_LIMIT,
    HistoryEntry,
    ImageConfig,
    Index,
    Manifest,
    is_attestation,
    layer_compression,
)
from imagebuild.oci.platform import Platform

D = Digest.of(b"x")


def descriptor(media_type: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": str(D), "size": 1, **more}


def manifest(**more: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": mt.OCI_MANIFEST,
        "config": descriptor(mt.OCI_CONFIG),
        "layers": [descriptor(mt.OCI_LAYER)],
        **more,
    }


def index(**more: Any) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": mt.OCI_INDEX, "manifests": [descriptor(mt.OCI_MANIFEST)], **more}


def config(**more: Any) -> dict[str, Any]:
    return {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [str(D)]}, **more}


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key}


def test_manifest() -> None:
    data = raw(manifest(annotations={"a": "1"}, subject=descriptor(mt.OCI_MANIFEST), artifactType="x/y"))
    found = Manifest.parse(data, mt.OCI_MANIFEST)
    assert found.digest == Digest.of(data)
    assert found.raw == data
    assert [layer.media_type for layer in found.layers] == [mt.OCI_LAYER]
    assert found.subject is not None
    assert found.subject.digest == D
    assert (found.annotations, found.artifact_type) == ({"a": "1"}, "x/y")
    assert len({found, Manifest.parse(data, mt.OCI_MANIFEST)}) == 1


def test_manifest_without_a_word_of_its_own_and_with_gos_null() -> None:
    assert Manifest.parse(raw(without(manifest(layers=None), "mediaType")), mt.DOCKER_MANIFEST).layers == ()
    assert Index.parse(raw(without(index(manifests=None), "mediaType")), mt.OCI_INDEX).manifests == ()


def test_index() -> None:
    data = raw(index(annotations={"a": "1"}, subject=descriptor(mt.OCI_INDEX), artifactType="x/y"))
    found = Index.parse(data, mt.OCI_INDEX)
    assert (found.digest, found.annotations, found.artifact_type) == (Digest.of(data), {"a": "1"}, "x/y")
    assert found.subject is not None


@pytest.mark.parametrize(
    ("value", "media_type", "code"),
    [
        (manifest(), mt.DOCKER_MANIFEST, "oci.media-type-mismatch"),
        (manifest(mediaType=""), mt.OCI_MANIFEST, "oci.media-type-mismatch"),
        (manifest(mediaType=5), mt.OCI_MANIFEST, "oci.media-type-mismatch"),
        (manifest(manifests=[]), mt.OCI_MANIFEST, "oci.media-type-mismatch"),
        (manifest(), mt.OCI_INDEX, "oci.unknown-media-type"),
        (manifest(), "text/html", "oci.unknown-media-type"),
        (manifest(), "application/vnd.docker.distribution.manifest.v1+prettyjws", "oci.schema-1"),
        (manifest(schemaVersion=1), mt.OCI_MANIFEST, "oci.bad-document"),
        (manifest(schemaVersion=2.0), mt.OCI_MANIFEST, "oci.bad-document"),
        (manifest(schemaVersion="2"), mt.OCI_MANIFEST, "oci.bad-document"),
        (without(manifest(), "schemaVersion"), mt.OCI_MANIFEST, "oci.bad-document"),
        (without(manifest(), "config"), mt.OCI_MANIFEST, "oci.bad-descriptor"),
        (without(manifest(), "layers"), mt.OCI_MANIFEST, "oci.bad-document"),
        (manifest(layers={}), mt.OCI_MANIFEST, "oci.bad-document"),
        (manifest(layers=[{}]), mt.OCI_MANIFEST, "oci.bad-descriptor"),
        (manifest(subject=[]), mt.OCI_MANIFEST, "oci.bad-descriptor"),
        (manifest(annotations={"a": 1}), mt.OCI_MANIFEST, "oci.bad-document"),
        (manifest(artifactType=1), mt.OCI_MANIFEST, "oci.bad-document"),
        (manifest(Layers=[]), mt.OCI_MANIFEST, "oci.bad-document"),
        (manifest(CONFIG={}), mt.OCI_MANIFEST, "oci.bad-document"),
        ([], mt.OCI_MANIFEST, "oci.bad-document"),
        ("x", mt.OCI_MANIFEST, "oci.bad-document"),
    ],
)
def test_manifest_refused(value: Any, media_type: str, code: str) -> None:
    with pytest.raises(ImagebuildError) as caught:
        Manifest.parse(raw(value), media_type, "the manifest")
    assert caught.value.code == code
    assert caught.value.exit_code in (1, 2)


@pytest.mark.parametrize(
    ("value", "media_type", "code"),
    [
        (index(), mt.DOCKER_INDEX, "oci.media-type-mismatch"),
        (index(layers=[]), mt.OCI_INDEX, "oci.media-type-mismatch"),
        (index(config={}), mt.OCI_INDEX, "oci.media-type-mismatch"),
        (index(), mt.OCI_MANIFEST, "oci.unknown-media-type"),
        (index(schemaVersion=None), mt.OCI_INDEX, "oci.bad-document"),
        (without(index(), "manifests"), mt.OCI_INDEX, "oci.bad-document"),
        (index(manifests={}), mt.OCI_INDEX, "oci.bad-document"),
        (index(manifests=[None]), mt.OCI_INDEX, "oci.bad-descriptor"),
        (index(Manifests=[]), mt.OCI_INDEX, "oci.bad-document"),
        (index(annotations=[]), mt.OCI_INDEX, "oci.bad-document"),
    ],
)
def test_index_refused(value: Any, media_type: str, code: str) -> None:
    with pytest.raises(ImagebuildError) as caught:
        Index.parse(raw(value), media_type, "the index")
    assert caught.value.code == code


@pytest.mark.parametrize(("parse", "limit"), [(Manifest.parse, MANIFEST_LIMIT), (Index.parse, MANIFEST_LIMIT)])
def test_documents_are_bounded_before_they_are_parsed(parse: Any, limit: int) -> None:
    with pytest.raises(RefusedError) as caught:
        parse(b"[" * (limit + 1), mt.OCI_MANIFEST)
    assert caught.value.code == "oci.document-too-large"


def test_config() -> None:
    section = {"Env": ["A=1", "B="], "Labels": {"k": "v"}, "WorkingDir": "/w"}
    lines = [{"created_by": "a"}, {"created_by": "b", "empty_layer": True}, {}]
    found = ImageConfig.parse(raw(config(config=section, created="2020-01-01T00:00:00Z", history=lines)))
    assert found.platform == Platform("linux", "amd64")
    assert found.diff_ids == (D,)
    assert (found.environment, found.labels, found.working_dir) == (["A=1", "B="], {"k": "v"}, "/w")
    assert found.created == "2020-01-01T00:00:00Z"
    assert found.history == (HistoryEntry("a", False), HistoryEntry("b", True), HistoryEntry("", False))


@pytest.mark.parametrize("more", [{}, {"config": None, "history": None}, {"config": {"Env": None, "Labels": None}}])
def test_config_with_little_in_it(more: dict[str, Any]) -> None:
    found = ImageConfig.parse(raw(config(**more)))
    assert (found.environment, found.labels, found.working_dir) == ([], {}, "/")
    assert (found.created, found.history) == (None, ())


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        config(rootfs=None),
        config(rootfs={"type": "layers"}),
        config(rootfs={"type": "layers", "diff_ids": {}}),
        config(rootfs={"type": "layers", "diff_ids": [1]}),
        config(rootfs={"type": "layers", "diff_ids": ["x"]}),
        config(rootfs={"diff_ids": []}),
        config(rootfs={"type": "layers+base", "diff_ids": []}),
        config(rootfs={"type": "layers", "diff_ids": [], "Diff_IDs": []}),
        config(config=[]),
        config(config={"Env": {}}),
        config(config={"Env": [1]}),
        config(config={"env": []}),
        config(config={"Labels": []}),
        config(config={"Labels": {"a": None}}),
        config(config={"WorkingDir": 1}),
        config(history={}),
        config(history=[1]),
        config(history=[{"created_by": 1}]),
        config(os=1),
        config(RootFS={}),
    ],
)
def test_config_refused(value: Any) -> None:
    with pytest.raises(InputError):
        ImageConfig.parse(raw(value))


def test_config_is_bounded() -> None:
    with pytest.raises(RefusedError) as caught:
        ImageConfig.parse(b" " * (CONFIG_LIMIT + 1))
    assert caught.value.code == "oci.document-too-large"


@pytest.mark.parametrize(
    ("platform", "annotations", "artifact_type", "answer"),
    [
        (Platform("unknown", "unknown"), {}, None, True),
        (Platform("linux", "amd64"), {"vnd.docker.reference.type": "attestation-manifest"}, None, True),
        (None, {}, "application/spdx+json", True),
        (Platform("linux", "amd64"), {}, None, False),
        (Platform("windows", "amd64"), {}, None, False),
        (None, {}, None, False),
    ],
)
def test_is_attestation(platform: Any, annotations: Any, artifact_type: Any, answer: bool) -> None:
    assert is_attestation(Descriptor(mt.OCI_MANIFEST, D, 1, platform, annotations, artifact_type)) is answer


def test_layer_compression_goes_by_the_media_type() -> None:
    for media_type, word in mt.COMPRESSION.items():
        assert layer_compression(Descriptor(media_type, D, 1), "layer") == word
    with pytest.raises(RefusedError, match="layer 4") as caught:
        layer_compression(Descriptor("application/vnd.oci.image.layer.v1.tar+encrypted", D, 1), "layer 4")
    assert caught.value.code == "oci.unknown-layer-type"


def test_families_are_whole() -> None:
    for family in (mt.OCI, mt.DOCKER):
        assert mt.family_of(family.index) is mt.family_of(family.manifest) is family
        assert mt.COMPRESSION[family.layer_gzip] == "gzip"
    assert mt.family_of("text/plain") is None
    assert mt.DOCKER.layer_zstd is None
