"""Artifacts about an image, put into the layout that holds it: the layout's index is its list of referrers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imagebuild.content.files import atomic_file, atomic_write
from imagebuild.content.reader import VerifiedReader
from imagebuild.errors import RefusedError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import MANIFEST_LIMIT, Manifest
from imagebuild.oci.json_text import dump
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.layout_reader import INDEX_FILE, blob_name
from imagebuild.oci.lock import locked
from imagebuild.oci.source import Document, LocalBlob


def attach_to_layout(path: Path, manifest: Document, blobs: Sequence[LocalBlob]) -> bool:
    """Stores an artifact that has a `subject`, its blobs first; False where index.json lists it already.

    The entry carries artifactType and annotations as the referrers API would show them and no ref name, so what the
    layout's names mean stays.  Another writer's entries stay too.  Raises InputError `oci.not-a-layout` and what reading
    index.json raises; RefusedError `content.digest-mismatch`, `oci.document-too-large`.
    """
    parsed = Manifest.parse(manifest.raw, manifest.descriptor.media_type, "the referrer's manifest")
    if parsed.subject is None:
        raise ValueError("a referrer has a subject")
    reader = LayoutSource(path)
    reader.index()
    with locked(path / "blobs", shared=True):
        for blob in blobs:
            target = path / blob_name(blob.descriptor.digest)
            with blob.open() as stream, atomic_file(target) as out:
                checked = VerifiedReader(stream, blob.descriptor.digest, blob.descriptor.size)
                while part := checked.read(1 << 20):
                    out.write(part)
        atomic_write(path / blob_name(manifest.descriptor.digest), manifest.raw)
        with locked(path):
            return _enter(path, reader, parsed)


def _enter(path: Path, reader: LayoutSource, manifest: Manifest) -> bool:
    index = reader.index()
    if any(entry.digest == manifest.digest for entry in index.manifests):
        return False
    entry = Descriptor(
        manifest.media_type,
        manifest.digest,
        len(manifest.raw),
        annotations=manifest.annotations,
        artifact_type=manifest.artifact_type or manifest.config.media_type,
    )
    raw = dump({**index.value, "manifests": [*(index.value.get("manifests") or []), entry.to_json()]})
    if len(raw) > MANIFEST_LIMIT:
        raise RefusedError("oci.document-too-large", f"{INDEX_FILE} in {reader.location} would be too large")
    atomic_write(path / INDEX_FILE, raw)
    return True
