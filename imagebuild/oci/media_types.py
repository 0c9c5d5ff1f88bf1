"""Media types, in two families that are never mixed in one image (image-spec media-types.md; Docker schema 2)."""

from __future__ import annotations

from dataclasses import dataclass

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
OCI_LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
OCI_EMPTY = "application/vnd.oci.empty.v1+json"
OCI_FOREIGN = "application/vnd.oci.image.layer.nondistributable.v1.tar"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
DOCKER_LAYER_ZSTD = "application/vnd.docker.image.rootfs.diff.tar.zstd"
DOCKER_FOREIGN_GZIP = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"

DOCKER_SCHEMA_1 = frozenset(
    {
        "application/vnd.docker.distribution.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v1+prettyjws",
    }
)
"""Docker's first manifest format: no config, no digest of its own content; read by nobody any more."""

INDEXES = frozenset({OCI_INDEX, DOCKER_INDEX})
MANIFESTS = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
CONFIGS = frozenset({OCI_CONFIG, DOCKER_CONFIG})

COMPRESSION: dict[str, str] = {
    OCI_LAYER: "none",
    OCI_LAYER_GZIP: "gzip",
    OCI_LAYER_ZSTD: "zstd",
    OCI_FOREIGN: "none",
    OCI_FOREIGN + "+gzip": "gzip",
    OCI_FOREIGN + "+zstd": "zstd",
    DOCKER_LAYER_GZIP: "gzip",
    DOCKER_LAYER: "none",
    DOCKER_LAYER_ZSTD: "zstd",
    DOCKER_FOREIGN_GZIP: "gzip",
}
"""What a layer's media type says of its compression: `none`, `gzip` or `zstd`."""


@dataclass(frozen=True, slots=True)
class Family:
    """The media types that go together.  `annotations` tells whether manifests and descriptors may carry them."""

    name: str
    index: str
    manifest: str
    config: str
    layer_gzip: str
    layer_zstd: str | None
    annotations: bool


OCI = Family("oci", OCI_INDEX, OCI_MANIFEST, OCI_CONFIG, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, True)
DOCKER = Family("docker", DOCKER_INDEX, DOCKER_MANIFEST, DOCKER_CONFIG, DOCKER_LAYER_GZIP, None, False)


def family_of(media_type: str) -> Family | None:
    """The family that a manifest's or index's media type belongs to, or None."""
    for family in (OCI, DOCKER):
        if media_type in (family.index, family.manifest):
            return family
    return None
