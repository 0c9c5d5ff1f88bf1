"""Manifest, index and config: raw bytes beside the parsed view (image-spec manifest.md, image-index.md, config.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor, refuse_other_case
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


_MANIFEST_KEYS = (
    "schemaVersion",
    "mediaType",
    "artifactType",
    "config",
    "layers",
    "manifests",
    "subject",
    "annotations",
)
_CONFIG_KEYS = ("architecture", "os", "variant", "created", "config", "rootfs", "history")
_SECTION_KEYS = ("Env", "Labels", "WorkingDir", "User", "Entrypoint", "Cmd")


def _schema_version(value: dict[str, Any], what: str) -> None:
    found = plain(value.get("schemaVersion"))
    if not isinstance(found, int) or found != 2:
        raise InputError(
            "oci.bad-document",
            f"{what}: unsupported schemaVersion",
            expected="2",
            found=str(plain(value.get("schemaVersion"))),
        )


def _media_type(value: dict[str, Any], given: str, known: frozenset[str], what: str) -> None:
    """The type must be one that we read, and the document's own `mediaType` must be the word that brought us here (image-spec: it SHOULD match; a mismatch
    lets two readers see two kinds of document in the same bytes)."""
    if given in mt.DOCKER_SCHEMA_1:
        raise RefusedError(
            "oci.schema-1",
            f"{what}: Docker schema 1 is not read",
            expected="an OCI or Docker schema 2 manifest",
            found=given,
            hint="push the image again with a current docker, or take a newer tag of it",
        )
    if given not in known:
        raise RefusedError(
            "oci.unknown-media-type",
            f"{what}: cannot read a document of this media type",
            expected=" or ".join(sorted(known)),
            found=given,
        )
    own = value.get("mediaType")
    if own is not None and own != given:
        raise RefusedError(
            "oci.media-type-mismatch", f"{what}: the document names another media type", expected=given, found=str(own)
        )


def _list(value: dict[str, Any], key: str) -> Any:
    """What stands there; null, which Go programs write for an empty list, is one."""
    found = value.get(key)
    return [] if found is None and key in value else found


def _text_map(value: dict[str, Any], key: str, what: str) -> dict[str, str]:
    found = value.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
        raise InputError("oci.bad-document", f"{what}: {key} must map text to text")
    return dict(found)


def _text(value: dict[str, Any], key: str, what: str) -> str | None:
    found = value.get(key)
    if found is not None and not isinstance(found, str):
        raise InputError("oci.bad-document", f"{what}: {key} is not text")
    return found or None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One platform's image, or an artifact.  `value` is the JSON object with key order and number text kept."""

    raw: bytes = field(repr=False)
    media_type: str
    value: dict[str, Any] = field(repr=False, compare=False)
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor | None
    artifact_type: str | None

    @classmethod
    def parse(cls, raw: bytes, media_type: str, what: str = "manifest") -> Manifest:
        """Raises InputError `oci.bad-json`, `oci.bad-document`, `oci.bad-descriptor`; RefusedError `oci.schema-1`,
        `oci.unknown-media-type`, `oci.media-type-mismatch`, `oci.document-too-large`."""
        value = _object(raw, what, MANIFEST_LIMIT)
        _media_type(value, media_type, mt.MANIFESTS, what)
        _schema_version(value, what)
        refuse_other_case(value, _MANIFEST_KEYS, what, "oci.bad-document")
        _text_map(value, "annotations", what)
        if "manifests" in value:
            raise RefusedError(
                "oci.media-type-mismatch", f"{what}: a manifest with a list of manifests", expected=media_type
            )
        layers = _list(value, "layers")
        if not isinstance(layers, list):
            raise InputError("oci.bad-document", f"{what}: layers is missing or not a list")
        subject = value.get("subject")
        return cls(
            raw,
            media_type,
            value,
            Descriptor.from_json(value.get("config"), f"{what}, config"),
            tuple(Descriptor.from_json(item, f"{what}, layer {n}") for n, item in enumerate(layers)),
            None if subject is None else Descriptor.from_json(subject, f"{what}, subject"),
            _text(value, "artifactType", what),
        )

    @property
    def digest(self) -> Digest:
        return Digest.of(self.raw)

    @property
    def annotations(self) -> dict[str, str]:
        return _text_map(self.value, "annotations", "manifest")


