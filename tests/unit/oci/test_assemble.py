"""The documents of a new image: the base's text, and exactly what we add."""

import json
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.assemble import derive_index, derive_manifest
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import LAYER_LIMIT, ImageConfig, Index, Manifest
from imagebuild.oci.platform import Platform
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.images import (
    File,
    ImageSpec,
    IndexSpec,
    LayerSpec,
    MadeImage,
    make_image,
    make_index,
    make_layer,
)
from imagebuild.testing.memory import MemorySource

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
CREATED = 1_800_000_000
STAMP = "2027-01-15T08:00:00Z"
LAYERS = (LayerSpec((File("a"),), created_by="one"), LayerSpec((File("b"),), created_by="two"))


def new_layer(name: str, family: mt.Family = mt.OCI, **more: Any) -> tuple[Descriptor, Digest, str]:
    made = make_layer(LayerSpec((File(name),), **more), family)
    return made.descriptor, made.diff_id, f"imagebuild: {name}"


def parts(made: MadeImage) -> tuple[Manifest, ImageConfig]:
    manifest = Manifest.parse(made.raw, made.descriptor.media_type)
    return manifest, ImageConfig.parse(made.blobs[manifest.config.digest])


def parsed(manifest_raw: str) -> tuple[Manifest, ImageConfig]:
    config = '{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}}'
    text = manifest_raw.replace("@CONFIG@", f'"sha256:{Digest.of(config.encode()).hex}","size":{len(config)}')
    return Manifest.parse(text.encode(), mt.OCI_MANIFEST), ImageConfig.parse(config.encode())


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "docker"])
def test_layers_go_on_top_and_the_rest_stays(family: mt.Family) -> None:
    manifest, config = parts(make_image(ImageSpec(LAYERS, family=family)))
    layer = new_layer("new", family)
    config_raw, manifest_raw = derive_manifest(manifest, config, [layer], created=CREATED)
    new, new_config = Manifest.parse(manifest_raw, family.manifest), ImageConfig.parse(config_raw)
    assert new.layers == (*manifest.layers, layer[0])
    assert (new.config.media_type, new.config.digest, new.config.size) == (
        family.config,
        Digest.of(config_raw),
        len(config_raw),
    )
    assert new_config.diff_ids == (*config.diff_ids, layer[1])
    assert new_config.value["history"] == [
        *config.value["history"],
        {"created": STAMP, "created_by": "imagebuild: new"},
    ]
    assert new_config.created == STAMP
    assert new_config.value["config"] == config.value["config"]


def test_the_base_config_survives_key_by_key() -> None:
    extra = {
        "x-vendor": {"z": 1, "a": [True, None]},
        "config": {
            "Healthcheck": {"StartInterval": 5000000000, "Test": ["CMD"]},
            "Zed": 1,
            "Env": ["A=1"],
            "Cmd": ["x"],
        },
    }
    manifest, base = parts(make_image(ImageSpec(LAYERS, extra_config=extra)))
    text = base.raw.replace(b"5000000000", b"5e9").replace(b'"z":1', b'"z":1.10')
    base = ImageConfig.parse(text)
    config_raw, _ = derive_manifest(manifest, base, [], created=CREATED)
    assert config_raw == text.replace(base.created.encode() if base.created else b"?", STAMP.encode(), 1)
    config_raw, _ = derive_manifest(manifest, base, [new_layer("n")], created=CREATED, env=["A=2"], labels={"k": "v"})
    section = json.loads(config_raw)["config"]
    assert list(section) == ["Healthcheck", "Zed", "Env", "Cmd", "Labels"]
    assert section["Env"] == ["A=2"]
    assert b'"StartInterval":5e9' in config_raw
    assert b'"z":1.10' in config_raw


def test_the_base_manifest_survives_key_by_key() -> None:
    manifest, config = parsed(
        f'{{"x-first":[1.50],"layers":[],"annotations":{{"z":"1","a":"2"}},"config":{{"y":1,"digest":@CONFIG@,"mediaType":'
        f'"{mt.OCI_CONFIG}","data":"AA==","annotations":{{"k":"v"}}}},"schemaVersion":2}}'
    )
    new = new_layer("n")
    config_raw, raw = derive_manifest(manifest, config, [new], created=CREATED, annotations={"m": "3", "a": "4"})
    expected = (
        f'{{"x-first":[1.50],"layers":[{json.dumps(new[0].to_json(), separators=(",", ":"))}],'
        f'"annotations":{{"z":"1","a":"4","m":"3"}},"config":{{"y":1,"digest":"{Digest.of(config_raw)}","size":'
        f'{len(config_raw)},"mediaType":"{mt.OCI_CONFIG}","annotations":{{"k":"v"}}}},"schemaVersion":2}}'
    )
    assert raw.decode() == expected


