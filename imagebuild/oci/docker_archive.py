"""`docker-archive:FILE[:NAME]`: what `docker load`, `podman load` and skopeo read, as sink only.

The format has no digest of a manifest, so nothing can be pinned in it: it is never a source.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_file
from imagebuild.content.reader import Readable, VerifiedReader
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.archive_files import GIGABYTE, RATIO
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import ImageConfig, Manifest, layer_compression
from imagebuild.oci.json_text import dump
from imagebuild.oci.layout import base_blob
from imagebuild.oci.plain_tar import TarWriter
from imagebuild.oci.reference import HUB, PathReference, parse_registry_reference
from imagebuild.oci.source import Image, StoreResult
from imagebuild.oci.tree import check_layer_count


class DockerArchiveSink:
    """A docker-archive as ImageSink: one platform's image, bytes that depend on the image and its name alone.

    Layers that are gzip all of them go in as they are stored; if one is not (plain or zstd, which docker 20.10 does not
    load), all go in as plain tar, since readers judge an archive by its first layer.  Both are checked: the stored
    bytes by their digest, the plain ones by their diff_id too.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def location(self) -> str:
        return f"docker-archive:{self.path}"

    def store(
        self, image: Image, name: str | None = None, *, complete: bool = True, force: bool = False
    ) -> StoreResult:
        """Writes the archive; `name` is `REPO[:TAG]`.  `complete` is always so, and an older file is replaced.

        Raises InputError `oci.several-platforms`, `oci.bad-reference`; RefusedError `content.digest-mismatch`;
        UnavailableError `oci.blob-missing`, `content.disk-full`.
        """
        reference = PathReference("docker-archive", str(self.path), name)
        if len(image.manifests) > 1:
            raise InputError(
                "oci.several-platforms",
                f"{self.location} takes one platform's image, this one has {len(image.manifests)}",
                expected="one platform",
                found=", ".join(str(m.descriptor.platform or m.descriptor.digest) for m in image.manifests),
                hint="name one with --platform, or write oci-archive: instead",
            )
        document = image.manifests[0] if image.manifests else image.top
        manifest = Manifest.parse(document.raw, document.descriptor.media_type)
        config_raw = next(c.raw for c in image.configs if c.descriptor.digest == manifest.config.digest)
        config = ImageConfig.parse(config_raw)
        check_layer_count(manifest, config, "the image")
        kinds = [layer_compression(layer, f"layer {n}") for n, layer in enumerate(manifest.layers)]
        plain = any(kind != "gzip" for kind in kinds)
        files = [
            f"{diff_id.hex}.tar" if plain else f"{layer.digest.hex}.tar.gz"
            for layer, diff_id in zip(manifest.layers, config.diff_ids, strict=True)
        ]
        listed = {"Config": f"{manifest.config.digest.hex}.json", "RepoTags": _tags(name), "Layers": files}
        with atomic_file(self.path) as out:
            tar = TarWriter(out)
            tar.add("manifest.json", dump([listed]))
            tar.add(f"{manifest.config.digest.hex}.json", config_raw)
            written = len(config_raw)
            seen: set[str] = set()
            for layer, diff_id, file, kind in zip(manifest.layers, config.diff_ids, files, kinds, strict=True):
                if file in seen:
                    continue
                seen.add(file)
                with _layer(image, layer) as stream:
                    reader = VerifiedReader(stream, layer.digest, layer.size, "layer")
                    if plain:
                        written += tar.gather(file, _checked(_inflate(reader, kind), diff_id, layer))
                    else:
                        written += tar.copy(file, reader)
            tar.close()
        return StoreResult(str(reference), document.descriptor.digest, uploaded_bytes=written)


def _tags(name: str | None) -> list[str]:
    """The name as docker shows it: Docker Hub's host and `library/` left out, the tag always there."""
    if name is None:
        return []
    text = str(parse_registry_reference(name))
    return [text.removeprefix(f"{HUB}/library/").removeprefix(f"{HUB}/")]


def _layer(image: Image, layer: Descriptor) -> AbstractContextManager[Readable]:
    for blob in image.own:
        if blob.descriptor.digest == layer.digest:
            return blob.open()
    return base_blob(image.base, layer)


def _checked(parts: Iterator[bytes], diff_id: Digest, layer: Descriptor) -> Iterator[bytes]:
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


def _inflate(reader: VerifiedReader, kind: str) -> Iterator[bytes]:
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
