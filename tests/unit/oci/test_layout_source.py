"""OCI layouts as sources."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.content.reader import read_verified
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.layout import LayoutSource, layout_current
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.images import (
    File,
    ImageSpec,
    IndexSpec,
    LayerSpec,
    MadeImage,
    make_artifact,
    make_image,
    make_index,
    write_layout,
)

ONE = make_image(ImageSpec((LayerSpec((File("a"),)),)))
OTHER = make_image(ImageSpec((LayerSpec((File("b"),)),)))
BOTH = make_index(
    IndexSpec((ImageSpec((LayerSpec((File("a"),)),)), ImageSpec((), Platform("linux", "arm64"))), attestations=True)
)
Images = dict[str | None, MadeImage]


def edit_index(folder: Path, change: Any) -> None:
    path = folder / "index.json"
    value = json.loads(path.read_bytes())
    change(value)
    path.write_bytes(json.dumps(value).encode())


def test_names_and_the_only_image(tmp_path: Path) -> None:
    source = LayoutSource(write_layout(tmp_path / "l", {"v1": ONE}))
    assert isinstance(source, ImageSource)
    assert source.location == f"oci:{tmp_path}/l"
    assert source.names() == ["v1"]
    assert source.resolve("v1").digest == source.resolve(None).digest == ONE.digest
    assert layout_current(tmp_path / "l", "v1") == ONE.digest


def test_a_missing_name_lists_those_there(tmp_path: Path) -> None:
    images: Images = {"v1": ONE, "v2": OTHER}
    source = LayoutSource(write_layout(tmp_path, images))
    with pytest.raises(RefusedError) as caught:
        source.resolve("v3")
    assert (caught.value.code, caught.value.found) == ("oci.not-found", "v1, v2")
    with pytest.raises(InputError) as ambiguous:
        source.resolve(None)
    assert (ambiguous.value.code, ambiguous.value.found) == ("oci.ambiguous-name", "v1, v2")
    assert layout_current(tmp_path, "v3") is None
    assert layout_current(tmp_path / "none", "v3") is None


def test_two_names_for_one_image_are_one_image(tmp_path: Path) -> None:
    images: Images = {"v1": ONE, "v2": ONE}
    assert LayoutSource(write_layout(tmp_path, images)).resolve(None).digest == ONE.digest


def test_one_name_for_two_images_is_ambiguous(tmp_path: Path) -> None:
    images: Images = {"v1": ONE, "v2": OTHER}
    write_layout(tmp_path, images)
    (tmp_path / "index.json").write_bytes((tmp_path / "index.json").read_bytes().replace(b'"v2"', b'"v1"'))
    with pytest.raises(InputError) as caught:
        LayoutSource(tmp_path).resolve("v1")
    assert caught.value.code == "oci.ambiguous-name"
    assert layout_current(tmp_path, "v1") is None


def test_an_entry_without_platform_is_an_image(tmp_path: Path) -> None:
    write_layout(tmp_path, ONE)
    edit_index(tmp_path, lambda value: value["manifests"][0].pop("platform"))
    assert LayoutSource(tmp_path).resolve(None).platform is None


def test_referrers_and_attestations_are_not_the_only_image(tmp_path: Path) -> None:
    artifact = make_artifact(ONE.descriptor)
    write_layout(tmp_path, {"x": BOTH, "sig": make_artifact(BOTH.descriptor), None: artifact})
    edit_index(tmp_path, lambda value: [entry.pop("artifactType", None) for entry in value["manifests"]])
    source = LayoutSource(tmp_path)
    assert source.resolve(None).digest == BOTH.digest
    edit_index(tmp_path, lambda value: value["manifests"].pop(0))
    with pytest.raises(RefusedError) as caught:
        source.resolve(None)
    assert caught.value.code == "oci.not-found"


def test_what_is_no_manifest_and_what_speaks_of_one_are_not_the_only_image(tmp_path: Path) -> None:
    write_layout(tmp_path, ONE)
    other = {"mediaType": "application/xml", "digest": str(Digest.of(b"x")), "size": 1}
    about = {**OTHER.descriptor.to_json(), "platform": {"os": "unknown", "architecture": "unknown"}}
    edit_index(tmp_path, lambda value: value["manifests"].extend([other, about]))
    assert LayoutSource(tmp_path).resolve(None).digest == ONE.digest


def test_an_artifact_without_subject_is_not_the_only_image(tmp_path: Path) -> None:
    artifact = make_image(ImageSpec((), extra_manifest={"artifactType": "x/y"}))
    images: Images = {"v": ONE, "a": artifact}
    assert LayoutSource(write_layout(tmp_path, images)).resolve(None).digest == ONE.digest


def test_an_image_about_an_image_is_not_the_only_image(tmp_path: Path) -> None:
    about = make_image(ImageSpec((), extra_manifest={"subject": ONE.descriptor.to_json()}))
    images: Images = {"v": ONE, "a": about}
    source = LayoutSource(write_layout(tmp_path, images))
    assert source.resolve(None).digest == ONE.digest
    assert [d.artifact_type for d in source.referrers(ONE.digest)] == [mt.OCI_CONFIG]


def test_an_absent_manifest_does_not_hide_the_others(tmp_path: Path) -> None:
    images: Images = {"v": ONE, "two": BOTH}
    source = LayoutSource(write_layout(tmp_path, images))
    source.blob_path(BOTH.digest).unlink()
    assert source.read_document(ONE.digest)[0] == ONE.raw
    with pytest.raises(InputError) as caught:
        source.resolve(None)
    assert caught.value.found == "v, two"
    edit_index(tmp_path, lambda value: value["manifests"].pop(0))
    assert source.resolve(None).digest == BOTH.digest


def test_manifests_listed_beside_their_index_are_part_of_it(tmp_path: Path) -> None:
    write_layout(tmp_path, BOTH)
    edit_index(tmp_path, lambda value: value["manifests"].extend(i.descriptor.to_json() for i in BOTH.images))
    assert LayoutSource(tmp_path).resolve(None).digest == BOTH.digest


def test_a_digest_pins_any_manifest_that_is_reachable(tmp_path: Path) -> None:
    images: Images = {"v": BOTH, "o": OTHER}
    source = LayoutSource(write_layout(tmp_path, images))
    for made in (BOTH, OTHER, *BOTH.images):
        assert source.read_document(made.digest) == (made.raw, made.descriptor.media_type)
        assert read_image_tree(source, made.digest).top.digest == made.digest
    for unlisted in (BOTH.layers[0].descriptor.digest, ONE.blobs.keys() - {ONE.digest}, Digest.of(b"?")):
        with pytest.raises(RefusedError) as caught:
            source.read_document(unlisted if isinstance(unlisted, Digest) else next(iter(unlisted)))
        assert caught.value.code == "oci.not-found"


def test_who_knows_the_type_needs_no_entry(tmp_path: Path) -> None:
    source = LayoutSource(write_layout(tmp_path, BOTH))
    edit_index(tmp_path, lambda value: value.update(manifests=[]))
    assert source.read_document(BOTH.images[0].digest, mt.OCI_MANIFEST)[0] == BOTH.images[0].raw
    with pytest.raises(RefusedError, match="lists no manifest"):
        source.read_document(BOTH.images[0].digest)


def test_unnamed_images_are_listed_by_digest(tmp_path: Path) -> None:
    write_layout(tmp_path, ONE)
    edit_index(tmp_path, lambda value: value["manifests"].append(OTHER.descriptor.to_json()))
    write_layout(tmp_path / "o", OTHER)
    (tmp_path / "o" / "blobs" / "sha256" / OTHER.digest.hex).rename(tmp_path / "blobs" / "sha256" / OTHER.digest.hex)
    with pytest.raises(InputError) as caught:
        LayoutSource(tmp_path).resolve(None)
    assert caught.value.found == f"@{ONE.digest}, @{OTHER.digest}"
    assert caught.value.hint == f"write oci:{tmp_path}:NAME or oci:{tmp_path}@sha256:…"
    assert "None" not in caught.value.message
    with pytest.raises(RefusedError, match="no image named 'v'"):
        LayoutSource(tmp_path).resolve("v")


def test_the_word_of_the_index_is_the_media_type(tmp_path: Path) -> None:
    bare = make_image(ImageSpec((), family=mt.DOCKER))
    write_layout(tmp_path, bare)
    assert LayoutSource(tmp_path).read_document(bare.digest)[1] == mt.DOCKER_MANIFEST


def test_blobs(tmp_path: Path) -> None:
    source = LayoutSource(write_layout(tmp_path, ONE))
    layer = ONE.layers[0]
    with source.open_blob(layer.descriptor) as stream:
        assert read_verified(stream, layer.descriptor.digest, layer.descriptor.size) == layer.blob
    assert source.has_blob(layer.descriptor)
    longer = Descriptor("a/b", layer.descriptor.digest, layer.descriptor.size + 1)
    assert not source.has_blob(longer)
    with pytest.raises(RefusedError) as caught:
        source.open_blob(longer, "layer 0")
    assert caught.value.code == "content.size-mismatch"


def test_a_sparse_layout_says_which_blob_is_missing(tmp_path: Path) -> None:
    source = LayoutSource(write_layout(tmp_path, ONE, sparse=True))
    assert read_image_tree(source, None).top.digest == ONE.digest
    layer = ONE.layers[0].descriptor
    assert not source.has_blob(layer)
    with pytest.raises(UnavailableError) as caught:
        source.open_blob(layer, "layer 0")
    assert (caught.value.code, caught.value.details) == ("oci.blob-missing", {"digest": str(layer.digest)})


def test_referrers(tmp_path: Path) -> None:
    first, second = make_artifact(ONE.descriptor, "application/a"), make_artifact(ONE.descriptor, "application/b")
    images: Images = {"v": ONE, "o": OTHER, "s1": first, "s2": second, "s3": make_artifact(OTHER.descriptor)}
    source = LayoutSource(write_layout(tmp_path, images))
    found = source.referrers(ONE.digest)
    assert [(d.digest, d.artifact_type) for d in found] == [
        (first.digest, "application/a"),
        (second.digest, "application/b"),
    ]
    assert found[0].annotations == {"made": "by a test"}
    assert source.referrers(Digest.of(b"?")) == []
    edit_index(tmp_path, lambda v: v["manifests"].append({"mediaType": "a/b", "digest": str(ONE.digest), "size": 1}))
    assert source.referrers(ONE.digest) == found


def test_referrers_of_the_tag_scheme(tmp_path: Path) -> None:
    artifact = make_artifact(ONE.descriptor)
    listed = make_index(IndexSpec((), extra_children=(artifact.descriptor.to_json(),)))
    images: Images = {"v": ONE, f"sha256-{ONE.digest.hex}": listed}
    source = LayoutSource(write_layout(tmp_path, images))
    assert [d.digest for d in source.referrers(ONE.digest)] == [artifact.digest]


def test_a_missing_referrer_is_not_no_referrer(tmp_path: Path) -> None:
    artifact = make_artifact(ONE.descriptor)
    images: Images = {"v": ONE, "s": artifact}
    source = LayoutSource(write_layout(tmp_path, images))
    source.blob_path(artifact.digest).unlink()
    with pytest.raises(UnavailableError):
        source.referrers(ONE.digest)


def test_umoci_and_go_write_null_for_an_empty_list(tmp_path: Path) -> None:
    write_layout(tmp_path, {})
    (tmp_path / "index.json").write_bytes(b'{"schemaVersion":2,"manifests":null}\n')
    source = LayoutSource(tmp_path)
    assert source.names() == []
    with pytest.raises(RefusedError) as caught:
        source.resolve(None)
    assert (caught.value.code, caught.value.found) == ("oci.not-found", "an empty layout")


@pytest.mark.parametrize("removed", ["oci-layout", "index.json", None])
def test_not_a_layout(tmp_path: Path, removed: str | None) -> None:
    if removed:
        write_layout(tmp_path / "l", ONE)
        (tmp_path / "l" / removed).unlink()
    for ask in (lambda s: s.resolve("v"), lambda s: s.read_document(ONE.digest), lambda s: s.referrers(ONE.digest)):
        with pytest.raises(InputError) as caught:
            ask(LayoutSource(tmp_path / "l"))
        assert caught.value.code == "oci.not-a-layout"


@pytest.mark.parametrize(
    ("marker", "code"),
    [
        (b"", "oci.bad-json"),
        (b"[]", "oci.not-a-layout"),
        (b"{}", "oci.not-a-layout"),
        (b'{"imageLayoutVersion":1}', "oci.not-a-layout"),
        (b'{"imageLayoutVersion":"2.0.0"}', "oci.unknown-layout-version"),
        (b" " * 5000, "oci.document-too-large"),
    ],
)
def test_the_marker_is_checked(tmp_path: Path, marker: bytes, code: str) -> None:
    write_layout(tmp_path, ONE)
    (tmp_path / "oci-layout").write_bytes(marker)
    with pytest.raises(ImagebuildError) as caught:
        LayoutSource(tmp_path).resolve(None)
    assert caught.value.code == code


def test_links_are_read_and_other_files_are_not(tmp_path: Path) -> None:
    source = LayoutSource(write_layout(tmp_path / "l", ONE))
    layer = ONE.layers[0].descriptor
    path = source.blob_path(layer.digest)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with source.open_blob(layer) as stream:
        assert stream.read() == ONE.layers[0].blob
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RefusedError) as caught:
        source.open_blob(layer)
    assert caught.value.code == "oci.not-a-file"
    assert not source.has_blob(layer)
    assert not source.has_blob(Descriptor("a/b", layer.digest, 0))
    (tmp_path / "l" / "index.json").unlink()
    (tmp_path / "l" / "index.json").mkdir()
    with pytest.raises(RefusedError, match="not a regular file"):
        source.resolve(None)
