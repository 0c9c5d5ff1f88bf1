"""Small images for tests, made from a description: an OCI layout folder, or the bytes of its blobs.

Written with Python's own `tarfile`, `gzip` and `zlib` and with `zstandard`, and with nothing of `imagebuild.layer`:
what a maker has in common with the reader that it tests, it cannot test.  The bytes are the same in every run of one
Python version; nothing pins them for ever.

    image = make_image(ImageSpec(layers=(LayerSpec((File("etc/x", b"1"), Link("etc/y", "x"))),)))
    write_layout(folder, {"v1": image})
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.platform import Platform
from imagebuild.testing.raw_tar import stored_gzip

MTIME = 1_700_000_000
"""The time of entries that name none, seconds since 1970."""
CREATED = "2023-11-14T22:13:20Z"
REF_NAME = "org.opencontainers.image.ref.name"

Compression = Literal["none", "stored", "gzip", "zstd"]
HistoryKind = Literal["full", "missing", "null", "short", "all-empty", "with-empty"]


@dataclass(frozen=True, slots=True)
class File:
    """A regular file.  `xattrs` become `SCHILY.xattr.*` records; `pax` any other PAX records."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = MTIME
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    pax: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder entry; `mtime` in seconds since 1970."""

    path: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int = MTIME


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link, `target` as written."""

    path: str
    target: str
    mtime: int = MTIME


@dataclass(frozen=True, slots=True)
class HardLink:
    """A hard link; `target` is a path of the same layer."""

    path: str
    target: str
    mtime: int = MTIME


@dataclass(frozen=True, slots=True)
class Whiteout:
    """Hides `path` in the layers below: the entry `.wh.NAME` in its folder."""

    path: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """Hides all that the layers below have in the folder `path`: the entry `.wh..wh..opq` in it."""

    path: str


@dataclass(frozen=True, slots=True)
class Special:
    """Any other entry, by the type byte of its tar header (`tarfile.FIFOTYPE`, `tarfile.CHRTYPE`, …)."""

    path: str
    type: bytes
    device: tuple[int, int] = (0, 0)
    link: str = ""


Item = File | Folder | Link | HardLink | Whiteout | Opaque | Special


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer: `items` in the order of the tar, or `raw` bytes as the tar itself.

    `compression`: `none` plain tar, `stored` gzip without deflating, `gzip`, `zstd`; `media_type` overrides what
    follows from it.  `annotations` stand on the layer's descriptor.
    """

    items: tuple[Item, ...] = ()
    raw: bytes | None = None
    compression: Compression = "gzip"
    tar_format: int = tarfile.PAX_FORMAT
    media_type: str | None = None
    created_by: str = "layer"
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """One platform's image.  `config` and `extra_config` are merged into the config's `config` object and top level,
    `extra_manifest` into the manifest; `family` is `mt.OCI` or `mt.DOCKER`."""

    layers: tuple[LayerSpec, ...] = ()
    platform: Platform = Platform("linux", "amd64")  # noqa: RUF009 - a frozen value
    family: mt.Family = mt.OCI
    config: Mapping[str, Any] = field(default_factory=dict)
    extra_config: Mapping[str, Any] = field(default_factory=dict)
    extra_manifest: Mapping[str, Any] = field(default_factory=dict)
    history: HistoryKind = "full"
    indent: int | None = None


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """Several images under one index.

    `attestations` adds, for each image, a child `unknown/unknown` as BuildKit does; `platforms` False leaves the
    platform out of the children's descriptors; `extra_children` are appended as they are.
    """

    images: tuple[ImageSpec, ...]
    family: mt.Family = mt.OCI
    attestations: bool = False
    platforms: bool = True
    child: Mapping[str, Any] = field(default_factory=dict)
    platform: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    extra_children: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class MadeLayer:
    """A layer's stored bytes and its uncompressed tar."""

    descriptor: Descriptor
    blob: bytes = field(repr=False)
    tar: bytes = field(repr=False)

    @property
    def diff_id(self) -> Digest:
        return Digest.of(self.tar)


@dataclass(frozen=True, slots=True)
class MadeImage:
    """An image or index: the descriptor and bytes of its top document, all blobs by digest (the top among them), the
    layers (lowest first; of all images in the order of an index), and the images of an index."""

    descriptor: Descriptor
    raw: bytes = field(repr=False)
    blobs: Mapping[Digest, bytes] = field(repr=False)
    layers: tuple[MadeLayer, ...] = field(repr=False, default=())
    images: tuple[MadeImage, ...] = field(repr=False, default=())

    @property
    def digest(self) -> Digest:
        return self.descriptor.digest


