"""`oci-archive:FILE[:NAME]`: an OCI layout in one tar, as source and sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_file
from imagebuild.content.reader import VerifiedReader
from imagebuild.errors import ImagebuildError, RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.archive_files import ArchiveFiles
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.json_text import dump
from imagebuild.oci.layout import base_blob, documents, layout_entry
from imagebuild.oci.layout_reader import INDEX_FILE, MARKER, MARKER_FILE, LayoutReader, blob_name, entry_name
from imagebuild.oci.plain_tar import TarWriter
from imagebuild.oci.reference import PathReference
from imagebuild.oci.source import Image, StoreResult


class OciArchiveSource(LayoutReader):
    """An archive as ImageSource.  Nothing is unpacked, and nothing is read before the first question."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        super().__init__(ArchiveFiles(self.path, "oci-archive"))


class OciArchiveSink:
    """An archive as ImageSink: one image in a tar whose bytes depend on the image and its name alone.

    The file appears whole or not at all.  It always holds every blob: base layers are fetched from the image's base,
    verified, on their way into it.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def location(self) -> str:
        return f"oci-archive:{self.path}"

    def store(
        self, image: Image, name: str | None = None, *, complete: bool = True, force: bool = False
    ) -> StoreResult:
        """Writes the archive; `complete` is always so.

        A file that is no archive, or one that holds images of other names, is replaced only with `force`.  An archive
        that holds this very image is left alone.  `uploaded_bytes` counts the bytes of blobs that were written.
        Raises InputError `oci.bad-reference`; RefusedError `oci.archive-taken`, `content.digest-mismatch`;
        UnavailableError `oci.blob-missing`, `content.disk-full`.
        """
        top = image.top.descriptor
        reference = PathReference("oci-archive", str(self.path), name, top.digest)
        previous = None
        if self.path.exists():
            held = self._held(name, force)
            if held == top.digest and self._is_whole(image):
                return StoreResult(str(reference), top.digest)
            previous = None if held == top.digest else held
        written = 0
        with atomic_file(self.path) as out:
            tar = TarWriter(out)
            tar.add(MARKER_FILE, MARKER)
            entries = [layout_entry(top, name)]
            tar.add(INDEX_FILE, dump({"schemaVersion": 2, "mediaType": mt.OCI_INDEX, "manifests": entries}))
            seen: set[Digest] = set()
            for document in reversed(list(documents(image))):
                if document.descriptor.digest not in seen:
                    tar.add(blob_name(document.descriptor.digest), document.raw)
                    seen.add(document.descriptor.digest)
                    written += len(document.raw)
            for descriptor, reader in layer_readers(image):
                if descriptor.digest not in seen:
                    written += tar.copy(blob_name(descriptor.digest), reader)
                    seen.add(descriptor.digest)
            tar.close()
        return StoreResult(str(reference), top.digest, uploaded_bytes=written, previous=previous)

    def _held(self, name: str | None, force: bool) -> Digest | None:
        """The digest that the file holds under the name; refuses a file that is not ours to replace."""
        try:
            entries = OciArchiveSource(self.path).index().manifests
        except ImagebuildError as error:
            if force:
                return None
            raise RefusedError(
                "oci.archive-taken",
                f"{self.path} is there and is no archive that could be replaced ({error.message})",
                hint="name another file, or remove this one",
            ) from error
        others = sorted({entry_name(e) or "an unnamed image" for e in entries if entry_name(e) != name})
        if others and not force:
            raise RefusedError(
                "oci.archive-taken",
                f"{self.path} holds other images, which would be lost",
                expected=name or "an unnamed image",
                found=", ".join(others),
                hint="name another file, or remove this one",
            )
        return next((e.digest for e in entries if entry_name(e) == name), None)

    def _is_whole(self, image: Image) -> bool:
        source = OciArchiveSource(self.path)
        needed = [*image.base_layers, *(b.descriptor for b in image.own), *(d.descriptor for d in documents(image))]
        return all(source.has_blob(descriptor) for descriptor in needed)


def layer_readers(image: Image) -> Iterator[tuple[Descriptor, VerifiedReader]]:
    """Every layer with its verified stream, the base's first; a stream is closed when the next is asked for."""
    own = {blob.descriptor.digest: blob for blob in image.own}
    for descriptor in image.base_layers:
        if descriptor.digest not in own:
            with base_blob(image.base, descriptor) as stream:
                yield descriptor, VerifiedReader(stream, descriptor.digest, descriptor.size, "base layer")
    for blob in image.own:
        with blob.open() as stream:
            yield blob.descriptor, VerifiedReader(stream, blob.descriptor.digest, blob.descriptor.size, "layer")
