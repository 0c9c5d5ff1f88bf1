"""From locked inputs and bytes to a finished image.  Nothing here looks at the network, the clock or the base's layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from imagebuild.build.events import Emitter
from imagebuild.build.labels import TARGET, labels_for
from imagebuild.build.layer_data import new_entries
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Data, NewEntry
from imagebuild.layer.pack import PackedLayer, choose_compressor, pack_layer, tar_size
from imagebuild.oci import media_types as mt
from imagebuild.oci.assemble import derive_index, derive_manifest
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import ImageConfig, Index, Manifest
from imagebuild.oci.source import Document, Image, ImageSource, LocalBlob
from imagebuild.overlay.environment import edit_environment
from imagebuild.target.lock_types import Inputs, PlatformInputs, PlatformResult, Result, ResultLayer

ROLES = ("artefacts", "changes")
"""The layers that we append, the lower one first."""


@dataclass(frozen=True, slots=True)
class BaseDocuments:
    """The base's documents, raw and parsed: the index (None for a single manifest), indexes inside it, and for each
    platform (as text) manifest and config."""

    index: Index | None
    nested: Mapping[Digest, Index]
    manifests: Mapping[str, Manifest]
    configs: Mapping[str, ImageConfig]


@dataclass(frozen=True, slots=True)
class MadePlatform:
    """One platform's image: its result, documents, and the layers that we made."""

    result: PlatformResult
    manifest: Document
    config: Document
    own: tuple[LocalBlob, ...]
    base_layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class PlatformFiles:
    """The data of every file of one platform's layers, by image path: those of `changes` in memory, those of `artefacts` where they
    lie."""

    changes: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    artefacts: Mapping[str, Data] = field(default_factory=dict, repr=False)


def entries_of(platform: PlatformInputs, role: str, files: PlatformFiles) -> list[NewEntry]:
    """The entries of the layer with that role."""
    if role == "artefacts":
        return new_entries(platform.artefacts, files.artefacts)
    return new_entries(platform.changes, files.changes)


def compressors_for(platform: PlatformInputs, files: PlatformFiles) -> dict[str, str]:
    """The compressor of each layer that is made, by the size of its tar."""
    out = {}
    for role in ROLES:
        entries = entries_of(platform, role, files)
        if entries:
            out[role] = choose_compressor(tar_size(entries))
    return out


def _opener(path: Path) -> BinaryIO:
    return open(path, "rb")


def _local(layer: PackedLayer) -> LocalBlob:
    path = layer.path
    return LocalBlob(layer.descriptor, lambda: _opener(path))


def derive_documents(
    inputs: Inputs, platform: PlatformInputs, manifest: Manifest, config: ImageConfig, layers: Sequence[ResultLayer]
) -> tuple[bytes, bytes]:
    """Config and manifest of one platform's image, from the base's and the layers that we made: what a build writes and
    what `verify` expects.  Raises what derive_manifest raises."""
    labels = labels_for(inputs, platform.manifest, config.labels)
    environment = None
    if platform.environment:
        environment = edit_environment(config.environment, platform.environment).env
    ours = [
        (Descriptor(x.media_type, x.digest, x.size), x.diff_id, f"imagebuild {inputs.target} {x.role}") for x in layers
    ]
    return derive_manifest(
        manifest, config, ours, created=inputs.created, env=environment, labels=labels, annotations=labels
    )


def make_platform(
    inputs: Inputs,
    platform: PlatformInputs,
    manifest: Manifest,
    config: ImageConfig,
    files: PlatformFiles,
    workdir: Path,
    emitter: Emitter,
) -> MadePlatform:
    """One platform's image.  Layers are written below `workdir`.

    Raises RefusedError `build.postimage-mismatch`, and what pack_layer and derive_manifest raise.
    """
    family = mt.family_of(manifest.media_type)
    assert family is not None
    results: list[ResultLayer] = []
    own: list[LocalBlob] = []
    for role in ROLES:
        entries = entries_of(platform, role, files)
        if not entries:
            continue
        packed = pack_layer(entries, family=family, compressor=platform.compressors[role], workdir=workdir)
        emitter.emit(
            "layer.made",
            platform=str(platform.platform),
            role=role,
            digest=str(packed.descriptor.digest),
            size=packed.descriptor.size,
        )
        results.append(
            ResultLayer(
                role, packed.descriptor.digest, packed.diff_id, packed.descriptor.size, packed.descriptor.media_type
            )
        )
        own.append(_local(packed))
    config_raw, manifest_raw = derive_documents(inputs, platform, manifest, config, results)
    made_manifest = Document(Descriptor(manifest.media_type, Digest.of(manifest_raw), len(manifest_raw)), manifest_raw)
    made_config = Document(Descriptor(manifest.config.media_type, Digest.of(config_raw), len(config_raw)), config_raw)
    return MadePlatform(
        PlatformResult(
            platform.platform,
            made_manifest.descriptor.digest,
            made_manifest.descriptor.size,
            made_config.descriptor.digest,
            tuple(results),
        ),
        made_manifest,
        made_config,
        tuple(own),
        manifest.layers,
    )


def make_image(
    inputs: Inputs,
    base: BaseDocuments,
    files: Mapping[str, PlatformFiles],
    workdir: Path,
    emitter: Emitter,
    source: ImageSource | None,
) -> tuple[Image, Result]:
    """The whole image: every platform, and the index over them.

    `files` by platform (as text); `source` is where base layers can be read by whoever stores the image.
    """
    made: dict[str, MadePlatform] = {}
    for platform in inputs.platforms:
        name = str(platform.platform)
        made[name] = make_platform(
            inputs,
            platform,
            base.manifests[name],
            base.configs[name],
            files.get(name, PlatformFiles()),
            workdir,
            emitter,
        )
    if base.index is None:
        (only,) = made.values()
        top = only.manifest
        manifests: tuple[Document, ...] = ()
    else:
        replaced = {
            platform.manifest: made[str(platform.platform)].manifest.descriptor for platform in inputs.platforms
        }
        raw = derive_index(base.index, replaced, labels_for(inputs, inputs.base_digest, {}), nested=base.nested)
        top = Document(Descriptor(base.index.media_type, Digest.of(raw), len(raw)), raw)
        manifests = tuple(item.manifest for item in made.values())
    image = Image(
        top,
        manifests,
        tuple(item.config for item in made.values()),
        _unique(item.own for item in made.values()),
        tuple({layer.digest: layer for item in made.values() for layer in item.base_layers}.values()),
        source,
        {TARGET: inputs.target},
    )
    result = Result(
        top.descriptor.digest,
        top.descriptor.size,
        top.descriptor.media_type,
        inputs.content_id,
        tuple(item.result for item in made.values()),
    )
    return image, result


def _unique(groups: object) -> tuple[LocalBlob, ...]:
    """Each layer once: two platforms that get the same changes share one blob."""
    out: dict[Digest, LocalBlob] = {}
    for group in groups:  # type: ignore[attr-defined]
        for blob in group:
            out.setdefault(blob.descriptor.digest, blob)
    return tuple(out.values())


def check_result(expected: Result, made: Result) -> None:
    """Raises RefusedError `build.result-differs` where the image is not the one that the lock names."""
    if expected == made:
        return
    raise RefusedError(
        "build.result-differs",
        "the image does not come out as the lock says, although its inputs are unchanged",
        expected=str(expected.digest),
        found=str(made.digest),
        hint="if another imagebuild wrote the lock, write it anew: imagebuild lock TARGET; otherwise report it",
    )
