"""Reading an image whole, and what is refused on the way."""

import dataclasses
import json
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.platform import Platform
from imagebuild.oci.tree import NESTED_LIMIT, read_image_tree
from imagebuild.testing.images import (
    File,
    ImageSpec,
    IndexSpec,
    LayerSpec,
    MadeImage,
    make_artifact,
    make_image,
    make_index,
)
from imagebuild.testing.memory import MemorySource

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
LAYERS = (LayerSpec((File("a"),)), LayerSpec((File("b"),)))


def spec(platform: Platform = AMD64, **more: Any) -> ImageSpec:
    return ImageSpec(LAYERS, platform, **more)


TWO = IndexSpec((spec(), spec(ARM64)), attestations=True)


def single_document(media_type: str, value: Any, *others: MadeImage) -> MadeImage:
    raw = json.dumps(value).encode()
    blobs = {Digest.of(raw): raw}
    for other in others:
        blobs |= other.blobs
    return MadeImage(Descriptor(media_type, Digest.of(raw), len(raw)), raw, blobs)


def index_of(*children: MadeImage) -> MadeImage:
    value = {"schemaVersion": 2, "mediaType": mt.OCI_INDEX, "manifests": [c.descriptor.to_json() for c in children]}
    return single_document(mt.OCI_INDEX, value, *children)


def refusal(made: MadeImage, platforms: list[Platform] | None = None) -> ImagebuildError:
    with pytest.raises(ImagebuildError) as caught:
        read_image_tree(MemorySource(made), None, platforms)
    return caught.value


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_single_image(family: mt.Family) -> None:
    made = make_image(spec(family=family))
    tree = read_image_tree(MemorySource(made), None)
    assert (tree.index, tree.attestations, tree.others) == (None, (), ())
    descriptor, manifest, config = tree.children[AMD64]
    assert (descriptor, manifest.raw) == (made.descriptor, made.raw)
    assert config.diff_ids == tuple(layer.diff_id for layer in made.layers)


def test_single_image_of_the_wanted_platform() -> None:
    assert list(read_image_tree(MemorySource(make_image(spec())), None, [AMD64]).children) == [AMD64]
    narrow = make_image(spec(Platform("linux", "amd64", "v3")))
    assert list(read_image_tree(MemorySource(narrow), None, [AMD64]).children) == [AMD64]
    assert list(read_image_tree(MemorySource(narrow), None).children) == [Platform("linux", "amd64", "v3")]


def test_index_without_a_wish_is_read_whole() -> None:
    made = make_index(TWO)
    tree = read_image_tree(MemorySource(made), None)
    assert list(tree.children) == [AMD64, ARM64]
    assert [child.manifest.raw for child in tree.children.values()] == [image.raw for image in made.images]
    assert tree.index is not None
    assert tree.index.raw == made.raw
    assert [d.annotations["vnd.docker.reference.digest"] for d in tree.attestations] == [
        str(image.digest) for image in made.images
    ]
    assert tree.others == ()


def test_only_what_is_wanted_is_read() -> None:
    made = make_index(TWO)
    source = MemorySource(made)
    tree = read_image_tree(source, None, [ARM64])
    assert list(tree.children) == [ARM64]
    assert [d.digest for d in tree.others] == [made.images[0].digest]
    assert source.reads == [made.digest, made.images[1].digest, tree.children[ARM64].manifest.config.digest]


def test_by_digest_and_by_descriptor() -> None:
    made = make_index(TWO)
    source = MemorySource(made)
    assert list(read_image_tree(source, made.digest).children) == [AMD64, ARM64]
    assert list(read_image_tree(source, made.images[1].digest).children) == [ARM64]
    assert list(read_image_tree(source, made.images[1].descriptor).children) == [ARM64]


@pytest.mark.parametrize(("listed", "own"), [("", "v8"), ("v8", ""), ("", "")])
def test_a_variant_may_be_absent_on_one_side(listed: str, own: str) -> None:
    image = dataclasses.replace(spec(ARM64), extra_config={"variant": own} if own else {})
    made = make_index(IndexSpec((image,), platform={"variant": listed} if listed else {}))
    assert list(read_image_tree(MemorySource(made), None, [ARM64]).children) == [ARM64]


def test_platform_of_index_and_config_must_agree() -> None:
    made = make_index(IndexSpec((spec(),), platform={"architecture": "arm64"}))
    assert refusal(made).code == "oci.platform-mismatch"
    nowhere = make_image(spec(extra_config={"os": ""}))
    with pytest.raises(RefusedError, match="names no platform") as caught:
        read_image_tree(MemorySource(nowhere), nowhere.digest)
    assert (caught.value.code, caught.value.found) == ("oci.platform-mismatch", "amd64")


def test_wanted_platforms_must_be_there() -> None:
    error = refusal(make_index(TWO), [Platform("linux", "s390x"), AMD64])
    assert (error.code, error.expected) == ("oci.platform-missing", "linux/s390x")
    assert error.found == "linux/amd64, linux/arm64"
    assert refusal(make_image(spec()), [ARM64]).code == "oci.platform-missing"
    assert refusal(make_image(spec()), [AMD64, ARM64]).code == "oci.platform-missing"


def test_a_child_without_platform_is_not_taken_for_any() -> None:
    nameless = make_index(IndexSpec((spec(),), platforms=False))
    for platforms in (None, [AMD64]):
        error = refusal(nameless, platforms)
        assert error.code == "oci.platform-missing"
        assert "1 without platform" in (error.found or "")
    child = nameless.images[0].descriptor
    bare = {"mediaType": child.media_type, "digest": str(child.digest), "size": child.size}
    made = make_index(IndexSpec((spec(ARM64),), extra_children=(bare,)))
    source = MemorySource(made)
    tree = read_image_tree(source, None)
    assert list(tree.children) == [ARM64]
    assert [d.digest for d in tree.others] == [child.digest]


