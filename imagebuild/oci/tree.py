"""Reading an image whole: its index, and for each platform manifest and config (images.md, Reading 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from imagebuild.content.digest import Digest
from imagebuild.content.reader import read_verified
from imagebuild.errors import RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import (
    CONFIG_LIMIT,
    INDEX_DEPTH,
    ImageConfig,
    Index,
    Manifest,
    is_attestation,
    layer_compression,
)
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import ImageSource

NESTED_LIMIT = 16
"""Indexes inside an index at most."""


class Child(NamedTuple):
    """One platform's image as an index lists it (or alone): descriptor, manifest, config."""

    descriptor: Descriptor
    manifest: Manifest
    config: ImageConfig


@dataclass(frozen=True, slots=True)
class ImageTree:
    """What an image's documents say, all of them verified.

    `top` describes the index, or the manifest of a single image (`index` is None then).  `children` holds the wanted
    platforms in the index's order.  `nested` are the indexes that the index lists, by digest.  `attestations` are
    children that speak about images: after a change they would speak of another image, so nothing carries them over.
    `others` are images that were not read: of platforms not asked for, or of no named platform (which is never taken
    for linux/amd64).
    """

    top: Descriptor
    index: Index | None
    children: Mapping[Platform, Child]
    nested: Mapping[Digest, Index] = field(default_factory=dict)
    attestations: tuple[Descriptor, ...] = ()
    others: tuple[Descriptor, ...] = ()


def fetch_document(source: ImageSource, descriptor: Descriptor, what: str) -> bytes:
    """The raw manifest or index that `descriptor` names, checked by digest and size.

    Its media type is the descriptor's word, which stands under a digest; what a server says of it decides nothing, and
    what the document says of itself is compared when it is parsed.
    """
    raw, _ = source.read_document(descriptor.digest, descriptor.media_type)
    if len(raw) != descriptor.size:
        raise RefusedError(
            "content.size-mismatch",
            f"{what} {descriptor.digest} in {source.location} has another size than promised",
            expected=f"{descriptor.size} bytes",
            found=f"{len(raw)} bytes",
        )
    return raw


def fetch_blob(source: ImageSource, descriptor: Descriptor, what: str, limit: int) -> bytes:
    """A small blob, checked by size and digest; more than `limit` bytes are refused before reading."""
    if descriptor.size > limit:
        raise RefusedError(
            "oci.document-too-large",
            f"{what} {descriptor.digest} is too large",
            expected=f"at most {limit} bytes",
            found=f"{descriptor.size} bytes",
        )
    stream = source.open_blob(descriptor, what)
    try:
        return read_verified(stream, descriptor.digest, descriptor.size, what)
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def read_image_tree(
    source: ImageSource, at: Descriptor | Digest | str | None, platforms: Sequence[Platform] | None = None
) -> ImageTree:
    """The image at a descriptor, a digest, or a name (None: the source's only image).

    `platforms` are those wanted; None means all that the index names.  Raises RefusedError `oci.platform-missing`,
    `oci.ambiguous-platform`, `oci.platform-mismatch`, `oci.not-an-image`, `oci.layer-count-mismatch`,
    `oci.index-too-deep`, `oci.schema-1`, `oci.unknown-media-type`, `oci.unknown-layer-type`, and what source, parser and reader raise.
    """
    where = source.location
    if isinstance(at, Digest):
        raw, media_type = source.read_document(at)
        top = Descriptor(media_type, at, len(raw))
    else:
        top = at if isinstance(at, Descriptor) else source.resolve(at)
        raw = fetch_document(source, top, "manifest")
    if top.media_type not in mt.INDEXES:
        child = _read_child(source, top, Manifest.parse(raw, top.media_type, f"the manifest {top.digest} in {where}"))
        platform = child.config.platform.normalised()
        if platforms is not None and not all(wanted.agrees(platform) for wanted in platforms):
            raise _missing(where, [p for p in platforms if not p.agrees(platform)], [platform], 0)
        return ImageTree(top, None, {platforms[0].normalised() if platforms else platform: child})

    index = Index.parse(raw, top.media_type, f"the index {top.digest} in {where}")
    nested: dict[Digest, Index] = {}
    listed = list(_listed(source, index, 1, nested))
    attestations = tuple(d for d in listed if is_attestation(d))
    images = [d for d in listed if not is_attestation(d)]
    chosen = _choose(images, platforms, where)
    children = {}
    for platform, descriptor in chosen.items():
        what = f"the {platform} manifest {descriptor.digest} in {where}"
        manifest = Manifest.parse(fetch_document(source, descriptor, what), descriptor.media_type, what)
        children[platform] = _read_child(source, descriptor, manifest)
    taken = {child.descriptor.digest for child in children.values()}
    others = tuple(d for d in images if d.digest not in taken)
    return ImageTree(top, index, children, nested, attestations, others)


