"""An image on its way into an engine: as a value for a sink, or as a layout that borrows the blobs of another."""

from __future__ import annotations

from pathlib import Path

from imagebuild.check.runner import CheckedImage
from imagebuild.check.runners import owner
from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.content.reader import VerifiedReader
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.json_text import dump
from imagebuild.oci.layout import LayoutSource, layout_entry, opened_blob
from imagebuild.oci.layout_reader import INDEX_FILE, MARKER, MARKER_FILE, blob_name
from imagebuild.oci.source import Document, Image
from imagebuild.oci.tree import Child, read_image_tree

REPOSITORY = "localhost/imagebuild-check"
"""Repository of the names under which images are in an engine while they are checked."""


def child_of(image: CheckedImage) -> Child:
    """Manifest and config of the checked image, verified."""
    return next(iter(read_image_tree(image.source, image.digest, [image.platform]).children.values()))


def engine_name(image: CheckedImage) -> str:
    """`localhost/imagebuild-check:HEX`, by the platform manifest's digest."""
    return f"{REPOSITORY}:{image.digest.hex[:32]}"


def held_name(image: CheckedImage, *, keep: bool) -> str:
    """The name by which one process holds the image in an engine: as long as any holds it, it stays.  An image that is to
    be kept has its plain `engine_name`, which nobody takes away."""
    return engine_name(image) if keep else f"{REPOSITORY}:{owner.image_tag(image.digest.hex[:32])}"


def is_stale_name(name: str) -> bool:
    """Whether a name is one by which a process held an image that is no more."""
    repository, _, tag = name.rpartition(":")
    return repository == REPOSITORY and owner.is_stale_tag(tag)


def as_image(image: CheckedImage, child: Child) -> Image:
    """The image for a sink that takes one platform's."""
    raw = child.manifest.raw
    top = Document(Descriptor(child.manifest.media_type, image.digest, len(raw)), raw)
    config = Document(child.manifest.config, child.config.raw)
    return Image(top, (), (config,), (), child.manifest.layers, image.source)


def borrowed_layout(image: CheckedImage, child: Child, folder: Path) -> Path:
    """A complete layout of this one image in `folder`, which must not exist: layers that lie in a layout on this machine
    are symbolic links to it, others are fetched, and whoever reads it checks all of them by digest.

    Raises what reading the image raises, and UnavailableError `content.io`, `content.disk-full`.
    """
    blobs = folder / "blobs" / "sha256"
    manifest = child.manifest
    entry = Descriptor(manifest.media_type, image.digest, len(manifest.raw))
    with io_faults(folder, "writing"):
        blobs.mkdir(parents=True)
        (folder / MARKER_FILE).write_bytes(MARKER)
        (folder / blob_name(image.digest)).write_bytes(manifest.raw)
        (folder / blob_name(manifest.config.digest)).write_bytes(child.config.raw)
        for layer in {layer.digest: layer for layer in manifest.layers}.values():
            target = folder / blob_name(layer.digest)
            lying = _lying(image, layer)
            if lying is not None:
                target.symlink_to(lying)
                continue
            with opened_blob(image.source, layer, "layer") as stream, open(target, "wb") as out:
                reader = VerifiedReader(stream, layer.digest, layer.size, "layer")
                while part := reader.read(1 << 20):
                    out.write(part)
        index = {"schemaVersion": 2, "mediaType": mt.OCI_INDEX, "manifests": [layout_entry(entry, engine_name(image))]}
        (folder / INDEX_FILE).write_bytes(dump(index))
    return folder


def _lying(image: CheckedImage, layer: Descriptor) -> Path | None:
    image.source.has_blob(layer)  # opens the base, where only that has it
    path = local_blob(image, layer.digest)
    return path if path is not None and path.is_file() and path.stat().st_size == layer.size else None


def local_blob(image: CheckedImage, digest: Digest) -> Path | None:
    """Where a blob lies on this machine, if the image's source (or its base) is a layout folder."""
    for source in getattr(image.source, "sources", lambda: (image.source,))():
        if isinstance(source, LayoutSource):
            path = source.blob_path(digest)
            if path.is_file():
                return path.resolve()
    return None
