"""Realistic bases out of real wheels, as OCI layouts (image-spec image-layout.md).

A base that is made this way is pinned by its digest like any other.  With `stored` layers its bytes are the same on
every machine and Python, so a committed lock can refer to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_write, io_faults, link_or_copy
from imagebuild.content.store import ContentStore
from imagebuild.host import environment
from imagebuild.host.clock import rfc3339
from imagebuild.oci import media_types as mt
from imagebuild.oci.platform import Platform
from imagebuild.testing.base_blobs import Compression, MadeBlob, write_blob
from imagebuild.testing.base_layers import BaseLayer
from imagebuild.testing.base_tar import tar_chunks
from imagebuild.testing.wheel_fetch import Progress, WheelPin, obtain, sha256_of

MAKER = 1
"""Version of what the makers write: a change of their bytes counts it up, so that no cached base is taken for another."""


@dataclass(frozen=True, slots=True)
class BaseSpec:
    """What a base consists of.

    `layers` from the lowest up, the same kinds for every platform; `created` in seconds since 1970, the time of every
    file and of the config; `index` false gives a single manifest (one platform only); `variant` is written for arm64.
    """

    name: str
    platforms: tuple[Platform, ...]
    layers: tuple[BaseLayer, ...]
    created: int
    compression: Compression = "stored"
    family: mt.Family = mt.OCI
    index: bool = True
    tag: str = "base"
    env: tuple[str, ...] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
    entrypoint: tuple[str, ...] = ()
    working_dir: str = "/"
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.platforms or (not self.index and len(self.platforms) != 1):
            raise ValueError("a base without an index has exactly one platform, with one at least one")
        if self.family is mt.DOCKER and self.compression not in ("stored", "gzip"):
            raise ValueError("layers of a schema 2 image are gzip")


@dataclass(frozen=True, slots=True)
class MadeBase:
    """A base on disk.  `digest` is that of its index (or single manifest); `blobs` every blob of it with its size in
    bytes; `reused` whether the cache had all of its layers."""

    folder: Path
    digest: Digest
    media_type: str
    size: int
    blobs: Mapping[str, int]
    reused: bool

    @property
    def reference(self) -> str:
        return f"oci:{self.folder}@{self.digest}"


def base_store() -> ContentStore:
    """The cache that bases are linked from."""
    return ContentStore(environment.cache_folder() / "bases")


def make_base(
    spec: BaseSpec,
    folder: Path,
    *,
    store: ContentStore | None = None,
    wheel_folder: Path | None = None,
    progress: Progress | None = None,
) -> MadeBase:
    """Makes the base's layout in `folder`, out of the cache where it was made before.

    Blobs are hard links into the cache where the file system has them, and never opened for writing again.  Raises as
    `wheel_fetch.obtain`, and UnavailableError `content.disk-full`.
    """
    held = store or base_store()
    made, reused = _write(spec, held, wheel_folder, progress)
    for digest in made["blobs"]:
        _place(held.path(Digest.parse(digest)), folder / "blobs" / "sha256" / Digest.parse(digest).hex)
    atomic_write(folder / "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    top = {"mediaType": made["mediaType"], "digest": made["digest"], "size": made["size"]}
    top["annotations"] = {"org.opencontainers.image.ref.name": spec.tag}
    atomic_write(folder / "index.json", _json({"schemaVersion": 2, "mediaType": mt.OCI_INDEX, "manifests": [top]}))
    return MadeBase(folder, Digest.parse(made["digest"]), made["mediaType"], made["size"], made["blobs"], reused)


def _place(blob: Path, target: Path) -> None:
    """Links the cache's blob to `target`, in the place of a file that is not the same one."""
    with io_faults(target, "reading"):
        if target.exists() and not target.samefile(blob) and sha256_of(target).hex != target.name:
            target.unlink()
    link_or_copy(blob, target)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _layer_key(spec: BaseSpec, layer: BaseLayer, platform: Platform) -> Digest:
    """Names what a layer's bytes follow from."""
    value = [MAKER, layer.describe(platform), str(platform), spec.created, spec.compression]
    return Digest.of(canonical_json(value))


def _remembered(memo: Path, store: ContentStore) -> MadeBlob | None:
    """The layer that an earlier run made, when it is still there, whole and unchanged."""
    try:
        value = json.loads(memo.read_bytes())
        blob = MadeBlob(Digest.parse(value["digest"]), value["size"], Digest.parse(value["diff_id"]))
        path = store.path(blob.digest)
        if path.stat().st_size != blob.size or sha256_of(path) != blob.digest:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return blob


