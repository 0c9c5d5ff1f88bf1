"""One registry client a run, and its view of one repository."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urljoin

from imagebuild.content.digest import Digest
from imagebuild.errors import UnavailableError
from imagebuild.oci.reference import Repository
from imagebuild.registry.challenge import Scopes, repository_scopes
from imagebuild.registry.failure import Response, show_url
from imagebuild.registry.settings import Location, RegistrySettings
from imagebuild.registry.statistics import Statistics
from imagebuild.registry.transport import ANSWER_LIMIT, Body, Request, ResponseStream, Transport, origin

DOCUMENT_MEMORY = 64 << 20
"""Bytes of manifests kept in memory in one run."""


class Ledger:
    """Where blobs were seen or put in this run, and what tags point at, so that nothing is asked or sent twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[tuple[str, Digest], list[str]] = {}
        self._tags: dict[tuple[Repository, str], Digest | None] = {}
        self._busy: dict[object, threading.Lock] = {}

    def add(self, repository: Repository, digest: Digest) -> None:
        with self._lock:
            holders = self._holders.setdefault((repository.host, digest), [])
            if repository.path not in holders:
                holders.append(repository.path)

    def holds(self, repository: Repository, digest: Digest) -> bool:
        with self._lock:
            return repository.path in self._holders.get((repository.host, digest), ())

    def holder(self, host: str, digest: Digest) -> str | None:
        """A repository of the host that holds the blob, or None."""
        with self._lock:
            holders = self._holders.get((host, digest))
            return holders[0] if holders else None

    def tag(self, repository: Repository, tag: str) -> tuple[Digest | None] | None:
        """What a tag pointed at when it was asked for or put, in a tuple; None where it was not asked for."""
        with self._lock:
            key = (repository, tag)
            return (self._tags[key],) if key in self._tags else None

    def set_tag(self, repository: Repository, tag: str, digest: Digest | None) -> None:
        with self._lock:
            self._tags[repository, tag] = digest

    @contextmanager
    def alone(self, *key: object) -> Iterator[None]:
        """One thread at a time for one key: a blob on a host, the referrers of a subject."""
        with self._lock:
            lock = self._busy.setdefault(key, threading.Lock())
        with lock:
            yield


class RegistryClient:
    """What sources and sinks of one run share: connections, tokens, documents already read, blobs already placed."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.ledger = Ledger()
        self._lock = threading.Lock()
        self._documents: dict[Digest, tuple[bytes, str]] = {}
        self._held = 0

    @property
    def settings(self) -> RegistrySettings:
        return self.transport.settings

    @property
    def statistics(self) -> Statistics:
        return self.transport.statistics

    def security(self, host: str) -> str:
        """How sure the identity of a registry is, for evidence: `tls`, `tls-unverified` or `plain-http`."""
        if self.transport.base_url(host).startswith("http:"):
            return "plain-http"
        return "tls" if self.settings.security(host).verified else "tls-unverified"

    def document(self, digest: Digest) -> tuple[bytes, str] | None:
        """A verified manifest or index that was read before: bytes and media type."""
        with self._lock:
            return self._documents.get(digest)

    def keep_document(self, digest: Digest, raw: bytes, media_type: str) -> None:
        """`raw` must have been verified against `digest`."""
        with self._lock:
            if digest not in self._documents and self._held + len(raw) <= DOCUMENT_MEMORY:
                self._documents[digest] = (raw, media_type)
                self._held += len(raw)

    def repository(
        self, location: Location, statistics: Statistics, *actions: str, also_pull: Collection[str] = ()
    ) -> RepositoryClient:
        """A view of a repository whose tokens allow `actions`, and pulling from `also_pull` (paths on one host)."""
        scopes = repository_scopes(location.repository.path, *actions)
        for path in also_pull:
            scopes |= repository_scopes(path, "pull")
        return RepositoryClient(self, location.repository, scopes, statistics)

    def close(self) -> None:
        self.transport.close()


class RepositoryClient:
    """Requests about one repository, all with the same scopes."""

    def __init__(self, client: RegistryClient, repository: Repository, scopes: Scopes, statistics: Statistics) -> None:
        self.client = client
        self.repository = repository
        self.scopes = scopes
        self.statistics = statistics

    @property
    def transport(self) -> Transport:
        return self.client.transport

    def url(self, tail: str) -> str:
        """The URL of `/v2/REPOSITORY/TAIL`."""
        return f"{self.transport.base_url(self.repository.host)}/v2/{self.repository.path}/{tail}"

    def _request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        accept: Collection[int] = (200,),
        limit: int = ANSWER_LIMIT,
        retry: bool = True,
        doing: str = "",
        scopes: Scopes = frozenset(),
    ) -> Request:
        return Request(
            method,
            url if "://" in url else self.url(url),
            self.repository.host,
            self.repository.path,
            self.scopes | scopes,
            headers or {},
            body,
            accept,
            limit,
            retry,
            doing=doing,
        )

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        accept: Collection[int] = (200,),
        limit: int = ANSWER_LIMIT,
        retry: bool = True,
        doing: str = "",
        scopes: Scopes = frozenset(),
    ) -> Response:
        """`url` is absolute, or what follows `/v2/REPOSITORY/`.  Otherwise as Transport.request."""
        made = self._request(
            method,
            url,
            headers=headers,
            body=body,
            accept=accept,
            limit=limit,
            retry=retry,
            doing=doing,
            scopes=scopes,
        )
        return self.transport.request(made, self.statistics)

    def open(
        self, url: str, *, headers: Mapping[str, str] | None = None, accept: Collection[int] = (200,), doing: str = ""
    ) -> ResponseStream:
        """A GET whose body is read by the caller."""
        made = self._request("GET", url, headers=headers, accept=accept, doing=doing)
        return self.transport.open(made, self.statistics)

    def location(self, response: Response) -> str:
        """The absolute `Location` of an answer, its query kept.

        A registry behind a proxy that ends TLS often names itself with `http:`; the same host is meant, and TLS is
        not left.  Raises UnavailableError `registry.bad-answer` where there is none, `registry.bad-redirect` where it
        cannot be followed.
        """
        target = response.headers.get("Location")
        if not target:
            raise UnavailableError(
                "registry.bad-answer",
                f"{response.method} {show_url(response.url)} was answered {response.status} without a Location",
            )
        found = urljoin(response.url, target)
        base = self.transport.base_url(self.repository.host)
        scheme, host, port = origin(found)
        if scheme == "http" and base.startswith("https:") and host == origin(base)[1] and port in (80, origin(base)[2]):
            rest = found.partition("://")[2].partition("/")[2]
            found = f"{base}/{rest}"
        self.transport.check_location(response.url, found)
        return found
