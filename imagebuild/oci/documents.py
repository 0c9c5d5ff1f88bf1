"""Manifest, index and config: raw bytes beside the parsed view (image-spec manifest.md, image-index.md, config.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.json_text import parse, plain
from imagebuild.oci.platform import Platform

MANIFEST_LIMIT = 4 << 20
"""Bytes of a manifest or index at most (distribution-spec: registries accept at least 4 MiB)."""
CONFIG_LIMIT = 8 << 20
INDEX_DEPTH = 2
LAYER_LIMIT = 127
"""Layers that engines with overlay file systems can stack."""


def _object(data: bytes, what: str, limit: int) -> dict[str, Any]:
    if len(data) > limit:
        raise RefusedError(
            "oci.document-too-large",
            f"{what} is too large",
            expected=f"at most {limit} bytes",
            found=f"{len(data)} bytes",
        )
    value = parse(data, what)
    if not isinstance(value, dict):
        raise InputError("oci.bad-document", f"{what} must be a JSON object")
    return value


def _schema_version(value: dict[str, Any], what: str) -> None:
    if plain(value.get("schemaVersion")) != 2:
        raise InputError(
            "oci.bad-document",
            f"{what}: unsupported schemaVersion",
            expected="2",
            found=str(plain(value.get("schemaVersion"))),
        )


def _media_type(value: dict[str, Any], given: str, what: str) -> None:
    """The document's own `mediaType` must be the word that brought us here (image-spec: it SHOULD match; a mismatch
    lets two readers see two kinds of document in the same bytes)."""
    own = value.get("mediaType")
    if own is not None and own != given:
        raise RefusedError(
            "oci.media-type-mismatch", f"{what}: the document names another media type", expected=given, found=str(own)
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """One platform's image, or an artifact.  `value` is the JSON object with key order and number text kept."""

    raw: bytes = field(repr=False)
    media_type: str
    value: dict[str, Any] = field(repr=False)
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor | None
    artifact_type: str | None

    @classmethod
    def parse(cls, raw: bytes, media_type: str, what: str = "manifest") -> Manifest:
        """Raises InputError `oci.bad-document`, RefusedError `oci.media-type-mismatch`, `oci.document-too-large`."""
        value = _object(raw, what, MANIFEST_LIMIT)
        _schema_version(value, what)
        _media_type(value, media_type, what)
        if "manifests" in value:
            raise RefusedError(
                "oci.media-type-mismatch", f"{what}: a manifest with a list of manifests", expected=media_type
            )
        layers = value.get("layers")
        if not isinstance(layers, list):
            raise InputError("oci.bad-document", f"{what}: layers is missing or not a list")
        subject = value.get("subject")
        artifact_type = value.get("artifactType")
        return cls(
            raw,
            media_type,
            value,
            Descriptor.from_json(value.get("config"), f"{what}, config"),
            tuple(Descriptor.from_json(item, f"{what}, layer {n}") for n, item in enumerate(layers)),
            None if subject is None else Descriptor.from_json(subject, f"{what}, subject"),
            artifact_type if isinstance(artifact_type, str) and artifact_type else None,
        )

    @property
    def digest(self) -> Digest:
        return Digest.of(self.raw)

    @property
    def annotations(self) -> dict[str, str]:
        found = self.value.get("annotations")
        return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Index:
    """Several manifests under one digest (or a Docker manifest list)."""

    raw: bytes = field(repr=False)
    media_type: str
    value: dict[str, Any] = field(repr=False)
    manifests: tuple[Descriptor, ...]

    @classmethod
    def parse(cls, raw: bytes, media_type: str, what: str = "index") -> Index:
        """Raises as Manifest.parse."""
        value = _object(raw, what, MANIFEST_LIMIT)
        _schema_version(value, what)
        _media_type(value, media_type, what)
        if "layers" in value or "config" in value:
            raise RefusedError(
                "oci.media-type-mismatch", f"{what}: an index with layers or a config", expected=media_type
            )
        manifests = value.get("manifests")
        if not isinstance(manifests, list):
            raise InputError("oci.bad-document", f"{what}: manifests is missing or not a list")
        return cls(
            raw,
            media_type,
            value,
            tuple(Descriptor.from_json(item, f"{what}, manifest {n}") for n, item in enumerate(manifests)),
        )

    @property
    def digest(self) -> Digest:
        return Digest.of(self.raw)


def is_attestation(descriptor: Descriptor) -> bool:
    """Whether an index child speaks *about* images instead of being one (BuildKit's `unknown/unknown` children with
    `vnd.docker.reference.type`, and artifacts)."""
    if descriptor.artifact_type is not None or "vnd.docker.reference.type" in descriptor.annotations:
        return True
    return descriptor.platform is not None and not descriptor.platform.known


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of an image's history; `empty_layer` entries have no layer."""

    created_by: str
    empty_layer: bool


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The image config.  `value` keeps order, number text and unknown keys; edits are made on a copy of it."""

    raw: bytes = field(repr=False)
    value: dict[str, Any] = field(repr=False)
    platform: Platform
    diff_ids: tuple[Digest, ...]

    @classmethod
    def parse(cls, raw: bytes, what: str = "config") -> ImageConfig:
        """Raises InputError `oci.bad-document`."""
        value = _object(raw, what, CONFIG_LIMIT)
        rootfs = value.get("rootfs")
        if not isinstance(rootfs, dict) or not isinstance(rootfs.get("diff_ids"), list):
            raise InputError("oci.bad-document", f"{what}: rootfs.diff_ids is missing")
        diff_ids = []
        for number, item in enumerate(rootfs["diff_ids"]):
            if not isinstance(item, str):
                raise InputError("oci.bad-document", f"{what}: rootfs.diff_ids[{number}] is not text")
            diff_ids.append(Digest.parse(item))
        return cls(raw, value, Platform.from_json(value), tuple(diff_ids))

    @property
    def digest(self) -> Digest:
        return Digest.of(self.raw)

    @property
    def section(self) -> dict[str, Any]:
        """The `config` object (run parameters), {} where it is missing or null."""
        found = self.value.get("config")
        return found if isinstance(found, dict) else {}

    @property
    def environment(self) -> list[str]:
        """`config.Env` as listed: `NAME=value` lines."""
        found = self.section.get("Env")
        return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []

    @property
    def labels(self) -> dict[str, str]:
        found = self.section.get("Labels")
        return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}

    @property
    def created(self) -> str | None:
        found = self.value.get("created")
        return found if isinstance(found, str) else None

    @property
    def working_dir(self) -> str:
        found = self.section.get("WorkingDir")
        return found if isinstance(found, str) and found else "/"


def layer_compression(descriptor: Descriptor, what: str) -> str:
    """`none`, `gzip` or `zstd` as the media type says; raises RefusedError `oci.unknown-layer-type`."""
    found = mt.COMPRESSION.get(descriptor.media_type)
    if found is None:
        raise RefusedError(
            "oci.unknown-layer-type",
            f"{what}: cannot read a layer of this media type",
            expected="one of " + ", ".join(sorted(mt.COMPRESSION)),
            found=descriptor.media_type,
        )
    return found