def test_base_layer_descriptors_are_verbatim() -> None:
    spec = LayerSpec((File("a"),), annotations={"z": "1", "a": "2"})
    made = make_image(ImageSpec((spec,)))
    text = made.raw.replace(b'"layers":[{', b'"layers":[{"x-vendor":1e3,"urls":["u"],')
    manifest, (_, config) = Manifest.parse(text, mt.OCI_MANIFEST), parts(made)
    _, raw = derive_manifest(manifest, config, [new_layer("n")], created=CREATED)
    verbatim = text[text.index(b'"layers":[') + 10 : text.index(b"]", text.index(b'"annotations"'))]
    assert b'"layers":[' + verbatim + b',{"mediaType"' in raw


@pytest.mark.parametrize("kind", ["full", "missing", "null", "short", "all-empty", "with-empty"])
def test_no_layer_is_lost_whatever_the_history(kind: Any) -> None:
    manifest, config = parts(make_image(ImageSpec(LAYERS, history=kind)))
    layers = [new_layer("x"), new_layer("y")]
    config_raw, manifest_raw = derive_manifest(manifest, config, layers, created=CREATED)
    new, new_config = Manifest.parse(manifest_raw, mt.OCI_MANIFEST), ImageConfig.parse(config_raw)
    assert len(new.layers) == len(new_config.diff_ids) == 4
    assert new_config.value["history"][:-2] == (config.value.get("history") or [])
    assert [line.created_by for line in new_config.history[-2:]] == ["imagebuild: x", "imagebuild: y"]
    assert not any(line.empty_layer for line in new_config.history[-2:])


def test_env_and_labels_of_a_config_without_section() -> None:
    manifest, config = parts(make_image(ImageSpec(LAYERS, extra_config={"config": None})))
    config_raw, _ = derive_manifest(manifest, config, [], created=CREATED, env=["A=1"], labels={"b": "2", "a": "1"})
    assert json.loads(config_raw)["config"] == {"Env": ["A=1"], "Labels": {"a": "1", "b": "2"}}
    config_raw, _ = derive_manifest(manifest, config, [], created=CREATED, env=["A=1"])
    assert json.loads(config_raw)["config"] == {"Env": ["A=1"]}
    config_raw, _ = derive_manifest(manifest, config, [], created=CREATED, env=[])
    assert json.loads(config_raw)["config"] is None


def test_no_layer_no_history() -> None:
    manifest, config = parts(make_image(ImageSpec(LAYERS, history="missing")))
    config_raw, _ = derive_manifest(manifest, config, [], created=CREATED)
    assert "history" not in json.loads(config_raw)


def test_labels_keep_their_place() -> None:
    manifest, config = parts(make_image(ImageSpec(LAYERS, config={"Labels": {"z": "1", "b": "2"}})))
    config_raw, _ = derive_manifest(manifest, config, [], created=CREATED, labels={"b": "3", "c": "4", "a": "5"})
    labels = json.loads(config_raw)["config"]["Labels"]
    assert list(labels.items()) == [("z", "1"), ("b", "3"), ("a", "5"), ("c", "4")]


def test_one_family_throughout() -> None:
    docker = parts(make_image(ImageSpec(LAYERS, family=mt.DOCKER)))
    _, raw = derive_manifest(*docker, [new_layer("n", mt.DOCKER)], created=CREATED, annotations={"a": "b"})
    assert "annotations" not in json.loads(raw)
    assert b"opencontainers" not in raw
    oci = parts(make_image(ImageSpec(LAYERS)))
    for base, layer in [
        (docker, new_layer("n")),
        (docker, new_layer("n", mt.DOCKER, compression="zstd")),
        (docker, new_layer("n", mt.DOCKER, compression="none")),
        (docker, new_layer("n", mt.DOCKER, annotations={"a": "b"})),
        (docker, new_layer("n", mt.DOCKER, media_type=mt.OCI_LAYER)),
        (oci, new_layer("n", mt.DOCKER)),
        (oci, new_layer("n", media_type="text/plain")),
    ]:
        with pytest.raises(RefusedError) as caught:
            derive_manifest(*base, [layer], created=CREATED)
        assert caught.value.code == "oci.mixed-families"
    for compression in ("none", "gzip", "zstd", "stored"):
        layer = new_layer("n", compression=compression, annotations={"a": "b"})
        _, raw = derive_manifest(*oci, [layer], created=CREATED)
        assert json.loads(raw)["layers"][-1] == layer[0].to_json()


def test_limits() -> None:
    many = tuple(LayerSpec((File(str(n)),), compression="none") for n in range(LAYER_LIMIT - 1))
    manifest, config = parts(make_image(ImageSpec(many)))
    assert derive_manifest(manifest, config, [new_layer("x")], created=CREATED)
    with pytest.raises(RefusedError, match="128 layers") as caught:
        derive_manifest(manifest, config, [new_layer("x"), new_layer("y")], created=CREATED)
    assert caught.value.code == "oci.too-many-layers"
    small = parts(make_image(ImageSpec(LAYERS)))
    for more in ({"annotations": {"a": "x" * (4 << 20)}}, {"labels": {"a": "x" * (8 << 20)}}):
        with pytest.raises(RefusedError) as caught:
            derive_manifest(*small, [], created=CREATED, **more)
        assert caught.value.code == "oci.document-too-large"


