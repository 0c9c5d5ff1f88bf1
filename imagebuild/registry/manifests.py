"""Manifests, indexes and tags (distribution-spec: Pulling manifests, Pushing Manifests, Listing Tags)."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from urllib.parse import urljoin

from imagebuild.content.digest import Digest
from imagebuild.content.reader import check_bytes
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError, clean
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import MANIFEST_LIMIT
from imagebuild.oci.json_text import parse, plain
from imagebuild.registry.client import RepositoryClient
from imagebuild.registry.failure import Response
from imagebuild.registry.transport import Body, origin

KNOWN = (mt.OCI_INDEX, mt.OCI_MANIFEST, mt.DOCKER_INDEX, mt.DOCKER_MANIFEST)
ACCEPT = ", ".join(KNOWN)
PAGES = 1000
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_NEXT = re.compile(r"<([^<>]*)>\s*;[^,]*\brel\s*=\s*\"?next\"?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FetchedManifest:
    """A manifest or index as received; `descriptor.digest` was computed over `raw`."""

    descriptor: Descriptor
    raw: bytes = field(repr=False)


def _path(reference: str | Digest) -> str:
    if isinstance(reference, str) and not _TAG.match(reference):
        raise InputError("registry.bad-tag", f"{reference!r} is not a tag", expected="letters, digits, and . _ - (128)")
    return f"manifests/{reference}"


def _claimed(response: Response) -> Digest | None:
    """The digest that a header claims; None where there is none that can be read."""
    try:
        return Digest.parse(response.headers.get("Docker-Content-Digest", ""))
    except ImagebuildError:
        return None


def _content_type(response: Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


class Manifests:
    """The manifests of one repository."""

    def __init__(self, repository: RepositoryClient) -> None:
        self._repository = repository

    def _doing(self, word: str, reference: str | Digest) -> str:
        joint = "@" if isinstance(reference, Digest) else ":"
        return f"{word} {self._repository.repository}{joint}{reference}"

    def resolve(self, reference: str | Digest) -> Descriptor | None:
        """The descriptor of a tag or digest, None where there is none (404).

        Asked with HEAD, which rate limits do not count; with GET where HEAD leaves digest, size or type out.  For a
        tag the digest is the registry's word until the bytes are read under it.
        """
        response = self._repository.request(
            "HEAD",
            _path(reference),
            headers={"Accept": ACCEPT},
            accept=(200, 404, 405, 501),
            doing=self._doing("reading", reference),
        )
        if response.status == 404:
            return None
        digest, size = _claimed(response), response.headers.get("Content-Length", "")
        kind = _content_type(response)
        if response.status != 200 or digest is None or kind not in KNOWN or not size.isdigit():
            found = self.find(reference)
            return None if found is None else found.descriptor
        if isinstance(reference, Digest) and digest != reference:
            raise RefusedError(
                "registry.digest-mismatch",
                f"{self._doing('reading', reference)}: the registry answers with another digest",
                expected=str(reference),
                found=str(digest),
            )
        if int(size) > MANIFEST_LIMIT:
            raise RefusedError(
                "oci.document-too-large",
                f"{self._doing('reading', reference)}: the manifest is too large",
                expected=f"at most {MANIFEST_LIMIT} bytes",
                found=f"{size} bytes",
            )
        return Descriptor(kind, digest, int(size))

    def find(self, reference: str | Digest, media_type: str | None = None) -> FetchedManifest | None:
        """The manifest, verified, or None (404)."""
        accept = ACCEPT if media_type is None or media_type in KNOWN else f"{ACCEPT}, {media_type}"
        doing = self._doing("reading", reference)
        response = self._repository.request(
            "GET", _path(reference), headers={"Accept": accept}, accept=(200, 404), limit=MANIFEST_LIMIT, doing=doing
        )
        if response.status == 404:
            return None
        raw = response.body
        # A tag has no digest of its own; a header that disagrees with the bytes shows that one of them was altered.
        expected = reference if isinstance(reference, Digest) else _claimed(response)
        if expected is not None:
            check_bytes(raw, expected, doing)
        kind = _document_type(response, media_type, doing)
        descriptor = Descriptor(kind, Digest.of(raw), len(raw))
        self._repository.client.keep_document(descriptor.digest, raw, kind)
        return FetchedManifest(descriptor, raw)

    def fetch(self, reference: str | Digest, media_type: str | None = None) -> FetchedManifest:
        """As `find`; raises RefusedError `registry.not-found` where there is none."""
        found = self.find(reference, media_type)
        if found is None:
            raise not_found(self._doing("reading", reference))
        return found

    def push(self, reference: str | Digest, raw: bytes, media_type: str) -> Response:
        """Puts a manifest under a tag or its digest; 201 is checked against the digest of `raw`.

        Raises RefusedError `registry.tag-immutable`, `registry.digest-mismatch`, and the errors of `status_failure`.
        """
        digest = Digest.of(raw)
        doing = self._doing("pushing", reference)
        response = self._repository.request(
            "PUT",
            _path(reference),
            headers={"Content-Type": media_type},
            body=Body(lambda: io.BytesIO(raw), len(raw)),
            accept=(201, 400, 403, 404, 409, 412),
            doing=doing,
        )
        if response.status != 201:
            raise self._refused(reference, response, doing)
        claimed = _claimed(response)
        if claimed is not None and claimed != digest:
            raise RefusedError(
                "registry.digest-mismatch",
                f"{doing}: the registry stored another digest",
                expected=str(digest),
                found=str(claimed),
            )
        self._repository.client.keep_document(digest, raw, media_type)
        return response

    def _refused(self, reference: str | Digest, response: Response, doing: str) -> ImagebuildError:
        failure = self._repository.transport.failure(response, doing)
        immutable = b"immutable" in response.body.lower() or response.status in (409, 412)
        if isinstance(reference, str) and immutable:
            return RefusedError(
                "registry.tag-immutable",
                failure.message,
                hint="tags of this repository cannot be moved: write another publish.tag in target.yaml, "
                "for example with {content.short}",
                details=failure.details,
            )
        return repository_missing(self._repository, response, doing) or failure

    def tags(self) -> list[str]:
        """All tags, page by page (RFC 8288 links)."""
        out: list[str] = []
        url = "tags/list?n=1000"
        for _ in range(PAGES):
            response = self._repository.request("GET", url, limit=MANIFEST_LIMIT, doing="listing tags")
            value = parse(response.body, "the list of tags") if response.body else {}
            listed = value.get("tags") if isinstance(value, dict) else None
            out.extend(item for item in listed or [] if isinstance(item, str) and _TAG.match(item))
            following = next_page(response)
            if following is None:
                return out
            url = following
        raise UnavailableError("registry.bad-answer", f"{self._repository.repository}: the list of tags does not end")


def _document_type(response: Response, asked: str | None, doing: str) -> str:
    """The media type: the header's where it is one we asked for, else the document's own."""
    kind = _content_type(response)
    if kind in KNOWN or (asked is not None and kind == asked):
        return kind
    try:
        value = parse(response.body, doing)
        own = value.get("mediaType") if isinstance(value, dict) and plain(value.get("schemaVersion")) == 2 else None
    except InputError:
        own = None
    if own in KNOWN:
        return str(own)
    raise RefusedError(
        "registry.not-a-manifest",
        f"{doing}: the answer is no manifest of a kind that can be read",
        expected="one of " + ACCEPT,
        found=clean(kind, 100) or "no Content-Type",
    )


def next_page(response: Response) -> str | None:
    """The address of the next page, on the same host only; None on the last page."""
    found = _NEXT.search(response.headers.get("Link", "")[:8192])
    if found is None:
        return None
    url: str = urljoin(response.url, found[1])
    if origin(url) != origin(response.url):
        raise UnavailableError("registry.bad-answer", "the next page of a list is on another host")
    return url


def not_found(doing: str) -> RefusedError:
    return RefusedError(
        "registry.not-found",
        f"{doing}: there is no such manifest",
        hint="check host, repository and tag; without a login a private repository looks empty",
    )


def repository_missing(repository: RepositoryClient, response: Response, doing: str) -> RefusedError | None:
    """The error for a repository that has to exist before something is pushed to it, or None."""
    if response.status != 404 or "NAME_UNKNOWN" not in response.codes:
        return None
    name = repository.repository
    hint = f"create the repository {name.path} on {name.host} first"
    if ".dkr.ecr." in name.host:
        hint += f": aws ecr create-repository --repository-name {name.path}"
    failure = repository.transport.failure(response, doing)
    return RefusedError("registry.repository-missing", failure.message, hint=hint, details=failure.details)