def _write(
    spec: BaseSpec, store: ContentStore, wheel_folder: Path | None, progress: Progress | None
) -> tuple[dict[str, Any], bool]:
    blobs: dict[str, int] = {}
    reused = True

    def put(value: Any) -> tuple[str, int]:
        data = _json(value)
        store.get(Digest.of(data))  # drops a damaged copy
        digest = str(store.put(data))
        blobs[digest] = len(data)
        return digest, len(data)

    def wheel(pin: WheelPin) -> Path:
        return obtain(pin, progress, wheel_folder)

    children = []
    for platform in spec.platforms:
        layers = []
        for number, layer in enumerate(spec.layers):
            memo = store.root / "made" / f"{_layer_key(spec, layer, platform).hex}.json"
            blob = _remembered(memo, store)
            if blob is None:
                reused = False
                tell = _teller(progress, f"layer {number} for {platform}", layer.expected_size(platform))
                items = layer.items(platform, spec.created, wheel)
                blob = write_blob(tell(tar_chunks(items, spec.created)), spec.compression, store)
                note = {"digest": str(blob.digest), "size": blob.size, "diff_id": str(blob.diff_id)}
                atomic_write(memo, canonical_json(note))
            blobs[str(blob.digest)] = blob.size
            layers.append(blob)
        config, config_size = put(_config(spec, platform, layers))
        value = {
            "schemaVersion": 2,
            "mediaType": spec.family.manifest,
            "config": {"mediaType": spec.family.config, "digest": config, "size": config_size},
            "layers": [
                {"mediaType": _layer_type(spec), "digest": str(blob.digest), "size": blob.size} for blob in layers
            ],
        }
        digest, size = put(value)
        children.append(
            {"mediaType": spec.family.manifest, "digest": digest, "size": size, "platform": _platform(platform)}
        )
    if spec.index:
        digest, size = put({"schemaVersion": 2, "mediaType": spec.family.index, "manifests": children})
        return {"mediaType": spec.family.index, "digest": digest, "size": size, "blobs": blobs}, reused
    only = children[0]
    return {"mediaType": only["mediaType"], "digest": only["digest"], "size": only["size"], "blobs": blobs}, reused


def _platform(platform: Platform) -> dict[str, str]:
    """As registries show it: arm64 comes with its variant."""
    out = {"architecture": platform.architecture, "os": platform.os}
    if platform.architecture == "arm64":
        out["variant"] = "v8"
    return out


def _layer_type(spec: BaseSpec) -> str:
    if spec.compression == "zstd":
        return mt.OCI_LAYER_ZSTD
    return mt.OCI_LAYER if spec.compression == "none" else spec.family.layer_gzip


def _config(spec: BaseSpec, platform: Platform, layers: Sequence[MadeBlob]) -> dict[str, Any]:
    """The config, with the history that a builder would have left: one line a layer, and empty ones for settings."""
    created = rfc3339(spec.created)
    history: list[dict[str, Any]] = [
        {"created": created, "created_by": layer.created_by, "comment": "stand-in"} for layer in spec.layers
    ]
    for line in spec.env[1:]:
        history.append({"created": created, "created_by": f"ENV {line}", "empty_layer": True})
    section: dict[str, Any] = {"Env": list(spec.env), "WorkingDir": spec.working_dir}
    if spec.entrypoint:
        section["Entrypoint"] = list(spec.entrypoint)
        created_by = f"ENTRYPOINT {json.dumps(list(spec.entrypoint))}"
        history.append({"created": created, "created_by": created_by, "empty_layer": True})
    if spec.labels:
        section["Labels"] = dict(sorted(spec.labels.items()))
    return {
        "created": created,
        **_platform(platform),
        "config": section,
        "rootfs": {"type": "layers", "diff_ids": [str(blob.diff_id) for blob in layers]},
        "history": history,
    }


def _teller(progress: Progress | None, what: str, total: int) -> Callable[[Iterable[bytes]], Iterator[bytes]]:
    """Passes chunks through and tells how far they are, about every 4 MiB."""

    def passing(chunks: Iterable[bytes]) -> Iterator[bytes]:
        done, told = 0, 0
        for chunk in chunks:
            yield chunk
            done += len(chunk)
            if progress is not None and done - told >= 4 << 20:
                told = done
                progress(what, min(done, total) if total else done, total)

    return passing
