"""SLSA provenance (slsa.dev/provenance/v1) of a locked build; the build type is described in docs/reference.

No SLSA level is claimed: whoever runs the builder holds the key.  Nothing in the predicate depends on when or how often
the build ran, so the same lock gives the same statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from imagebuild import PROJECT_URL, __version__
from imagebuild.attest.predicates.types import BUILD_TYPE
from imagebuild.content.digest import Digest
from imagebuild.host.clock import rfc3339
from imagebuild.oci.reference import DigestReference, PathReference, Repository, TagReference, parse_reference
from imagebuild.target.lock_types import Inputs, PlatformInputs

LOCAL_BUILDER = f"{PROJECT_URL}/builder/local/v1"
"""The builder.id of a build on somebody's own machine."""


def pinned_base(inputs: Inputs) -> str:
    """`REFERENCE@DIGEST` of the base as the target names it."""
    name = inputs.base.partition("@")[0]
    return f"{name}@{inputs.base_digest}"


def base_uri(inputs: Inputs) -> str:
    """The base as a URI without a movable part: a package URL for a registry, `oci:` for a layout."""
    reference = parse_reference(inputs.base)
    if isinstance(reference, TagReference | DigestReference):
        return _package_url(reference.repository, inputs.base_digest)
    if isinstance(reference, PathReference):
        return f"oci:{reference.path.rpartition('/')[2]}@{inputs.base_digest}"
    return str(reference)


def _package_url(repository: Repository, digest: Digest) -> str:
    name = repository.path.rpartition("/")[2]
    return f"pkg:oci/{name}@{str(digest).replace(':', '%3A')}?repository_url={repository}"


def _resource(name: str, digest: Digest | str, uri: str | None = None, **more: Any) -> dict[str, Any]:
    out: dict[str, Any] = {"name": name}
    if uri is not None:
        out["uri"] = uri
    out["digest"] = {"sha256": str(digest).removeprefix("sha256:")}
    return {**out, **more}


def _changes(overlay: Mapping[str, Any], platform: str) -> Iterator[dict[str, Any]]:
    """Everything that an overlay brings in, by digest; edits, deletions, links and variables stand in the lock alone."""
    for number, change in enumerate(overlay["changes"]):
        name = f"{overlay['name']}/{change['kind']}/{number}"
        if change["kind"] == "stage":
            yield from _stage(name, change, platform)
            continue
        digest = change.get("digest") or change.get("sha256")
        if isinstance(digest, Mapping):
            digest = digest.get(platform)
        only = change.get("platforms")
        if not isinstance(digest, str) or (only and platform not in only):
            continue
        said = {key: str(change[key]) for key in ("path", "to", "name", "version") if isinstance(change.get(key), str)}
        yield _resource(name, digest, annotations=said) if said else _resource(name, digest)


def _stage(name: str, change: Mapping[str, Any], platform: str) -> Iterator[dict[str, Any]]:
    """What a stage was compiled from: its definition (Dockerfile, context, arguments) with the network that it had, and the images that it
    took from."""
    said = {
        "dockerfile": str(change["dockerfile"]),
        "network": str(change["network"]),
        "reproducible": "true" if change["reproducible"] else "false",
    }
    yield _resource(name, change["definitions"][platform], annotations=said)
    for base in change["bases"]:
        reference = parse_reference(base)
        assert isinstance(reference, DigestReference)
        yield _resource(f"{name}/base", reference.digest, _package_url(reference.repository, reference.digest))


def build_provenance(
    inputs: Inputs,
    platform: PlatformInputs,
    *,
    builder: str = LOCAL_BUILDER,
    source: str | None = None,
    source_commit: str | None = None,
) -> dict[str, Any]:
    """The predicate for one platform's image.  `source` and `source_commit` (40 hex digits) name the workspace."""
    dependencies = [
        _resource("base", inputs.base_digest, base_uri(inputs), mediaType=inputs.base_media_type),
        _resource("base manifest", platform.manifest, mediaType=platform.manifest_type),
    ]
    for overlay in inputs.wanted["overlays"]:
        dependencies += _changes(overlay, str(platform.platform))
    if source_commit is not None:
        workspace: dict[str, Any] = {"name": "workspace", "digest": {"gitCommit": source_commit}}
        if source is not None:
            workspace["uri"] = source
        dependencies.append(workspace)
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "target": inputs.target,
                "base": pinned_base(inputs),
                "platform": str(platform.platform),
                "overlays": [overlay["name"] for overlay in inputs.wanted["overlays"]],
            },
            "internalParameters": {
                "contentId": str(inputs.content_id),
                "created": rfc3339(inputs.created),
                "layerFormat": inputs.layer_format,
                "compressors": dict(sorted(platform.compressors.items())),
                "notProven": list(platform.not_proven),
            },
            "resolvedDependencies": dependencies,
        },
        "runDetails": {"builder": {"id": builder, "version": {"imagebuild": __version__}}},
    }