def _listed(source: ImageSource, index: Index, depth: int, nested: dict[Digest, Index]) -> Iterable[Descriptor]:
    """Children of an index, those of indexes inside it in their place; each index is read once."""
    for descriptor in index.manifests:
        if descriptor.media_type not in mt.INDEXES or is_attestation(descriptor):
            yield descriptor
            continue
        if descriptor.digest in nested:
            continue
        if depth >= INDEX_DEPTH or len(nested) >= NESTED_LIMIT:
            raise RefusedError(
                "oci.index-too-deep",
                f"the index in {source.location} holds indexes too deep or too many of them",
                expected=f"at most {INDEX_DEPTH} levels and {NESTED_LIMIT} indexes",
                found=f"level {depth + 1}, index {descriptor.digest}",
            )
        what = f"the index {descriptor.digest} in {source.location}"
        inner = Index.parse(fetch_document(source, descriptor, what), descriptor.media_type, what)
        nested[descriptor.digest] = inner
        yield from _listed(source, inner, depth + 1, nested)


def _choose(
    images: Sequence[Descriptor], platforms: Sequence[Platform] | None, where: str
) -> dict[Platform, Descriptor]:
    placed: dict[Platform, list[Descriptor]] = {}
    for descriptor in images:
        if descriptor.platform is not None and descriptor.platform.known:
            same = placed.setdefault(descriptor.platform.normalised(), [])
            if descriptor.digest not in {d.digest for d in same}:
                same.append(descriptor)
    wanted = list(placed) if platforms is None else [p.normalised() for p in platforms]
    chosen: dict[Platform, Descriptor] = {}
    missing = []
    for platform in wanted:
        found = placed.get(platform) or [d for p, many in placed.items() if p.agrees(platform) for d in many]
        if len(found) > 1:
            raise RefusedError(
                "oci.ambiguous-platform",
                f"the index in {where} lists several images for {platform}",
                expected="one image a platform",
                found=", ".join(str(d.digest) for d in found[:5]),
                hint="name one of them by its digest as the base",
            )
        if found:
            chosen[platform] = found[0]
        else:
            missing.append(platform)
    if missing or not chosen:
        raise _missing(where, missing, list(placed), sum(d.platform is None for d in images))
    order = {id(d): n for n, d in enumerate(images)}
    return dict(sorted(chosen.items(), key=lambda item: order[id(item[1])]))


def _missing(where: str, missing: Sequence[Platform], there: Sequence[Platform], nameless: int) -> RefusedError:
    names = ", ".join(str(p) for p in there) or "none"
    if nameless:
        names += f"; and {nameless} without platform, which is not guessed"
    return RefusedError(
        "oci.platform-missing",
        f"the image in {where} has no manifest for " + (", ".join(str(p) for p in missing) or "any named platform"),
        expected=", ".join(str(p) for p in missing) or "at least one",
        found=names,
        hint="ask for platforms that the base has (--platform), or name the manifest's own digest as the base",
    )


def _read_child(source: ImageSource, descriptor: Descriptor, manifest: Manifest) -> Child:
    """Fetches the config and checks that index, manifest and config speak of one image."""
    what = f"the manifest {descriptor.digest} in {source.location}"
    if manifest.config.media_type not in mt.CONFIGS or manifest.artifact_type is not None:
        raise RefusedError(
            "oci.not-an-image",
            f"{what} is an artifact, not an image",
            expected="a config of type " + " or ".join(sorted(mt.CONFIGS)),
            found=manifest.artifact_type or manifest.config.media_type,
        )
    for number, layer in enumerate(manifest.layers):
        layer_compression(layer, f"layer {number} of {what}")
    raw = fetch_blob(source, manifest.config, f"the config of {what},", CONFIG_LIMIT)
    config = ImageConfig.parse(raw, f"the config {manifest.config.digest} in {source.location}")
    if not config.platform.known:
        raise RefusedError(
            "oci.platform-mismatch",
            f"the config of {what} names no platform",
            expected="os and architecture",
            found=str(config.platform) or "none",
        )
    said = descriptor.platform
    if said is not None and not said.agrees(config.platform):
        raise RefusedError(
            "oci.platform-mismatch",
            f"{what} has another platform in its config than in the index",
            expected=str(said),
            found=str(config.platform),
        )
    check_layer_count(manifest, config, what)
    return Child(descriptor, manifest, config)


def check_layer_count(manifest: Manifest, config: ImageConfig, what: str) -> None:
    """Raises RefusedError `oci.layer-count-mismatch` unless each layer has its diff_id."""
    if len(manifest.layers) != len(config.diff_ids):
        raise RefusedError(
            "oci.layer-count-mismatch",
            f"{what} and its config disagree on the number of layers",
            expected=f"{len(manifest.layers)} diff_ids",
            found=f"{len(config.diff_ids)} diff_ids",
        )
