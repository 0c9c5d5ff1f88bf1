"""Outputs of stages as an OCI artifact: compiled once where that can be done, found by digest everywhere else.

An artifact is an index with one manifest a platform.  Each output is a blob of its own with its name beside it
(`org.opencontainers.image.title`), so that other tools fetch them as files; the config says what they were built from.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.stage_outputs import StageOutput, scratch_folder
from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.content.reader import VerifiedReader, read_verified
from imagebuild.errors import InputError, RefusedError, clean
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import Index, Manifest
from imagebuild.oci.layout import opened_blob
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import Document, Image, ImageSource, LocalBlob

ARTIFACT_TYPE = "application/vnd.imagebuild.stage.v1"
CONFIG_TYPE = "application/vnd.imagebuild.stage.config.v1+json"
OUTPUT_TYPE = "application/octet-stream"
TITLE = "org.opencontainers.image.title"
CONFIG_LIMIT = 1 << 20
TWO_BUILDS = "two-builds"
ONE_BUILD = "one-build"
PROOFS = (TWO_BUILDS, ONE_BUILD)


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage left on one platform.  `definition` is the id of what it was built from; `proof` tells whether two
    builds gave it, or one; `builder` is the program, for the record."""

    definition: Digest
    platform: Platform
    outputs: tuple[StageOutput, ...]
    proof: str
    builder: str

    def to_json(self) -> dict[str, Any]:
        return {
            "schemaVersion": 1,
            "platform": str(self.platform),
            "definition": str(self.definition),
            "outputs": [output.to_json() for output in self.outputs],
            "proof": self.proof,
            "builder": self.builder,
        }

    @classmethod
    def from_json(cls, raw: bytes) -> StageResult:
        """Raises InputError `stage.bad-artifact`, `content.bad-digest`, `oci.bad-platform`."""
        try:
            value = json.loads(raw)
        except ValueError as error:
            raise _bad("its description is no JSON") from error
        if not isinstance(value, dict) or value.get("schemaVersion") != 1 or value.get("proof") not in PROOFS:
            raise _bad("its description is of another form")
        outputs = value.get("outputs")
        platform, definition, builder = value.get("platform"), value.get("definition"), value.get("builder")
        if (
            not isinstance(outputs, list)
            or not isinstance(platform, str)
            or not isinstance(definition, str)
            or not isinstance(builder, str)
        ):
            raise _bad("its description is of another form")
        found = tuple(StageOutput.from_json(output) for output in outputs)
        if len({output.path for output in found}) != len(found):
            raise _bad("it names an output twice")
        return cls(Digest.parse(definition), Platform.parse(platform), found, value["proof"], clean(builder, 200))


@dataclass(frozen=True, slots=True)
class FoundArtifact:
    """One platform's manifest of an artifact, verified; `blobs` are the outputs' descriptors by their digest."""

    result: StageResult
    blobs: Mapping[Digest, Descriptor]


def make_artifact(results: Sequence[StageResult], store: ArtefactStore) -> Image:
    """The artifact of one stage, a manifest a platform, ready for a sink.  The outputs are in the store."""
    manifests, configs = [], []
    own: dict[Digest, LocalBlob] = {}
    for result in sorted(results, key=lambda one: one.platform):
        raw = canonical_json(result.to_json())
        config = Document(Descriptor(CONFIG_TYPE, Digest.of(raw), len(raw)), raw)
        layers = []
        for output in result.outputs:
            file = store.get(output.sha256)
            assert file is not None
            blob = Descriptor(OUTPUT_TYPE, output.sha256, output.size, annotations={TITLE: output.path.lstrip("/")})
            own.setdefault(output.sha256, LocalBlob(blob, file.open))
            layers.append(blob.to_json())
        value = {
            "schemaVersion": 2,
            "mediaType": mt.OCI_MANIFEST,
            "artifactType": ARTIFACT_TYPE,
            "config": config.descriptor.to_json(),
            "layers": layers,
        }
        text = json.dumps(value, separators=(",", ":")).encode("utf-8")
        described = Descriptor(
            mt.OCI_MANIFEST, Digest.of(text), len(text), result.platform, artifact_type=ARTIFACT_TYPE
        )
        manifests.append(Document(described, text))
        configs.append(config)
    index = {
        "schemaVersion": 2,
        "mediaType": mt.OCI_INDEX,
        "artifactType": ARTIFACT_TYPE,
        "manifests": [manifest.descriptor.to_json() for manifest in manifests],
    }
    top = json.dumps(index, separators=(",", ":")).encode("utf-8")
    return Image(
        Document(Descriptor(mt.OCI_INDEX, Digest.of(top), len(top), artifact_type=ARTIFACT_TYPE), top),
        tuple(manifests),
        tuple(configs),
        tuple(own.values()),
        (),
        None,
    )


