"""Descriptors (image-spec descriptor.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError
from imagebuild.oci.json_text import NumberText, plain
from imagebuild.oci.platform import Platform

_MEDIA_TYPE = re.compile(r"[!-.0-~][ -.0-~]*/[ -~]{1,200}\Z")
_KEYS = ("mediaType", "digest", "size", "platform", "annotations", "artifactType", "urls", "data")


def refuse_other_case(value: Mapping[str, Any], keys: tuple[str, ...], what: str, code: str) -> None:
    """Refuses a key that is one of `keys` but for the case of its letters.

    Readers written in Go take `Digest` for `digest`, this one does not: under one digest the two would see two
    documents.  Raises InputError with `code`.
    """
    known = {key.casefold(): key for key in keys}
    for key in value:
        meant = known.get(key.casefold())
        if meant is not None and meant != key:
            raise InputError(
                code, f"{what}: the key {key!r} differs from {meant!r} in case alone", expected=meant, found=key
            )


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a document says of a blob: media type, digest, size in bytes, and the rest.

    `raw` is the JSON object as it was read (numbers as NumberText), unknown keys included, so that a base's descriptor
    is copied verbatim; it is empty for descriptors of our own making.  Raises InputError `oci.bad-descriptor`.
    """

    media_type: str
    digest: Digest
    size: int
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    artifact_type: str | None = None
    raw: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not _MEDIA_TYPE.match(self.media_type):
            raise InputError(
                "oci.bad-descriptor",
                "a descriptor's mediaType is no media type",
                expected="type/subtype (RFC 6838)",
                found=self.media_type[:100],
            )
        if isinstance(self.size, bool) or not 0 <= self.size < 1 << 63:
            raise InputError("oci.bad-descriptor", f"the size of {self.digest} is out of range", found=str(self.size))

    @classmethod
    def from_json(cls, value: Any, what: str) -> Descriptor:
        """Reads a descriptor object (numbers plain or NumberText).

        A platform without os and architecture counts as none.  Raises InputError `oci.bad-descriptor`,
        `oci.bad-platform`, `content.bad-digest`; `what` says where it stands.
        """
        if not isinstance(value, dict):
            raise InputError("oci.bad-descriptor", f"{what}: a descriptor must be an object")
        refuse_other_case(value, _KEYS, what, "oci.bad-descriptor")
        media_type, digest, size = value.get("mediaType"), value.get("digest"), plain(value.get("size"))
        if not isinstance(media_type, str) or not media_type:
            raise InputError("oci.bad-descriptor", f"{what}: mediaType is missing or not text")
        if not isinstance(digest, str):
            raise InputError("oci.bad-descriptor", f"{what}: digest is missing or not text")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 63:
            raise InputError("oci.bad-descriptor", f"{what}: size is missing or not a whole number of bytes")
        annotations = value.get("annotations")
        if annotations is None:
            annotations = {}
        if not isinstance(annotations, dict) or not all(isinstance(v, str) for v in annotations.values()):
            raise InputError("oci.bad-descriptor", f"{what}: annotations must map text to text")
        artifact_type = value.get("artifactType")
        if artifact_type is not None and not isinstance(artifact_type, str):
            raise InputError("oci.bad-descriptor", f"{what}: artifactType is not text")
        return cls(
            media_type,
            Digest.parse(digest),
            size,
            _platform(value, what),
            MappingProxyType(dict(annotations)),
            artifact_type or None,
            MappingProxyType(value),
        )

    def to_json(self) -> dict[str, Any]:
        """The object as read, with what was replaced since; or ours in the order mediaType, digest, size, platform,
        annotations, artifactType."""
        own = self._own()
        if not self.raw:
            return own
        out = dict(self.raw)
        was = Descriptor.from_json(out, "descriptor")
        for key, before, now in (
            ("mediaType", was.media_type, self.media_type),
            ("digest", was.digest, self.digest),
            ("size", was.size, self.size),
            ("platform", was.platform, self.platform),
            ("annotations", was.annotations, self.annotations),
            ("artifactType", was.artifact_type, self.artifact_type),
        ):
            if before == now:
                continue
            if key in own:
                out[key] = own[key]
            else:
                out.pop(key, None)
        if was.digest != self.digest:
            _drop_content(out)
        return out

    def _own(self) -> dict[str, Any]:
        out: dict[str, Any] = {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}
        if self.platform is not None:
            out["platform"] = self.platform.to_json()
        if self.annotations:
            out["annotations"] = dict(sorted(self.annotations.items()))
        if self.artifact_type is not None:
            out["artifactType"] = self.artifact_type
        return out

    def replaced(self, digest: Digest, size: int, media_type: str | None = None) -> dict[str, Any]:
        """The object with digest and size (and media type) of another blob, every other key and the order kept, except
        `data` and `urls`: those are the old blob's content and whereabouts."""
        out = self.to_json()
        out["digest"] = str(digest)
        out["size"] = NumberText(str(size))
        if media_type is not None:
            out["mediaType"] = media_type
        if digest != self.digest:
            _drop_content(out)
        return out


def _drop_content(value: dict[str, Any]) -> None:
    value.pop("data", None)
    value.pop("urls", None)


def _platform(value: dict[str, Any], what: str) -> Platform | None:
    found = value.get("platform")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise InputError("oci.bad-descriptor", f"{what}: platform must be an object")
    refuse_other_case(found, ("os", "architecture", "variant"), f"{what}, platform", "oci.bad-descriptor")
    platform = Platform.from_json(found)
    return platform if platform.os or platform.architecture else None
