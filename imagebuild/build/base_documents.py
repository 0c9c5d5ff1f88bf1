"""The base's manifests and configs for a locked build: out of the content folder, else from the base itself."""

from __future__ import annotations

from collections.abc import Callable

from imagebuild.build.contents import Contents
from imagebuild.build.image import BaseDocuments
from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.oci.documents import CONFIG_LIMIT, ImageConfig, Index, Manifest, is_attestation
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import ImageTree, fetch_blob
from imagebuild.target.lock_types import Inputs


def base_of_tree(tree: ImageTree) -> BaseDocuments:
    """The documents of an image that was just read."""
    return BaseDocuments(
        tree.index,
        tree.nested,
        {str(platform): child.manifest for platform, child in tree.children.items()},
        {str(platform): child.config for platform, child in tree.children.items()},
    )


def keep_tree(tree: ImageTree, contents: Contents) -> dict[Digest, str]:
    """Keeps every raw document of the tree; digest to what it is."""
    kept: dict[Digest, str] = {}

    def keep(raw: bytes, what: str) -> None:
        kept[contents.put(raw)] = what

    if tree.index is not None:
        keep(tree.index.raw, "the base's index")
    for index in tree.nested.values():
        keep(index.raw, "an index inside the base's index")
    for platform, child in tree.children.items():
        keep(child.manifest.raw, f"the base's manifest for {platform}")
        keep(child.config.raw, f"the base's config for {platform}")
    return kept


def load_base(inputs: Inputs, contents: Contents, source: Callable[[], ImageSource]) -> BaseDocuments:
    """The documents that the lock names, each verified by its digest; `source` is opened only for what is not at hand."""

    def document(digest: Digest, media_type: str) -> bytes:
        raw = contents.get(digest)
        if raw is None:
            raw, _ = source().read_document(digest, media_type)
            contents.put(raw)
        return raw

    index: Index | None = None
    nested: dict[Digest, Index] = {}
    if inputs.is_index:
        index = Index.parse(
            document(inputs.base_digest, inputs.base_media_type), inputs.base_media_type, "the base's index"
        )
        wanted = {platform.manifest for platform in inputs.platforms}
        if not wanted <= {child.digest for child in index.manifests}:
            for child in index.manifests:
                if child.media_type in mt.INDEXES and not is_attestation(child):
                    raw = document(child.digest, child.media_type)
                    nested[child.digest] = Index.parse(raw, child.media_type, "an index inside the base's index")
    manifests: dict[str, Manifest] = {}
    configs: dict[str, ImageConfig] = {}
    for platform in inputs.platforms:
        name = str(platform.platform)
        manifest = Manifest.parse(
            document(platform.manifest, platform.manifest_type),
            platform.manifest_type,
            f"the base's manifest for {name}",
        )
        manifests[name] = manifest
        config = contents.get(manifest.config.digest)
        if config is None:
            config = fetch_blob(source(), manifest.config, f"the base's config for {name}", CONFIG_LIMIT)
            contents.put(config)
        configs[name] = ImageConfig.parse(config, f"the base's config for {name}")
    return BaseDocuments(index, nested, manifests, configs)