def test_two_images_for_one_platform_are_ambiguous() -> None:
    other = dataclasses.replace(spec(), extra_config={"author": "x"})
    assert refusal(make_index(IndexSpec((spec(), other)))).code == "oci.ambiguous-platform"
    assert list(read_image_tree(MemorySource(make_index(IndexSpec((spec(), spec())))), None).children) == [AMD64]
    variants = IndexSpec((spec(Platform("linux", "amd64", "v2")), spec(Platform("linux", "amd64", "v3"))))
    assert refusal(make_index(variants), [AMD64]).code == "oci.ambiguous-platform"
    exact = IndexSpec((spec(Platform("linux", "amd64", "v2")), other))
    assert list(read_image_tree(MemorySource(make_index(exact)), None, [AMD64]).children) == [AMD64]


def test_an_index_in_an_index() -> None:
    inner = make_index(IndexSpec((spec(ARM64),)))
    source = MemorySource(index_of(make_image(spec()), inner, inner))
    tree = read_image_tree(source, None)
    assert list(tree.children) == [AMD64, ARM64]
    assert list(tree.nested) == [inner.digest]
    assert source.reads.count(inner.digest) == 1
    assert refusal(index_of(index_of(inner))).code == "oci.index-too-deep"


def test_many_inner_indexes_are_refused() -> None:
    inner = [
        single_document(mt.OCI_INDEX, {"schemaVersion": 2, "manifests": [], "n": n}) for n in range(NESTED_LIMIT + 1)
    ]
    assert refusal(index_of(*inner)).code == "oci.index-too-deep"


def test_artifacts_are_no_images() -> None:
    image = make_image(spec())
    artifact = make_artifact(image.descriptor)
    assert refusal(artifact).code == "oci.not-an-image"
    tree = read_image_tree(MemorySource(index_of(image, artifact)), None)
    assert [d.digest for d in tree.attestations] == [artifact.digest]
    error = refusal(make_image(spec(extra_manifest={"artifactType": "x/y"})))
    assert (error.code, error.found) == ("oci.not-an-image", "x/y")
    chart = {"mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": str(image.digest), "size": 1}
    error = refusal(make_image(ImageSpec((), extra_manifest={"config": chart})))
    assert (error.code, error.found) == ("oci.not-an-image", chart["mediaType"])


def test_an_index_that_is_an_artifact_is_not_opened() -> None:
    image, listed = make_image(spec()), make_index(TWO)
    child = {**listed.descriptor.to_json(), "artifactType": "x/y"}
    source = MemorySource(make_index(IndexSpec((spec(),), extra_children=(child,))))
    tree = read_image_tree(source, None)
    assert list(tree.children) == [AMD64]
    assert [d.digest for d in tree.attestations] == [listed.digest]
    assert image.digest in source.reads
    assert listed.digest not in source.reads


def test_half_a_platform_is_none() -> None:
    half = make_index(IndexSpec((spec(),), platform={"architecture": ""}, extra_children=()))
    assert refusal(half).code == "oci.platform-missing"


def test_unreadable_types_are_refused_by_name() -> None:
    old = "application/vnd.docker.distribution.manifest.v1+prettyjws"
    assert refusal(single_document(old, {"schemaVersion": 1, "mediaType": old})).found == old
    helm = single_document("application/vnd.x+json", {"schemaVersion": 2})
    assert refusal(helm).found == "application/vnd.x+json"
    layer = LayerSpec((File("a"),), media_type="application/vnd.in-toto+json")
    assert refusal(make_image(ImageSpec((layer,)))).code == "oci.unknown-layer-type"


def test_each_layer_needs_its_diff_id() -> None:
    rootfs = {"type": "layers", "diff_ids": []}
    assert refusal(make_image(spec(extra_config={"rootfs": rootfs}))).code == "oci.layer-count-mismatch"


def test_the_childs_type_is_the_word_of_the_index() -> None:
    made = make_index(IndexSpec((spec(),), child={"mediaType": mt.DOCKER_MANIFEST}))
    assert refusal(made).code == "oci.media-type-mismatch"


def test_what_a_server_says_of_the_type_decides_nothing() -> None:
    source = MemorySource(make_index(TWO))
    source.read_document = lambda digest, _=None: (source.blobs[digest], "text/html")  # type: ignore[method-assign]
    assert list(read_image_tree(source, None).children) == [AMD64, ARM64]


def test_sizes_are_checked() -> None:
    assert refusal(make_index(IndexSpec((spec(),), child={"size": 5}))).code == "content.size-mismatch"
    made = make_image(spec())
    manifest = json.loads(made.raw)
    manifest["config"]["size"] = 9 << 20
    assert refusal(single_document(mt.OCI_MANIFEST, manifest, made)).code == "oci.document-too-large"
    manifest["config"]["size"] = 3
    assert refusal(single_document(mt.OCI_MANIFEST, manifest, made)).code == "content.size-mismatch"


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b" ", lambda b: b"{}", lambda b: b[:9] + b"?" + b[10:]]
)
@pytest.mark.parametrize("which", ["index", "manifest", "config"])
def test_every_document_is_checked(which: str, damage: Any) -> None:
    made = make_index(TWO)
    source = MemorySource(made)
    image = made.images[0]
    config = Digest.parse(json.loads(image.raw)["config"]["digest"])
    digest = {"index": made.digest, "manifest": image.digest, "config": config}[which]
    source.blobs[digest] = damage(source.blobs[digest])
    with pytest.raises(RefusedError) as caught:
        read_image_tree(source, None)
    assert caught.value.code in ("content.digest-mismatch", "content.size-mismatch")
