"""Whether a tag that is there may be moved (registry.md, Push order)."""

from __future__ import annotations

from collections.abc import Mapping

from imagebuild.content.digest import Digest
from imagebuild.content.reader import read_verified
from imagebuild.errors import ImagebuildError, RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.documents import CONFIG_LIMIT, ImageConfig, Index, Manifest, is_attestation
from imagebuild.registry.blobs import BlobStream
from imagebuild.registry.client import RepositoryClient
from imagebuild.registry.manifests import Manifests


def check_tag(repository: RepositoryClient, tag: str, there: Digest, ours: Digest, labels: Mapping[str, str]) -> None:
    """Lets pass what carries the same `labels` (annotations of index or manifest, or labels of the config).

    Raises RefusedError `registry.tag-elsewhere` for another image.
    """
    if labels and carries_labels(repository, there, labels):
        return
    raise RefusedError(
        "registry.tag-elsewhere",
        f"{repository.repository}:{tag} points at another image, which is not this target's",
        expected=f"no such tag, or {ours}, or an image of this target",
        found=str(there),
        hint="choose another tag, or move this one with --force (the digest above brings the old image back)",
        details={"tag": tag, "previous": str(there)},
    )


def carries_labels(repository: RepositoryClient, digest: Digest, labels: Mapping[str, str]) -> bool:
    """Whether the image there says of itself that it has all these labels; one that cannot be read does not."""

    def within(found: Mapping[str, str]) -> bool:
        return all(found.get(name) == value for name, value in labels.items())

    try:
        manifests = Manifests(repository)
        fetched = manifests.fetch(digest)
        if fetched.descriptor.media_type in mt.INDEXES:
            index = Index.parse(fetched.raw, fetched.descriptor.media_type)
            annotations = index.value.get("annotations")
            if isinstance(annotations, dict) and within(annotations):
                return True
            images = [child for child in index.manifests if not is_attestation(child)]
            if not images:
                return False
            fetched = manifests.fetch(images[0].digest, images[0].media_type)
        manifest = Manifest.parse(fetched.raw, fetched.descriptor.media_type)
        if within(manifest.annotations):
            return True
        if manifest.config.media_type not in mt.CONFIGS or manifest.config.size > CONFIG_LIMIT:
            return False
        with BlobStream([repository], manifest.config, "config") as stream:
            raw = read_verified(stream, manifest.config.digest, manifest.config.size, "config")
        return within(ImageConfig.parse(raw).labels)
    except ImagebuildError as error:
        if error.exit_code == 3:
            raise
        return False