def _entry(item: Item) -> tuple[tarfile.TarInfo, bytes]:
    head = tarfile.TarInfo(item.path)
    head.mode, head.mtime, head.uname, head.gname = 0o644, MTIME, "", ""
    data = b""
    match item:
        case File():
            data = item.data
            head.size, head.mode, head.uid, head.gid, head.mtime = len(data), item.mode, item.uid, item.gid, item.mtime
            xattrs = {f"SCHILY.xattr.{k}": v.decode("utf-8", "surrogateescape") for k, v in item.xattrs.items()}
            head.pax_headers = {**item.pax, **xattrs}
        case Folder():
            head.type = tarfile.DIRTYPE
            head.mode, head.uid, head.gid, head.mtime = item.mode, item.uid, item.gid, item.mtime
        case Link():
            head.type, head.linkname, head.mode, head.mtime = tarfile.SYMTYPE, item.target, 0o777, item.mtime
        case HardLink():
            head.type, head.linkname, head.mtime = tarfile.LNKTYPE, item.target, item.mtime
        case Whiteout():
            folder, slash, name = item.path.rpartition("/")
            head.name = f"{folder}{slash}.wh.{name}"
        case Opaque():
            head.name = f"{item.path}/.wh..wh..opq" if item.path else ".wh..wh..opq"
        case Special():
            head.type, head.linkname = item.type, item.link
            head.devmajor, head.devminor = item.device
    return head, data


