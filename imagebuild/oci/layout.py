"""OCI layouts on disk as source and sink (image-spec image-layout.md; cli.md, Layouts are sparse by default)."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from imagebuild.content.digest import Digest
from imagebuild.content.files import TEMPORARY_PREFIX, atomic_file, atomic_write, io_faults
from imagebuild.content.reader import Readable, VerifiedReader
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import MANIFEST_LIMIT, Index
from imagebuild.oci.json_text import dump
from imagebuild.oci.layout_reader import (
    INDEX_FILE,
    MARKER,
    MARKER_FILE,
    REF_NAME,
    LayoutReader,
    blob_name,
    entry_name,
)
from imagebuild.oci.lock import locked
from imagebuild.oci.reference import PathReference
from imagebuild.oci.source import Document, Image, ImageSource, StoreResult
from imagebuild.oci.tree import read_image_tree

_EMPTY_INDEX = dump({"schemaVersion": 2, "mediaType": mt.OCI_INDEX, "manifests": []})


@runtime_checkable
class _Closable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...

    def close(self) -> None: ...


class FolderFiles:
    """The files of a layout in a folder.  Symbolic links are followed for reading: what they show is checked by digest
    like the rest.  A name that is no regular file is refused before anything is read from it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def location(self) -> str:
        return f"oci:{self.path}"

    def open(self, name: str) -> tuple[BinaryIO, int] | None:
        path = self.path / name
        with io_faults(path, "reading"):
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return None
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                os.close(handle)
                raise RefusedError("oci.not-a-file", f"{path} is not a regular file")
            return os.fdopen(handle, "rb"), found.st_size

    def size(self, name: str) -> int | None:
        try:
            found = os.stat(self.path / name)
        except OSError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None


