"""Descriptors (image-spec descriptor.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError
from imagebuild.oci.json_text import NumberText, plain
from imagebuild.oci.platform import Platform


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a document says of a blob: media type, digest, size in bytes, and the rest.

    `raw` is the JSON object as it was read (numbers as NumberText), unknown keys included, so that a base's descriptor
    is copied verbatim; it is empty for descriptors of our own making.
    """

    media_type: str
    digest: Digest
    size: int
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    artifact_type: str | None = None
    raw: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)

    @classmethod
    def from_json(cls, value: Any, what: str) -> Descriptor:
        """Reads a descriptor object (numbers plain or NumberText).

        Raises InputError `oci.bad-descriptor`; `what` says where it stands.
        """
        if not isinstance(value, dict):
            raise InputError("oci.bad-descriptor", f"{what}: a descriptor must be an object")
        media_type, digest, size = value.get("mediaType"), value.get("digest"), plain(value.get("size"))
        if not isinstance(media_type, str) or not media_type:
            raise InputError("oci.bad-descriptor", f"{what}: mediaType is missing or not text")
        if not isinstance(digest, str):
            raise InputError("oci.bad-descriptor", f"{what}: digest is missing or not text")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 63:
            raise InputError("oci.bad-descriptor", f"{what}: size is missing or not a whole number of bytes")
        platform = value.get("platform")
        annotations = value.get("annotations") or {}
        if not isinstance(annotations, dict) or not all(isinstance(v, str) for v in annotations.values()):
            raise InputError("oci.bad-descriptor", f"{what}: annotations must map text to text")
        artifact_type = value.get("artifactType")
        return cls(
            media_type,
            Digest.parse(digest),
            size,
            Platform.from_json(platform) if isinstance(platform, dict) else None,
            MappingProxyType(dict(annotations)),
            artifact_type if isinstance(artifact_type, str) and artifact_type else None,
            MappingProxyType(value),
        )

    def to_json(self) -> dict[str, Any]:
        """The object as read, or ours in the order mediaType, digest, size, platform, annotations, artifactType."""
        if self.raw:
            return dict(self.raw)
        out: dict[str, Any] = {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}
        if self.platform is not None:
            out["platform"] = self.platform.to_json()
        if self.annotations:
            out["annotations"] = dict(sorted(self.annotations.items()))
        if self.artifact_type is not None:
            out["artifactType"] = self.artifact_type
        return out

    def replaced(self, digest: Digest, size: int, media_type: str | None = None) -> dict[str, Any]:
        """The object with digest and size (and media type) of another blob, every other key and the order kept."""
        out = self.to_json()
        out["digest"] = str(digest)
        out["size"] = NumberText(str(size))
        if media_type is not None:
            out["mediaType"] = media_type
        return out
