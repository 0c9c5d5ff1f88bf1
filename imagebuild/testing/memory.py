"""An ImageSource that is a dictionary, for tests that want to say exactly what a place answers."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence

from imagebuild.content.digest import Digest
from imagebuild.content.reader import Readable, check_bytes
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.testing.images import MadeImage


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
