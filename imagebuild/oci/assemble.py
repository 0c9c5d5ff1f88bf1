"""The documents of a new image out of a base's, pure (images.md, first paragraph; Writing 9 to 11).

What is not ours is written back as it was: base descriptors verbatim, key order, number text and unknown keys kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.host.clock import rfc3339
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import CONFIG_LIMIT, LAYER_LIMIT, MANIFEST_LIMIT, ImageConfig, Index, Manifest
from imagebuild.oci.json_text import dump
from imagebuild.oci.tree import check_layer_count

NewLayer = tuple[Descriptor, Digest, str]
"""Descriptor, diff_id, and the text of its history entry (`created_by`)."""


def derive_manifest(
    base_manifest: Manifest,
    base_config: ImageConfig,
    new_layers: Sequence[NewLayer],
    *,
    created: int,
    env: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> tuple[bytes, bytes]:
    """Config bytes and manifest bytes of the base with layers on top.

    `created` is seconds since 1970; `env` the whole new `config.Env` (None leaves the base's); `labels` and
    `annotations` are set among the base's, ours last in sorted order where they are new.  Docker schema 2 manifests get
    no annotations.

    history gains exactly one entry a new layer, and the base's entries keep their values.  A base whose history is
    missing, short, or all `empty_layer` is not repaired: its layers are counted by `rootfs.diff_ids` and the manifest
    alone, so none is lost, and its history goes on saying as little as it said.

    A `subject` of the base is dropped: the new image is no statement about it.

    Raises RefusedError `oci.layer-count-mismatch`, `oci.too-many-layers`, `oci.document-too-large`,
    `oci.mixed-families`.
    """
    family = _family(base_manifest)
    check_layer_count(base_manifest, base_config, f"the base manifest {base_manifest.digest}")
    for descriptor, _, _ in new_layers:
        _check_family(descriptor, family)
    count = len(base_manifest.layers) + len(new_layers)
    if count > LAYER_LIMIT:
        raise RefusedError(
            "oci.too-many-layers",
            f"the image would have {count} layers, more than engines can stack",
            expected=f"at most {LAYER_LIMIT}",
            found=f"{len(base_manifest.layers)} of the base and {len(new_layers)} new",
            hint="take a base with fewer layers, or put the overlay's changes into one layer",
        )
    config_raw = _bounded(dump(_config(base_config, new_layers, created, env, labels or {})), CONFIG_LIMIT, "config")

    value = deepcopy(base_manifest.value)
    value.pop("subject", None)
    value["config"] = base_manifest.config.replaced(Digest.of(config_raw), len(config_raw))
    value["layers"] = [*(value["layers"] or []), *(descriptor.to_json() for descriptor, _, _ in new_layers)]
    if annotations and family.annotations:
        _set_texts(value, "annotations", annotations)
    return config_raw, _bounded(dump(value), MANIFEST_LIMIT, "manifest")


def derive_index(
    base_index: Index,
    replaced: Mapping[Digest, Descriptor],
    annotations: Mapping[str, str] | None = None,
    *,
    nested: Mapping[Digest, Index] | None = None,
) -> bytes:
    """Index bytes that list the new manifests in the places of those of the base.

    `replaced` maps the digest of a base child to the new manifest; the child's other keys (platform with `os.version`
    and features, annotations) stay.  Children that are not in `replaced` (attestations of the old digests, platforms
    not asked for) are dropped.  Children of `nested` indexes (ImageTree.nested) take the nested index's place.
    A Docker manifest list gets no annotations.

    Raises RefusedError `oci.mixed-families` where a new manifest has another media type than the child it replaces, and
    `oci.document-too-large`; ValueError where something in `replaced` is not a child.
    """
    children: list[dict[str, Any]] = []
    used: set[Digest] = set()

    def take(index: Index) -> None:
        for child in index.manifests:
            new = replaced.get(child.digest)
            if new is not None:
                if new.media_type != child.media_type:
                    raise _mixed(new.media_type, child.media_type)
                if child.digest not in used:
                    children.append(child.replaced(new.digest, new.size))
                used.add(child.digest)
            elif nested and child.digest in nested:
                take(nested[child.digest])

    take(base_index)
    if not replaced or used != set(replaced):
        raise ValueError("replaced must name children of the index, at least one")
    value = deepcopy(base_index.value)
    value.pop("subject", None)
    value["manifests"] = children
    if annotations and _family(base_index).annotations:
        _set_texts(value, "annotations", annotations)
    return _bounded(dump(value), MANIFEST_LIMIT, "index")


def _config(
    base: ImageConfig,
    new_layers: Sequence[NewLayer],
    created: int,
    env: Sequence[str] | None,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    value = deepcopy(base.value)
    value["created"] = rfc3339(created)
    if (env is not None and list(env) != base.environment) or labels:
        if value.get("config") is None:
            value["config"] = {}
        if env is not None and list(env) != base.environment:
            value["config"]["Env"] = list(env)
        if labels:
            _set_texts(value["config"], "Labels", labels)
    rootfs = value["rootfs"]
    rootfs["diff_ids"] = [*(rootfs["diff_ids"] or []), *(str(diff_id) for _, diff_id, _ in new_layers)]
    if new_layers:
        ours = [{"created": rfc3339(created), "created_by": created_by} for _, _, created_by in new_layers]
        value["history"] = [*(value.get("history") or []), *ours]
    return value


def _set_texts(value: dict[str, Any], key: str, texts: Mapping[str, str]) -> None:
    found = value.get(key)
    if found is None:
        found = value[key] = {}
    for name in sorted(texts):
        found[name] = texts[name]


def _bounded(raw: bytes, limit: int, what: str) -> bytes:
    if len(raw) > limit:
        raise RefusedError(
            "oci.document-too-large",
            f"the new {what} would be too large for registries",
            expected=f"at most {limit} bytes",
            found=f"{len(raw)} bytes",
            hint="shorten labels and annotations, or take a base with a smaller document",
        )
    return raw


def _family(document: Manifest | Index) -> mt.Family:
    family = mt.family_of(document.media_type)
    if family is None:
        raise ValueError(f"no family for {document.media_type}")
    return family


def _check_family(descriptor: Descriptor, family: mt.Family) -> None:
    known = {family.layer_gzip, family.layer_zstd}
    if family is mt.OCI:
        known.add(mt.OCI_LAYER)
    if descriptor.media_type not in known:
        raise _mixed(descriptor.media_type, family.manifest)
    if descriptor.annotations and not family.annotations:
        raise RefusedError(
            "oci.mixed-families",
            f"the layer {descriptor.digest} carries annotations, which Docker schema 2 does not know",
            expected="no annotations",
            found=", ".join(sorted(descriptor.annotations)),
        )


def _mixed(found: str, beside: str) -> RefusedError:
    return RefusedError(
        "oci.mixed-families",
        "a blob of one family of media types would stand in a document of the other",
        expected=f"what goes with {beside}",
        found=found,
        hint="a Docker schema 2 base takes gzip layers only: choose gzip or stored compression",
    )