def test_a_base_that_disagrees_with_itself_is_refused() -> None:
    manifest, _ = parts(make_image(ImageSpec(LAYERS)))
    _, config = parts(make_image(ImageSpec(LAYERS[:1])))
    with pytest.raises(RefusedError) as caught:
        derive_manifest(manifest, config, [], created=CREATED)
    assert caught.value.code == "oci.layer-count-mismatch"


def test_a_subject_is_not_inherited() -> None:
    about = make_image(ImageSpec(LAYERS)).descriptor.to_json()
    manifest, config = parts(make_image(ImageSpec(LAYERS, extra_manifest={"subject": about})))
    _, raw = derive_manifest(manifest, config, [], created=CREATED)
    assert "subject" not in json.loads(raw)


def test_nothing_of_the_base_is_changed_in_place() -> None:
    manifest, config = parts(make_image(ImageSpec(LAYERS, config={"Labels": {"a": "1"}})))
    before = repr((manifest.value, config.value))
    derive_manifest(manifest, config, [new_layer("n")], created=CREATED, env=["B=1"], labels={"a": "2"})
    assert repr((manifest.value, config.value)) == before


def derived(child: MadeImage, family: mt.Family = mt.OCI) -> Descriptor:
    _, raw = derive_manifest(*parts(child), [new_layer("n", family)], created=CREATED)
    return Descriptor(family.manifest, Digest.of(raw), len(raw))


def test_index_keeps_the_children_that_were_built_and_their_keys() -> None:
    spec = IndexSpec(
        (ImageSpec(LAYERS), ImageSpec(LAYERS, ARM64), ImageSpec(LAYERS, Platform("linux", "s390x"))),
        attestations=True,
        child={"x-vendor": 1, "annotations": {"k": "v"}},
        platform={"os.version": "10.0", "features": ["f"]},
        annotations={"z": "1"},
    )
    base = make_index(spec)
    index = Index.parse(base.raw, mt.OCI_INDEX)
    replaced = {image.digest: derived(image) for image in base.images[:2]}
    value = json.loads(derive_index(index, replaced, {"a": "2"}))
    assert list(value) == ["schemaVersion", "mediaType", "manifests", "annotations"]
    assert value["annotations"] == {"z": "1", "a": "2"}
    assert len(value["manifests"]) == 2
    for child, image in zip(value["manifests"], base.images, strict=False):
        new = replaced[image.digest]
        old = json.loads(base.raw)["manifests"][base.images.index(image)]
        assert child == {**old, "digest": str(new.digest), "size": new.size}
        assert list(child) == list(old)


def test_docker_list_gets_no_annotations_and_no_other_types() -> None:
    base = make_index(IndexSpec((ImageSpec(LAYERS, family=mt.DOCKER),), family=mt.DOCKER))
    index = Index.parse(base.raw, mt.DOCKER_INDEX)
    new = derived(base.images[0], mt.DOCKER)
    raw = derive_index(index, {base.images[0].digest: new}, {"a": "b"})
    assert "annotations" not in json.loads(raw)
    assert b"opencontainers" not in raw
    with pytest.raises(RefusedError) as caught:
        derive_index(index, {base.images[0].digest: Descriptor(mt.OCI_MANIFEST, new.digest, new.size)})
    assert caught.value.code == "oci.mixed-families"


def test_inner_indexes_are_flattened() -> None:
    inner = make_index(IndexSpec((ImageSpec(LAYERS, ARM64), ImageSpec(LAYERS))))
    outer = make_index(IndexSpec((ImageSpec(LAYERS),), attestations=True, extra_children=(inner.descriptor.to_json(),)))
    source = MemorySource(outer)
    source.blobs.update(inner.blobs)
    tree = read_image_tree(source, None)
    assert tree.index is not None
    replaced = {
        child.descriptor.digest: derived(image)
        for child, image in zip(tree.children.values(), (outer.images[0], inner.images[0]), strict=True)
    }
    value = json.loads(derive_index(tree.index, replaced, nested=tree.nested))
    assert [child["digest"] for child in value["manifests"]] == [str(new.digest) for new in replaced.values()]


def test_replaced_must_be_children() -> None:
    base = make_index(IndexSpec((ImageSpec(LAYERS),)))
    index = Index.parse(base.raw, mt.OCI_INDEX)
    for replaced in ({}, {Digest.of(b"?"): base.images[0].descriptor}):
        with pytest.raises(ValueError, match="children"):
            derive_index(index, replaced)