def find_artifact(source: ImageSource, digest: Digest) -> dict[Platform, FoundArtifact]:
    """What an artifact has for each platform, every document checked by its digest.

    Raises InputError `stage.bad-artifact` for what is none, and what the source raises.
    """
    raw, media_type = source.read_document(digest)
    if media_type == mt.OCI_INDEX:
        listed = [
            child for child in Index.parse(raw, media_type, "the artifact").manifests if child.platform is not None
        ]
    else:
        listed = [Descriptor(media_type, digest, len(raw))]
    out = {}
    for child in listed:
        found = _one(source, child)
        if child.platform is not None and child.platform.normalised() != found.result.platform:
            raise _bad(f"its index says {child.platform} of what is for {found.result.platform}")
        out[found.result.platform] = found
    return out


def _one(source: ImageSource, child: Descriptor) -> FoundArtifact:
    raw, media_type = source.read_document(child.digest, child.media_type)
    manifest = Manifest.parse(raw, media_type, "the artifact's manifest")
    if manifest.artifact_type != ARTIFACT_TYPE or manifest.config.media_type != CONFIG_TYPE:
        raise _bad(f"it is of the type {clean(manifest.artifact_type or manifest.config.media_type, 120)}")
    if manifest.config.size > CONFIG_LIMIT:
        raise _bad("its description is too large")
    with opened_blob(source, manifest.config, "the artifact's description") as held:
        text = read_verified(held, manifest.config.digest, manifest.config.size, "the artifact's description")
    result = StageResult.from_json(text)
    blobs = {layer.digest: layer for layer in manifest.layers}
    for output in result.outputs:
        if output.sha256 not in blobs or blobs[output.sha256].size != output.size:
            raise _bad(f"it does not hold the output {clean(output.path, 200)} that it describes")
    return FoundArtifact(result, blobs)


def fetch_outputs(source: ImageSource, found: FoundArtifact, store: ArtefactStore) -> None:
    """Brings the outputs into the store, each checked by size and digest.  Raises what the source raises."""
    for output in found.result.outputs:
        if store.get(output.sha256) is not None:
            continue
        with (
            opened_blob(source, found.blobs[output.sha256], "an output of a stage") as held,
            scratch_folder(store) as folder,
        ):
            reader = VerifiedReader(held, output.sha256, output.size, f"the output {output.path}")
            with open(folder / "output", "wb") as out:
                while part := reader.read(1 << 20):
                    out.write(part)
            store.keep(folder / "output")


def check_artifact(
    found: Mapping[Platform, FoundArtifact],
    definition: Digest,
    platform: Platform,
    outputs: Collection[str],
    where: str,
) -> FoundArtifact:
    """The artifact's part for a platform, where it was made from what the stage is made from now and has its outputs.

    Raises RefusedError `stage.artifact-platform`, `stage.artifact-stale`; InputError `stage.bad-artifact`.
    """
    one = found.get(platform)
    if one is None:
        raise RefusedError(
            "stage.artifact-platform",
            f"the artifact of {where} has no outputs for {platform}",
            expected=str(platform),
            found=", ".join(map(str, found)) or "nothing",
            hint="on a machine that can compile for it: imagebuild overlay stage NAME --store REPOSITORY; what is there for "
            "other platforms is taken over",
            details={"platform": str(platform)},
        )
    if one.result.definition != definition:
        raise RefusedError(
            "stage.artifact-stale",
            f"the artifact of {where} was built from another Dockerfile, context or arguments than these",
            expected=f"definition {definition}",
            found=f"definition {one.result.definition}",
            hint="build it again: imagebuild overlay stage NAME --store REPOSITORY",
            details={"platform": str(platform)},
        )
    if {output.path for output in one.result.outputs} != set(outputs):
        raise _bad("it says that it was built from this stage, and has other outputs")
    return one


def _bad(why: str) -> InputError:
    return InputError("stage.bad-artifact", f"what `artifact` names holds no outputs of a stage: {why}")
