"""An ImageSource that is a dictionary, for tests that want to say exactly what a place answers; and made images in the
form that sinks take."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import partial

from imagebuild.content.digest import Digest
from imagebuild.content.reader import Readable, check_bytes
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.source import Document, Image, ImageSource, LocalBlob
from imagebuild.testing.images import MadeImage


def as_image(
    made: MadeImage, *, own: int = 1, base: ImageSource | None = None, labels: Mapping[str, str] | None = None
) -> Image:
    """A made image or index as a finished Image: the topmost `own` layers of each platform are ours, those below are
    the base's and are only at `base`."""
    images = made.images or (made,)
    mine, theirs = dict[Digest, LocalBlob](), dict[Digest, Descriptor]()
    configs = []
    for image in images:
        split = len(image.layers) - own
        for layer in image.layers[:split]:
            theirs[layer.descriptor.digest] = layer.descriptor
        for layer in image.layers[split:]:
            mine[layer.descriptor.digest] = LocalBlob(layer.descriptor, partial(io.BytesIO, layer.blob))
        config = Descriptor.from_json(json.loads(image.raw)["config"], "config")
        configs.append(Document(config, image.blobs[config.digest]))
    return Image(
        top=Document(made.descriptor, made.raw),
        manifests=tuple(Document(image.descriptor, image.raw) for image in made.images),
        configs=tuple(configs),
        own=tuple(mine.values()),
        base_layers=tuple(theirs.values()),
        base=base,
        labels=dict(labels or {}),
    )


class MemorySource:
    """Holds images by name (None: the only image).

    `blobs` may be changed by a test, so that a digest answers with other bytes: documents are checked as the protocol
    asks, blob streams are not.  `reads` lists the digests asked for, in order.
    """

    def __init__(self, images: Mapping[str | None, MadeImage] | MadeImage, location: str = "memory:test") -> None:
        self.names: dict[str | None, MadeImage] = {None: images} if isinstance(images, MadeImage) else dict(images)
        self.blobs: dict[Digest, bytes] = {}
        for image in self.names.values():
            self.blobs.update(image.blobs)
        self.location = location
        self.reads: list[Digest] = []

    def resolve(self, name: str | None) -> Descriptor:
        if name not in self.names:
            raise RefusedError("oci.not-found", f"{self.location} has no {name!r}")
        return self.names[name].descriptor

    def _read(self, digest: Digest) -> bytes:
        self.reads.append(digest)
        if digest not in self.blobs:
            raise UnavailableError("oci.blob-missing", f"{self.location} has no {digest}")
        return self.blobs[digest]

    def read_document(self, digest: Digest, media_type: str | None = None) -> tuple[bytes, str]:
        raw = check_bytes(self._read(digest), digest, "document")
        return raw, media_type or json.loads(raw)["mediaType"]

    def open_blob(self, descriptor: Descriptor, what: str = "blob") -> Readable:
        return io.BytesIO(self._read(descriptor.digest))

    def has_blob(self, descriptor: Descriptor) -> bool:
        return descriptor.digest in self.blobs

    def referrers(self, subject: Digest) -> Sequence[Descriptor]:
        return []
