"""Reading an OCI layout wherever its files are: a folder, or the members of an archive (image-spec image-layout.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol

from imagebuild.content.digest import Digest
from imagebuild.content.reader import check_bytes
from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import INDEX_DEPTH, MANIFEST_LIMIT, Index, Manifest, is_attestation
from imagebuild.oci.json_text import parse

REF_NAME = "org.opencontainers.image.ref.name"
"""The annotation of an entry of index.json that names an image (image-spec annotations.md)."""
INDEX_FILE = "index.json"
MARKER_FILE = "oci-layout"
MARKER = b'{"imageLayoutVersion":"1.0.0"}'
_MARKER_LIMIT = 4096
_DOCUMENT_LIMIT = 10_000
"""Documents read at most in one search for a digest or for referrers."""


class LayoutFiles(Protocol):
    """The files of a layout."""

    @property
    def location(self) -> str: ...

    def open(self, name: str) -> tuple[BinaryIO, int] | None:
        """A stream of a regular file (`blobs/sha256/HEX`) and its size in bytes; None where there is none."""
        ...

    def size(self, name: str) -> int | None:
        """Size of a regular file in bytes; None where there is none."""
        ...


def blob_name(digest: Digest) -> str:
    return f"blobs/sha256/{digest.hex}"


def entry_name(entry: Descriptor) -> str | None:
    """The ref name of an entry of index.json."""
    return entry.annotations.get(REF_NAME) or None


def check_marker(raw: bytes, where: str) -> None:
    """Raises InputError `oci.not-a-layout` or `oci.unknown-layout-version` (image-spec image-layout.md, oci-layout)."""
    value = parse(raw, f"{MARKER_FILE} in {where}")
    version = value.get("imageLayoutVersion") if isinstance(value, dict) else None
    if not isinstance(version, str):
        raise InputError("oci.not-a-layout", f"{where}: the file {MARKER_FILE} names no imageLayoutVersion")
    if version != "1.0.0":
        raise InputError(
            "oci.unknown-layout-version", f"{where} is a layout of another version", expected="1.0.0", found=version
        )


class LayoutReader:
    """An ImageSource over the files of a layout.

    Documents are checked by digest when they are read; index.json is read anew by each call, so another writer's
    entries are seen.  Nothing is ever opened for writing.
    """

    def __init__(self, files: LayoutFiles) -> None:
        self._files = files
        self._marked = False

    @property
    def location(self) -> str:
        return self._files.location

    def index(self) -> Index:
        """index.json as it is now.  Raises InputError `oci.not-a-layout`, `oci.unknown-layout-version`, and as
        Index.parse."""
        if not self._marked:
            check_marker(self._small(MARKER_FILE, _MARKER_LIMIT), self.location)
            self._marked = True
        return Index.parse(self._small(INDEX_FILE, MANIFEST_LIMIT), mt.OCI_INDEX, f"{INDEX_FILE} in {self.location}")

    def names(self) -> list[str]:
        """The ref names, sorted."""
        return sorted({name for entry in self.index().manifests if (name := entry_name(entry))})

    def resolve(self, name: str | None) -> Descriptor:
        """The entry of that ref name; None means the only image.

        Raises RefusedError `oci.not-found`, and InputError `oci.ambiguous-name` where several images would do.
        """
        index = self.index()
        if name is None:
            found = self.images(index)
        else:
            found = [entry for entry in index.manifests if entry_name(entry) == name]
        distinct = {entry.digest: entry for entry in reversed(found)}
        if len(distinct) == 1:
            return found[0]
        listed = ", ".join(entry_name(e) or f"@{e.digest}" for e in (found or self.images(index))[:20])
        if not distinct:
            raise RefusedError(
                "oci.not-found",
                f"{self.location} holds no image" + (f" named {name!r}" if name else ""),
                found=listed or "an empty layout",
                hint=f"write {self.location}:NAME or {self.location}@sha256:…" if listed else None,
            )
        raise InputError(
            "oci.ambiguous-name",
            f"{self.location} holds several images" + (f" named {name!r}" if name else ""),
            expected="one",
            found=listed,
            hint=f"write {self.location}:NAME or {self.location}@sha256:…",
        )

    def images(self, index: Index) -> list[Descriptor]:
        """The entries that are images: no attestations, no referrers or other artifacts, nothing but manifests and
        indexes, and no platform's manifest that an index beside it lists."""
        found = []
        inside: set[Digest] = set()
        for entry in index.manifests:
            if is_attestation(entry) or entry.media_type not in mt.INDEXES | mt.MANIFESTS:
                continue
            document = self._document(entry)
            if document is not None and (document.subject is not None or document.artifact_type is not None):
                continue
            if isinstance(document, Index):
                inside |= {child.digest for child in document.manifests}
            found.append(entry)
        return [entry for entry in found if entry.digest not in inside]

    def read_document(self, digest: Digest, media_type: str | None = None) -> tuple[bytes, str]:
        """Raw bytes and media type of a manifest or index, verified.

        Without `media_type` the digest must be reachable from index.json, whose descriptors say the type.
        Raises RefusedError `oci.not-found`, `content.digest-mismatch`; UnavailableError `oci.blob-missing`.
        """
        if media_type is None:
            found = next((d for d in self._reachable() if d.digest == digest), None)
            if found is None:
                raise RefusedError(
                    "oci.not-found",
                    f"{self.location} lists no manifest {digest}",
                    hint="the digest must be that of an index or manifest that index.json reaches",
                )
            media_type = found.media_type
        raw = self._small(blob_name(digest), MANIFEST_LIMIT)
        return check_bytes(raw, digest, f"the manifest {digest} in {self.location}"), media_type

    def open_blob(self, descriptor: Descriptor, what: str = "blob") -> BinaryIO:
        """A stream of the blob's file, of the right size and not otherwise checked.

        Raises UnavailableError `oci.blob-missing` (a sparse layout), RefusedError `content.size-mismatch`.
        """
        opened = self._files.open(blob_name(descriptor.digest))
        if opened is None:
            raise self._missing(what, descriptor.digest)
        stream, size = opened
        if size != descriptor.size:
            stream.close()
            raise RefusedError(
                "content.size-mismatch",
                f"{what} {descriptor.digest} in {self.location} has another size than promised",
                expected=f"{descriptor.size} bytes",
                found=f"{size} bytes",
            )
        return stream

    def has_blob(self, descriptor: Descriptor) -> bool:
        return self._files.size(blob_name(descriptor.digest)) == descriptor.size

    def referrers(self, subject: Digest) -> Sequence[Descriptor]:
        """Manifests of index.json whose `subject` is that digest, and what an index named `sha256-HEX` lists (the tag
        scheme of distribution-spec, Referrers).  A listed document that is absent cannot be judged: UnavailableError
        `oci.blob-missing`."""
        found: dict[Digest, Descriptor] = {}
        for entry in self.index().manifests:
            document = self._document(entry, must=True)
            if entry_name(entry) == f"sha256-{subject.hex}" and isinstance(document, Index):
                for child in document.manifests:
                    found.setdefault(child.digest, child)
            if document is None or document.subject is None or document.subject.digest != subject:
                continue
            kind = document.artifact_type
            if kind is None and isinstance(document, Manifest):
                kind = document.config.media_type
            found[entry.digest] = Descriptor(
                entry.media_type, entry.digest, entry.size, None, document.annotations, kind
            )
        return list(found.values())

    def _reachable(self) -> Iterator[Descriptor]:
        level: list[Descriptor] = list(self.index().manifests)
        seen: set[Digest] = set()
        for _ in range(INDEX_DEPTH + 1):
            yield from level
            below: list[Descriptor] = []
            for entry in level:
                if entry.media_type in mt.INDEXES and entry.digest not in seen and len(seen) < _DOCUMENT_LIMIT:
                    seen.add(entry.digest)
                    document = self._document(entry)
                    below.extend(document.manifests if isinstance(document, Index) else ())
            level = below

    def _document(self, entry: Descriptor, *, must: bool = False) -> Manifest | Index | None:
        """The parsed document; None for other media types, and (unless `must`) for one that is absent."""
        if entry.media_type not in mt.INDEXES | mt.MANIFESTS:
            return None
        if not must and self._files.size(blob_name(entry.digest)) is None:
            return None
        raw, _ = self.read_document(entry.digest, entry.media_type)
        what = f"{entry.digest} in {self.location}"
        if entry.media_type in mt.INDEXES:
            return Index.parse(raw, entry.media_type, what)
        return Manifest.parse(raw, entry.media_type, what)

    def _small(self, name: str, limit: int) -> bytes:
        opened = self._files.open(name)
        if opened is None:
            if name in (MARKER_FILE, INDEX_FILE):
                raise InputError(
                    "oci.not-a-layout",
                    f"{self.location} is not an OCI layout: {name} is missing",
                    expected=f"{MARKER_FILE}, {INDEX_FILE} and blobs/sha256",
                )
            raise self._missing("the manifest", Digest(name.rpartition("/")[2]))
        stream, size = opened
        with stream:
            data = stream.read(limit + 1) if size <= limit else b""
        if size > limit or len(data) > limit:
            raise RefusedError(
                "oci.document-too-large",
                f"{name} in {self.location} is too large",
                expected=f"at most {limit} bytes",
                found=f"{size} bytes",
            )
        return data

    def _missing(self, what: str, digest: Digest) -> UnavailableError:
        return UnavailableError(
            "oci.blob-missing",
            f"{what} {digest} is not in {self.location}",
            hint="the layout is sparse or damaged; read the blob from the image's base, or build again with --complete",
            details={"digest": str(digest)},
        )