def make_tar(items: Iterable[Item], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    """An uncompressed tar of the items, in their order.  Bytes that are not UTF-8 stand as surrogate escapes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format, encoding="utf-8", errors="surrogateescape") as archive:
        for item in items:
            head, data = _entry(item)
            archive.addfile(head, io.BytesIO(data))
    return out.getvalue()


def compress(tar: bytes, compression: Compression) -> bytes:
    """The stored form of a layer."""
    if compression == "none":
        return tar
    if compression == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=3).compress(tar)
    return stored_gzip(tar) if compression == "stored" else gzip.compress(tar, compresslevel=6, mtime=0)


def _layer_type(family: mt.Family, compression: Compression) -> str:
    if compression == "none":
        return mt.OCI_LAYER if family is mt.OCI else mt.DOCKER_LAYER
    if compression == "zstd":
        return mt.OCI_LAYER_ZSTD if family is mt.OCI else mt.DOCKER_LAYER_ZSTD
    return family.layer_gzip


def make_layer(spec: LayerSpec, family: mt.Family = mt.OCI) -> MadeLayer:
    tar = spec.raw if spec.raw is not None else make_tar(spec.items, spec.tar_format)
    blob = compress(tar, spec.compression)
    media_type = spec.media_type or _layer_type(family, spec.compression)
    descriptor = Descriptor(media_type, Digest.of(blob), len(blob), annotations=dict(spec.annotations))
    return MadeLayer(descriptor, blob, tar)


def _history(layers: Sequence[LayerSpec], kind: HistoryKind) -> list[dict[str, Any]] | None:
    lines: list[dict[str, Any]] = [{"created": CREATED, "created_by": layer.created_by} for layer in layers]
    empty = {"created": CREATED, "created_by": "ENV A=1", "empty_layer": True}
    match kind:
        case "short":
            return lines[:-1]
        case "all-empty":
            return [{**line, "empty_layer": True} for line in lines]
        case "with-empty":
            return [empty, *lines, empty]
        case "missing" | "null":
            return None
        case "full":
            return lines


def make_image(spec: ImageSpec) -> MadeImage:
    """The blobs of one platform's image."""
    layers = tuple(make_layer(layer, spec.family) for layer in spec.layers)
    config: dict[str, Any] = {"created": CREATED, **spec.platform.to_json()}
    config["config"] = {"Env": ["PATH=/usr/bin:/bin"], **spec.config}
    config["rootfs"] = {"type": "layers", "diff_ids": [str(layer.diff_id) for layer in layers]}
    history = _history(spec.layers, spec.history)
    if history is not None or spec.history == "null":
        config["history"] = history
    config_raw = _json({**config, **spec.extra_config}, spec.indent)
    config_descriptor = Descriptor(spec.family.config, Digest.of(config_raw), len(config_raw))
    manifest = {
        "schemaVersion": 2,
        "mediaType": spec.family.manifest,
        "config": config_descriptor.to_json(),
        "layers": [layer.descriptor.to_json() for layer in layers],
        **spec.extra_manifest,
    }
    raw = _json(manifest, spec.indent)
    blobs = {layer.descriptor.digest: layer.blob for layer in layers}
    blobs |= {config_descriptor.digest: config_raw, Digest.of(raw): raw}
    return MadeImage(Descriptor(spec.family.manifest, Digest.of(raw), len(raw), spec.platform), raw, blobs, layers)


def make_artifact(
    subject: Descriptor, artifact_type: str = "application/vnd.example+json", data: bytes = b"{}"
) -> MadeImage:
    """A referrer: an artifact manifest with `subject` (image-spec manifest.md, artifact usage)."""
    empty = Descriptor(mt.OCI_EMPTY, Digest.of(b"{}"), 2)
    payload = Descriptor("application/octet-stream", Digest.of(data), len(data))
    manifest = {
        "schemaVersion": 2,
        "mediaType": mt.OCI_MANIFEST,
        "artifactType": artifact_type,
        "config": empty.to_json(),
        "layers": [payload.to_json()],
        "subject": Descriptor(subject.media_type, subject.digest, subject.size).to_json(),
        "annotations": {"made": "by a test"},
    }
    raw = _json(manifest)
    blobs = {empty.digest: b"{}", payload.digest: data, Digest.of(raw): raw}
    return MadeImage(Descriptor(mt.OCI_MANIFEST, Digest.of(raw), len(raw), artifact_type=artifact_type), raw, blobs)


def _attestation(about: Descriptor) -> MadeImage:
    """BuildKit's form: an image manifest whose one layer is an in-toto statement."""
    statement = _json(
        {"_type": "https://in-toto.io/Statement/v0.1", "subject": [{"digest": {"sha256": about.digest.hex}}]}
    )
    layer = Descriptor("application/vnd.in-toto+json", Digest.of(statement), len(statement))
    config = _json(
        {"architecture": "unknown", "os": "unknown", "rootfs": {"type": "layers", "diff_ids": [str(layer.digest)]}}
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": mt.OCI_MANIFEST,
        "config": Descriptor(mt.OCI_CONFIG, Digest.of(config), len(config)).to_json(),
        "layers": [layer.to_json()],
    }
    raw = _json(manifest)
    marks = {"vnd.docker.reference.digest": str(about.digest), "vnd.docker.reference.type": "attestation-manifest"}
    descriptor = Descriptor(mt.OCI_MANIFEST, Digest.of(raw), len(raw), Platform("unknown", "unknown"), marks)
    return MadeImage(descriptor, raw, {layer.digest: statement, Digest.of(config): config, Digest.of(raw): raw})


def make_index(spec: IndexSpec) -> MadeImage:
    """The blobs of an index and of all its images."""
    images = tuple(make_image(image) for image in spec.images)
    blobs: dict[Digest, bytes] = {}
    children: list[Mapping[str, Any]] = []
    for image in images:
        blobs |= image.blobs
        child = {**image.descriptor.to_json(), **spec.child}
        if spec.platforms:
            child["platform"] = {**child["platform"], **spec.platform}
        else:
            del child["platform"]
        children.append(child)
    for image in images if spec.attestations else ():
        made = _attestation(image.descriptor)
        blobs |= made.blobs
        children.append(made.descriptor.to_json())
    index: dict[str, Any] = {"schemaVersion": 2, "mediaType": spec.family.index}
    index["manifests"] = [*children, *spec.extra_children]
    if spec.annotations:
        index["annotations"] = dict(spec.annotations)
    raw = _json(index)
    blobs[Digest.of(raw)] = raw
    layers = tuple(layer for image in images for layer in image.layers)
    return MadeImage(Descriptor(spec.family.index, Digest.of(raw), len(raw)), raw, blobs, layers, images)


def make(spec: ImageSpec | IndexSpec) -> MadeImage:
    return make_index(spec) if isinstance(spec, IndexSpec) else make_image(spec)


def layout_files(images: Mapping[str | None, MadeImage] | MadeImage, *, sparse: bool = False) -> dict[str, bytes]:
    """Every file of an OCI layout by its path.  The keys of `images` are ref names, None for an unnamed image;
    `sparse` leaves the layers out."""
    if isinstance(images, MadeImage):
        images = {None: images}
    entries, blobs, layers = [], dict[Digest, bytes](), set[Digest]()
    for name, image in images.items():
        entry = image.descriptor.to_json()
        if name is not None:
            entry["annotations"] = {**entry.get("annotations", {}), REF_NAME: name}
        entries.append(entry)
        blobs |= image.blobs
        layers |= {layer.descriptor.digest for layer in image.layers}
    files = {f"blobs/sha256/{d.hex}": data for d, data in blobs.items() if not (sparse and d in layers)}
    files["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    files["index.json"] = _json({"schemaVersion": 2, "mediaType": mt.OCI_INDEX, "manifests": entries})
    return files


def write_layout(folder: Path, images: Mapping[str | None, MadeImage] | MadeImage, *, sparse: bool = False) -> Path:
    """Writes `layout_files` below `folder`, which need not exist; returns it."""
    for name, data in layout_files(images, sparse=sparse).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def make_archive(images: Mapping[str | None, MadeImage] | MadeImage, *, compressed: bool = False) -> bytes:
    """The same layout as one tar (an `oci-archive`), optionally gzipped."""
    items = [File(name, data) for name, data in sorted(layout_files(images).items(), reverse=True)]
    tar = make_tar(items)
    return gzip.compress(tar, mtime=0) if compressed else tar


def _json(value: Any, indent: int | None = None) -> bytes:
    separators = (",", ":") if indent is None else None
    return json.dumps(value, indent=indent, separators=separators, ensure_ascii=False).encode()