@dataclass(frozen=True, slots=True)
class Index:
    """Several manifests under one digest (or a Docker manifest list)."""

    raw: bytes = field(repr=False)
    media_type: str
    value: dict[str, Any] = field(repr=False, compare=False)
    manifests: tuple[Descriptor, ...]
    subject: Descriptor | None = None
    artifact_type: str | None = None

    @classmethod
    def parse(cls, raw: bytes, media_type: str, what: str = "index") -> Index:
        """Raises as Manifest.parse."""
        value = _object(raw, what, MANIFEST_LIMIT)
        _media_type(value, media_type, mt.INDEXES, what)
        _schema_version(value, what)
        refuse_other_case(value, _MANIFEST_KEYS, what, "oci.bad-document")
        _text_map(value, "annotations", what)
        if "layers" in value or "config" in value:
            raise RefusedError(
                "oci.media-type-mismatch", f"{what}: an index with layers or a config", expected=media_type
            )
        manifests = _list(value, "manifests")
        subject = value.get("subject")
        if not isinstance(manifests, list):
            raise InputError("oci.bad-document", f"{what}: manifests is missing or not a list")
        return cls(
            raw,
            media_type,
            value,
            tuple(Descriptor.from_json(item, f"{what}, manifest {n}") for n, item in enumerate(manifests)),
            None if subject is None else Descriptor.from_json(subject, f"{what}, subject"),
            _text(value, "artifactType", what),
        )

    @property
    def annotations(self) -> dict[str, str]:
        return _text_map(self.value, "annotations", "index")

    @property
    def digest(self) -> Digest:
        return Digest.of(self.raw)


def is_attestation(descriptor: Descriptor) -> bool:
    """Whether an index child speaks *about* images instead of being one (BuildKit's `unknown/unknown` children with
    `vnd.docker.reference.type`, and artifacts)."""
    if descriptor.artifact_type is not None or "vnd.docker.reference.type" in descriptor.annotations:
        return True
    platform = descriptor.platform
    return platform is not None and "unknown" in (platform.os, platform.architecture)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of an image's history; `empty_layer` entries have no layer."""

    created_by: str
    empty_layer: bool


def _history(value: dict[str, Any], what: str) -> tuple[HistoryEntry, ...]:
    found = value.get("history")
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InputError("oci.bad-document", f"{what}: history is not a list of objects")
    return tuple(
        HistoryEntry(_text(item, "created_by", f"{what}, history") or "", item.get("empty_layer") is True)
        for item in found
    )


def _check_section(value: dict[str, Any], what: str) -> None:
    """What we edit must be what it seems: an Env line or label that is no text would be lost without a word."""
    section = value.get("config")
    if section is None:
        return
    if not isinstance(section, dict):
        raise InputError("oci.bad-document", f"{what}: config is not an object")
    refuse_other_case(section, _SECTION_KEYS, f"{what}, config", "oci.bad-document")
    lines = section.get("Env")
    if lines is not None and not (isinstance(lines, list) and all(isinstance(item, str) for item in lines)):
        raise InputError("oci.bad-document", f"{what}: config.Env is not a list of text")
    _text_map(section, "Labels", f"{what}, config")
    _text(section, "WorkingDir", f"{what}, config")


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The image config.  `value` keeps order, number text and unknown keys; edits are made on a copy of it."""

    raw: bytes = field(repr=False)
    value: dict[str, Any] = field(repr=False, compare=False)
    platform: Platform
    diff_ids: tuple[Digest, ...]
    history: tuple[HistoryEntry, ...] = ()

    @classmethod
    def parse(cls, raw: bytes, what: str = "config") -> ImageConfig:
        """Raises InputError `oci.bad-json`, `oci.bad-document`, `content.bad-digest`; RefusedError
        `oci.document-too-large`."""
        value = _object(raw, what, CONFIG_LIMIT)
        refuse_other_case(value, _CONFIG_KEYS, what, "oci.bad-document")
        rootfs = value.get("rootfs")
        listed = _list(rootfs, "diff_ids") if isinstance(rootfs, dict) else None
        if not isinstance(rootfs, dict) or not isinstance(listed, list):
            raise InputError("oci.bad-document", f"{what}: rootfs.diff_ids is missing")
        refuse_other_case(rootfs, ("type", "diff_ids"), f"{what}, rootfs", "oci.bad-document")
        if rootfs.get("type") != "layers":
            raise InputError("oci.bad-document", f"{what}: rootfs.type is not 'layers'", expected="layers")
        diff_ids = []
        for number, item in enumerate(listed):
            if not isinstance(item, str):
                raise InputError("oci.bad-document", f"{what}: rootfs.diff_ids[{number}] is not text")
            diff_ids.append(Digest.parse(item))
        _check_section(value, what)
        return cls(raw, value, Platform.from_json(value), tuple(diff_ids), _history(value, what))

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
        return list(found) if isinstance(found, list) else []

    @property
    def labels(self) -> dict[str, str]:
        return _text_map(self.section, "Labels", "config")

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
