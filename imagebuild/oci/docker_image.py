"""What an image is to Docker's archives and engines: one platform, named layers, tags as docker shows them."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from imagebuild.content.digest import Digest
from imagebuild.content.reader import Readable, VerifiedReader
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.archive_files import GIGABYTE, RATIO
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import ImageConfig, Manifest, layer_compression
from imagebuild.oci.layout import base_blob
from imagebuild.oci.reference import HUB, parse_registry_reference
from imagebuild.oci.source import Document, Image
from imagebuild.oci.tree import check_layer_count


@dataclass(frozen=True, slots=True)
class SingleImage:
    """One platform's image, parsed.  `kinds` are the layers' compressions: `none`, `gzip`, `zstd`."""

    document: Document
    manifest: Manifest
    config: ImageConfig
    kinds: tuple[str, ...]


def single_image(image: Image, location: str) -> SingleImage:
    """The only platform's image.  Raises InputError `oci.several-platforms`, and what check_layer_count raises."""
    if len(image.manifests) > 1:
        raise InputError(
            "oci.several-platforms",
            f"{location} takes one platform's image, this one has {len(image.manifests)}",
            expected="one platform",
            found=", ".join(str(m.descriptor.platform or m.descriptor.digest) for m in image.manifests),
            hint="name one with --platform, or write oci-archive: instead",
        )
    document = image.manifests[0] if image.manifests else image.top
    manifest = Manifest.parse(document.raw, document.descriptor.media_type)
    config = ImageConfig.parse(next(c.raw for c in image.configs if c.descriptor.digest == manifest.config.digest))
    check_layer_count(manifest, config, "the image")
    kinds = tuple(layer_compression(layer, f"layer {n}") for n, layer in enumerate(manifest.layers))
    return SingleImage(document, manifest, config, kinds)


def docker_tags(name: str | None) -> list[str]:
    """The name as docker shows it: Docker Hub's host and `library/` left out, the tag always there."""
    if name is None:
        return []
    text = str(parse_registry_reference(name))
    return [text.removeprefix(f"{HUB}/library/").removeprefix(f"{HUB}/")]


def layer_stream(image: Image, layer: Descriptor) -> AbstractContextManager[Readable]:
    for blob in image.own:
        if blob.descriptor.digest == layer.digest:
            return blob.open()
    return base_blob(image.base, layer)


def checked_parts(parts: Iterator[bytes], diff_id: Digest, layer: Descriptor) -> Iterator[bytes]:
    """Passes the uncompressed bytes on; bounded, and at the end compared with the diff_id."""
    limit = max(GIGABYTE, RATIO * layer.size)
    hasher = hashlib.sha256()
    size = 0
    for part in parts:
        size += len(part)
        if size > limit:
            raise RefusedError(
                "oci.layer-too-large",
                f"the layer {layer.digest} inflates to more than a layer of its size may",
                expected=f"at most {limit} bytes",
            )
        hasher.update(part)
        yield part
    if hasher.hexdigest() != diff_id.hex:
        raise RefusedError(
            "content.digest-mismatch",
            f"the layer {layer.digest} does not hold what its config says",
            expected=f"diff_id {diff_id}",
            found=f"sha256:{hasher.hexdigest()}",
        )


def inflated_parts(reader: VerifiedReader, kind: str) -> Iterator[bytes]:
    """The uncompressed parts of a layer: `none`, `gzip` (several members too), `zstd` (several frames too).  The stored
    bytes are always read to their end, so that their digest is checked."""
    try:
        if kind == "zstd":
            yield from _unzstd(reader)
        elif kind == "gzip":
            yield from _gunzip(reader)
        while part := reader.read(1 << 20):
            if kind != "none":
                raise ValueError("more bytes after the end of the stream")
            yield part
    except (zlib.error, ValueError) as error:
        raise RefusedError("oci.bad-layer", f"the layer {reader.digest} is no {kind} stream: {error}") from error


def _gunzip(reader: VerifiedReader) -> Iterator[bytes]:
    inflater = zlib.decompressobj(31)
    data = b""
    while data := data or reader.read(1 << 16):
        if inflater.eof:
            inflater = zlib.decompressobj(31)
        yield inflater.decompress(data)
        data = inflater.unused_data
    if not inflater.eof:
        raise ValueError("it ends early")


def _unzstd(reader: VerifiedReader) -> Iterator[bytes]:
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(cast(Any, reader), read_across_frames=True) as stream:
            while part := stream.read(1 << 20):
                yield part
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
