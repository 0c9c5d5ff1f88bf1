"""What gives images and what takes them.  Registry, layout on disk and archives implement these protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol, runtime_checkable

from imagebuild.content.digest import Digest
from imagebuild.content.reader import Readable
from imagebuild.oci.descriptor import Descriptor


@runtime_checkable
class ImageSource(Protocol):
    """One repository, layout or archive that images are read from.  Nothing it gives is trusted: documents come back
    digest-checked, blob streams are wrapped in VerifiedReader by whoever reads them."""

    @property
    def location(self) -> str:
        """Where this is, for messages: `docker.io/vllm/vllm-openai`, `oci:/data/base`."""
        ...

    def resolve(self, name: str | None) -> Descriptor:
        """The descriptor that a tag (or a layout's ref name; None: the only image) points at now.

        Raises UnavailableError `…unreachable`, RefusedError `…not-found`.
        """
        ...

    def read_document(self, digest: Digest, media_type: str | None = None) -> tuple[bytes, str]:
        """Raw bytes and media type of a manifest or index, verified against `digest`."""
        ...

    def open_blob(self, descriptor: Descriptor, what: str = "blob") -> Readable:
        """An unverified stream of a blob's bytes (with `close()` where it holds a connection)."""
        ...

    def has_blob(self, descriptor: Descriptor) -> bool: ...

    def referrers(self, subject: Digest) -> Sequence[Descriptor]:
        """What points at `subject` (distribution-spec, Listing Referrers); [] where there is none; raises
        UnavailableError when that could not be found out."""
        ...


@dataclass(frozen=True, slots=True)
class LocalBlob:
    """A blob that we hold: `open` gives a fresh stream of exactly `descriptor.size` bytes each time."""

    descriptor: Descriptor
    open: Callable[[], BinaryIO]


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest, index or config: raw bytes under their digest."""

    descriptor: Descriptor
    raw: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Image:
    """A finished image, ready to be stored or pushed.

    `top` is the index, or the manifest of a single-platform image.  `manifests` are the platform manifests (the top
    itself is not among them when it is the manifest), `configs` their configs; `own` the layers that we made;
    `base_layers` the base's layers as listed, which may live only at `base`.
    """

    top: Document
    manifests: tuple[Document, ...]
    configs: tuple[Document, ...]
    own: tuple[LocalBlob, ...]
    base_layers: tuple[Descriptor, ...]
    base: ImageSource | None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which a tag is recognised as ours (target name)."""


@dataclass(frozen=True, slots=True)
class StoreResult:
    """What storing an image did.  Sizes in bytes; `missing_blobs` are base layers left out of a sparse layout;
    `previous` is the digest that the name pointed at before, where it was another."""

    reference: str
    digest: Digest
    missing_blobs: tuple[Digest, ...] = ()
    uploaded_bytes: int = 0
    mounted_blobs: int = 0
    requests: int = 0
    previous: Digest | None = None


class ImageSink(Protocol):
    """Takes an image.  Blobs first, then configs, child manifests, and the name last (registry.md, Push order)."""

    @property
    def location(self) -> str: ...

    def store(self, image: Image, name: str | None, *, complete: bool = False, force: bool = False) -> StoreResult: ...