class LayoutSource(LayoutReader):
    """A layout folder as ImageSource (`oci:DIR`).  Nothing is read before the first question."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        super().__init__(FolderFiles(self.path))

    def blob_path(self, digest: Digest) -> Path:
        return self.path / blob_name(digest)


class LayoutSink:
    """A layout folder as ImageSink: made when it is not there, otherwise added to.

    Blobs come first, each whole or not at all, index.json last in one rename under a lock: after a kill the layout is
    what it was, and the same call completes.  Base layers are hard-linked from a base that is a layout on the same file
    system, and otherwise left out and reported; `complete` brings them in, verified.  Entries and keys of others stay.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._reader = LayoutReader(FolderFiles(self.path))

    @property
    def location(self) -> str:
        return f"oci:{self.path}"

    def store(
        self, image: Image, name: str | None = None, *, complete: bool = False, force: bool = False
    ) -> StoreResult:
        """Stores the image under a ref name, or as the layout's unnamed image.

        A name that stood for another image is moved, its old entry dropped and its digest told in `previous`.  Another
        unnamed image is replaced only if its config has `image.labels`, or with `force`.  An equal digest is success and
        writes nothing.  `uploaded_bytes` counts what was written.

        Raises InputError `oci.not-a-layout`, `oci.bad-reference`, `oci.ambiguous-name`; RefusedError
        `oci.unnamed-taken`, `content.digest-mismatch`; UnavailableError `oci.blob-missing`, `content.disk-full`.
        """
        reference = PathReference("oci", str(self.path), name, image.top.descriptor.digest)
        self._create()
        self._remove_orphans()
        with locked(self.path / "blobs", shared=True):
            index = self._reader.index()
            known = image.top.descriptor.digest in {e.digest for e in index.manifests}
            self._replaced(index, image, name, force)
            written = self._write_own(image, known)
            missing, fetched = self._write_base(image, complete, known)
            with locked(self.path):
                previous = self._enter(image, name, force)
        return StoreResult(str(reference), image.top.descriptor.digest, missing, written + fetched, previous=previous)

    def _create(self) -> None:
        """Makes an empty layout.  The marker comes last, so that a folder without it is none yet."""
        if (self.path / MARKER_FILE).is_file():
            self._reader.index()
            return
        with io_faults(self.path, "making"):
            self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            if (self.path / MARKER_FILE).is_file():
                return
            strangers = {n for n in os.listdir(self.path) if not n.startswith(".imagebuild-")} - {"blobs", INDEX_FILE}
            index = self.path / INDEX_FILE
            if strangers or (index.exists() and index.read_bytes() != _EMPTY_INDEX):
                raise InputError(
                    "oci.not-a-layout",
                    f"{self.path} is a folder with other things in it",
                    expected="an OCI layout, an empty folder, or none",
                    found=", ".join(sorted(strangers)[:5]) or INDEX_FILE,
                )
            with io_faults(self.path, "making"):
                (self.path / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
            atomic_write(index, _EMPTY_INDEX)
            atomic_write(self.path / MARKER_FILE, MARKER)

    def _remove_orphans(self) -> None:
        """Removes what killed writers left unfinished, unless one is at work now."""
        with io_faults(self.path, "making"):
            (self.path / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        with locked(self.path / "blobs", wait=False) as alone:
            if not alone:
                return
            with locked(self.path):
                for folder in (self.path, self.path / "blobs" / "sha256"):
                    for name in os.listdir(folder):
                        if name.startswith(TEMPORARY_PREFIX):
                            (folder / name).unlink(missing_ok=True)

    def _write_own(self, image: Image, known: bool) -> int:
        """Our layers and the documents; bytes written.  What is there already is hashed, unless index.json lists the
        image: then it was whole when that was written, and the size is enough."""
        written = 0
        for blob in image.own:
            if not self._has(blob.descriptor, verify=not known):
                with blob.open() as stream:
                    self._write(stream, blob.descriptor, "layer")
                written += blob.descriptor.size
        for document in documents(image):
            if not self._has(document.descriptor, verify=not known):
                atomic_write(self._blob(document.descriptor), document.raw)
                written += len(document.raw)
        return written

    def _write_base(self, image: Image, complete: bool, known: bool) -> tuple[tuple[Digest, ...], int]:
        missing: list[Digest] = []
        fetched = 0
        own = {blob.descriptor.digest for blob in image.own}
        for descriptor in {d.digest: d for d in image.base_layers if d.digest not in own}.values():
            check = complete and not known
            if self._has(descriptor, verify=check):
                continue
            if self._link(image.base, descriptor):
                if self._has(descriptor, verify=complete):
                    continue
                self._blob(descriptor).unlink(missing_ok=True)
            if not complete:
                missing.append(descriptor.digest)
                continue
            with base_blob(image.base, descriptor) as stream:
                self._write(stream, descriptor, "base layer")
            fetched += descriptor.size
        return tuple(missing), fetched

    def _blob(self, descriptor: Descriptor) -> Path:
        return self.path / blob_name(descriptor.digest)

    def _has(self, descriptor: Descriptor, *, verify: bool) -> bool:
        path = self._blob(descriptor)
        try:
            found = path.stat()
        except OSError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_size != descriptor.size:
            return False
        if not verify:
            return True
        with io_faults(path, "reading"), open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == descriptor.digest.hex

    def _write(self, stream: Readable, descriptor: Descriptor, what: str) -> None:
        reader = VerifiedReader(stream, descriptor.digest, descriptor.size, what)
        with atomic_file(self._blob(descriptor)) as out:
            while part := reader.read(1 << 20):
                out.write(part)

    def _link(self, base: ImageSource | None, descriptor: Descriptor) -> bool:
        """A hard link to the base's file; False where there can be none.  A link in the base is followed first, so that
        no symbolic link gets in here."""
        if not isinstance(base, LayoutSource) or not base.has_blob(descriptor):
            return False
        target = self._blob(descriptor)
        try:
            found = base.blob_path(descriptor.digest).resolve(strict=True)
            target.unlink(missing_ok=True)
            os.link(found, target)
        except OSError:
            return target.is_file()
        return True

    def _enter(self, image: Image, name: str | None, force: bool) -> Digest | None:
        """Writes the entry of index.json; the digest that it replaced."""
        index = self._reader.index()
        top = image.top.descriptor
        old = self._replaced(index, image, name, force)
        if any(entry.digest == top.digest for entry in old):
            return None
        entry = layout_entry(top, name)
        listed: list[Any] = list(index.value.get("manifests") or [])
        places = [n for n, found in enumerate(index.manifests) if any(found is o for o in old)]
        if places:
            listed[places[0]] = entry
            for number in reversed(places[1:]):
                del listed[number]
        else:
            listed.append(entry)
        raw = dump({**index.value, "manifests": listed})
        if len(raw) > MANIFEST_LIMIT:
            raise RefusedError("oci.document-too-large", f"{INDEX_FILE} in {self.location} would be too large")
        atomic_write(self.path / INDEX_FILE, raw)
        return old[0].digest if old else None

    def _replaced(self, index: Index, image: Image, name: str | None, force: bool) -> list[Descriptor]:
        """The entries that give way.  Asked before anything is written, and again when the name is about to move."""
        old = _standing(self._reader, index, name)
        same = any(entry.digest == image.top.descriptor.digest for entry in old)
        if name is None and old and not same and not force:
            self._check_unnamed(old, image.labels)
        return old

    def _check_unnamed(self, old: list[Descriptor], labels: Mapping[str, str]) -> None:
        if len(old) == 1 and labels:
            try:
                tree = read_image_tree(self._reader, old[0])
            except ImagebuildError:
                tree = None
            if tree and all(labels.items() <= child.config.labels.items() for child in tree.children.values()):
                return
        raise RefusedError(
            "oci.unnamed-taken",
            f"{self.location} holds another unnamed image",
            expected="no unnamed image, or an earlier one of this target",
            found=", ".join(str(entry.digest) for entry in old[:5]),
            hint=f"name the new image: {self.location}:NAME",
        )


def documents(image: Image) -> Iterator[Document]:
    """The image's documents in the order of storing: configs, platform manifests, the top."""
    yield from image.configs
    yield from image.manifests
    yield image.top


def base_blob(base: ImageSource | None, descriptor: Descriptor) -> AbstractContextManager[Readable]:
    """A context that gives an unverified stream of a base layer and closes it."""
    if base is None:
        raise UnavailableError(
            "oci.blob-missing",
            f"the base layer {descriptor.digest} is at hand nowhere",
            expected=f"{descriptor.size} bytes of {descriptor.media_type}",
            details={"digest": str(descriptor.digest)},
        )
    return opened_blob(base, descriptor, "base layer")


def opened_blob(source: ImageSource, descriptor: Descriptor, what: str) -> AbstractContextManager[Readable]:
    """A context that gives an unverified stream of a blob and closes it, where it can be closed."""
    stream = source.open_blob(descriptor, what)
    return closing(stream) if isinstance(stream, _Closable) else nullcontext(stream)


def layout_current(path: Path | str, name: str | None) -> Digest | None:
    """The digest that a name (None: the unnamed image) stands for in a layout; None where there is no such layout, no
    such name, or no single answer.  Damage is an error as in reading."""
    reader = LayoutSource(path)
    if not (reader.path / MARKER_FILE).is_file():
        return None
    digests = {entry.digest for entry in _standing(reader, reader.index(), name)}
    return digests.pop() if len(digests) == 1 else None


def _standing(reader: LayoutReader, index: Index, name: str | None) -> list[Descriptor]:
    """The entries that a store under `name` replaces."""
    if name is not None:
        return [entry for entry in index.manifests if entry_name(entry) == name]
    return [entry for entry in reader.images(index) if entry_name(entry) is None]


def layout_entry(top: Descriptor, name: str | None) -> dict[str, Any]:
    """The entry of index.json for an image under a ref name."""
    annotations = {k: v for k, v in top.annotations.items() if k != REF_NAME}
    if name is not None:
        annotations[REF_NAME] = name
    return replace(top, annotations=annotations).to_json()
