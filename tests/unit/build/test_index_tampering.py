"""What verify finds in an index that was changed, and what it makes of an image without a lock."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.build.base_documents import load_base
from imagebuild.build.labels import BASE_DIGEST, CONTENT_ID
from imagebuild.build.verification import Verification
from imagebuild.build.verify_image import ImageVerifier, verify_claims
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.platform import Platform
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.images import File, ImageSpec, LayerSpec, MadeImage, make_image
from imagebuild.testing.memory import MemorySource

BOTH = ("linux/amd64", "linux/arm64")


class Built:
    """An index that was built, all of its blobs at hand."""

    def __init__(self, b: Any, folder: Path, *, complete: bool = True) -> None:
        self.bench = b
        self.lock = b.lock(complete=complete).lock
        self.image = b.build(self.lock, folder)
        self.blobs = dict(b.source.blobs)
        for document in (self.image.top, *self.image.manifests, *self.image.configs):
            self.blobs[document.descriptor.digest] = document.raw
        for blob in self.image.own:
            with blob.open() as stream:
                self.blobs[blob.descriptor.digest] = stream.read()

    def source(self, top: Descriptor, raw: bytes) -> MemorySource:
        return MemorySource(MadeImage(top, raw, {**self.blobs, top.digest: raw}))

    def untouched(self) -> MemorySource:
        return self.source(self.image.top.descriptor, self.image.top.raw)

    def changed(self, change: Callable[[dict[str, Any]], Any]) -> MemorySource:
        value = json.loads(self.image.top.raw)
        change(value)
        raw = json.dumps(value).encode()
        return self.source(Descriptor(self.image.top.descriptor.media_type, Digest.of(raw), len(raw)), raw)

    def verify(self, source: MemorySource, name: Digest | None = None) -> Verification:
        lock = self.lock
        base = load_base(lock.inputs, self.bench.contents, lambda: pytest.fail("the base is not to be asked"))
        tree = read_image_tree(source, name)
        return ImageVerifier(lock, base).verify("memory:x", source, tree)


@pytest.fixture
def built(bench: Any, tmp_path: Path) -> Callable[..., Built]:
    return lambda **of_base: Built(bench(**{"platforms": BOTH, **of_base}), tmp_path / "out")


def failures(found: Verification) -> dict[str, str]:
    return {check.code: check.message for check in found.checks if check.passed is False}


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_the_index_itself_passes(built: Any, family: mt.Family) -> None:
    b = built(family=family)
    assert failures(b.verify(b.untouched())) == {}
    assert b.verify(b.untouched()).passed is True


def test_each_platform_alone_passes_by_its_own_digest(built: Any) -> None:
    b = built()
    for platform in b.lock.result.platforms:
        found = b.verify(b.untouched(), platform.manifest)
        assert (found.passed, found.digest) == (True, platform.manifest)


def test_a_platform_that_was_taken_out(built: Any) -> None:
    b = built()
    found = failures(b.verify(b.changed(lambda index: index["manifests"].pop())))
    assert found["verify.platform"] == "the image has no linux/arm64"
    assert "verify.digest" in found


def test_a_platform_that_was_added(built: Any) -> None:
    b = built()
    other = make_image(ImageSpec((LayerSpec((File("x"),)),), platform=Platform("linux", "s390x")))
    b.blobs |= other.blobs
    found = failures(b.verify(b.changed(lambda index: index["manifests"].append(other.descriptor.to_json()))))
    assert "linux/s390x" in found["verify.platform"] or "not in the lock" in found["verify.platform"]


def test_a_child_that_is_the_bases_own(built: Any) -> None:
    """The index still lists two images, and one of them was never patched."""
    b = built()
    base = json.loads(b.bench.space.base.raw)["manifests"][1]
    found = failures(b.verify(b.changed(lambda index: index["manifests"].__setitem__(1, base))))
    assert found["verify.layer-count"].endswith("(linux/arm64)")
    assert "verify.config" in found


def test_children_whose_platforms_were_exchanged(built: Any) -> None:
    b = built()

    def exchange(index: dict[str, Any]) -> None:
        first, second = index["manifests"]
        first["platform"], second["platform"] = second["platform"], first["platform"]

    with pytest.raises(RefusedError, match="platform"):
        b.verify(b.changed(exchange))


def test_annotations_of_the_index(built: Any) -> None:
    b = built()
    found = failures(b.verify(b.changed(lambda index: index["annotations"].update({CONTENT_ID: "sha256:" + "0" * 64}))))
    assert CONTENT_ID in found["verify.annotations"]


def test_a_layer_that_both_platforms_share_is_read_once(built: Any) -> None:
    b = built()
    source = b.untouched()
    b.verify(source)
    layer = b.lock.result.platforms[0].layers[0].digest
    assert layer == b.lock.result.platforms[1].layers[0].digest
    assert source.reads.count(layer) == 1


def test_what_was_not_proven_when_locking_is_shown(bench: Any, tmp_path: Path) -> None:
    made = Built(bench(), tmp_path / "out", complete=False)
    found = made.verify(made.untouched())
    unproven = [check for check in found.checks if check.code == "verify.unproven"]
    assert unproven
    assert {check.word for check in unproven} == {"not-checked"}
    assert found.passed is True


def claims(b: Built, source: MemorySource, base: MemorySource | None) -> Verification:
    def base_tree(name: str, digest: Digest) -> Any:
        if base is None:
            raise UnavailableError("registry.unreachable", "no network here")
        return read_image_tree(base, digest)

    return verify_claims("memory:x", source, read_image_tree(source, None), base_tree)


def test_labels_are_only_claims(built: Any) -> None:
    b = built()
    found = claims(b, b.untouched(), b.bench.source)
    words = {check.code: check.passed for check in found.checks}
    assert words == {"verify.base-prefix": True, "verify.diff-id": True, "verify.content-id": None}
    assert found.passed is None


def test_a_base_that_cannot_be_read_is_not_checked(built: Any) -> None:
    b = built()
    found = claims(b, b.untouched(), None)
    assert [check.passed for check in found.checks if check.code == "verify.base-prefix"] == [None, None]


def test_an_image_without_labels_claims_nothing(built: Any) -> None:
    b = built()
    plain = MemorySource(b.bench.space.base)
    found = claims(b, plain, None)
    assert {check.code for check in found.checks} == {"verify.claim"}
    assert found.passed is None


def test_a_false_claim_about_the_base(built: Any) -> None:
    """The label names a base whose layers are others."""
    b = built()
    other = make_image(ImageSpec((LayerSpec((File("other"),)),)))
    manifest = json.loads(b.image.manifests[0].raw)
    config = json.loads(b.image.configs[0].raw)
    config["config"]["Labels"][BASE_DIGEST] = str(other.digest)
    raw_config = json.dumps(config).encode()
    manifest["config"] |= {"digest": str(Digest.of(raw_config)), "size": len(raw_config)}
    raw = json.dumps(manifest).encode()
    b.blobs[Digest.of(raw_config)] = raw_config
    source = b.source(Descriptor(manifest["mediaType"], Digest.of(raw), len(raw)), raw)
    found = claims(b, source, MemorySource(other))
    assert "verify.base-prefix" in failures(found)
    assert found.passed is False
