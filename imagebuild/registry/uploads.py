"""Pushing blobs: mounts, sessions, resumption (distribution-spec: Pushing Blobs)."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

from imagebuild.content.digest import Digest
from imagebuild.content.reader import Readable, VerifiedReader
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.source import LocalBlob
from imagebuild.registry.blobs import has_blob
from imagebuild.registry.challenge import Scopes, repository_scopes
from imagebuild.registry.client import RepositoryClient
from imagebuild.registry.failure import DroppedConnection, Response
from imagebuild.registry.manifests import repository_missing
from imagebuild.registry.retry import RETRYABLE, Attempts
from imagebuild.registry.transport import Body

LOCAL_CHUNK = 64 << 20
"""Bytes of a request at most: what is smaller goes in one PUT, what is larger in PATCHes (some front ends take no
body above 100 MB)."""
STREAM_CHUNK = 8 << 20
"""The same for blobs that pass through: so much is held in memory, so that it can be sent again."""
RESTARTS = 3
MOUNT_REFUSALS = (400, 401, 403, 404, 405)
_RANGE = re.compile(r"(?:bytes[= ])?0-(\d{1,19})\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes from `start`, `length` of them; `open` gives them afresh each time."""

    start: int
    length: int
    open: Callable[[], Readable] = field(repr=False)


class UploadContent(Protocol):
    """What is uploaded.  Windows are asked for in order, or again from an earlier byte after a break."""

    @property
    def digest(self) -> Digest: ...
    @property
    def size(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    def window(self, start: int, limit: int) -> Window: ...


class LocalContent:
    """A blob that we hold."""

    chunk = LOCAL_CHUNK

    def __init__(self, blob: LocalBlob) -> None:
        self._blob = blob
        self.digest = blob.descriptor.digest
        self.size = blob.descriptor.size

    def window(self, start: int, limit: int) -> Window:
        def opened() -> Readable:
            stream = self._blob.open()
            stream.seek(start)
            return stream

        return Window(start, min(limit, self.size - start), opened)


class PassingContent:
    """A blob that comes from elsewhere and is not kept: verified while it passes, one chunk in memory.

    The last chunk is only given out when size and digest of the whole were found right.
    """

    chunk = STREAM_CHUNK

    def __init__(self, descriptor: Descriptor, open: Callable[[], Readable], what: str) -> None:
        self.digest = descriptor.digest
        self.size = descriptor.size
        self._open = open
        self._what = what
        self._source: Readable | None = None
        self._reader: VerifiedReader | None = None
        self._start = 0
        self._held = b""

    def window(self, start: int, limit: int) -> Window:
        if self._reader is None or start < self._start:
            self._restart()
        while start >= self._start + len(self._held) and start < self.size:
            self._advance(limit)
        offset = start - self._start
        data = self._held[offset : offset + limit]
        return Window(start, len(data), lambda: io.BytesIO(data))

    def _advance(self, limit: int) -> None:
        assert self._reader is not None
        self._start += len(self._held)
        parts, left = [], min(limit, self.size - self._start)
        while left:
            part = self._reader.read(min(left, 1 << 20))
            parts.append(part)
            left -= len(part)
        self._held = b"".join(parts)
        if self._start + len(self._held) == self.size:
            self._reader.read(1)

    def _restart(self) -> None:
        self.close()
        self._source = self._open()
        self._reader = VerifiedReader(self._source, self.digest, self.size, self._what)
        self._start, self._held = 0, b""

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
        self._source = self._reader = None


@dataclass(slots=True)
class Session:
    """An upload session: where its next step goes, and the least size of a chunk that the registry takes.

    Mutable: every step names the address of the next one.
    """

    url: str
    least: int = 0


def begin(
    repository: RepositoryClient, digest: Digest, *, mount: bool = False, source: str | None = None
) -> Session | None:
    """Starts an upload, or mounts: None where the blob is now in the repository (only 201 says so).

    With `mount` the registry may take the blob from `source`, a repository on the same host (None: from wherever it
    knows it).  A refused mount (202, or 400, 401, 403, 404, 405) comes back as an upload session.
    """
    doing = f"starting the upload of {digest.short(12)} to {repository.repository}"
    if mount:
        response = _post_mount(repository, digest, source)
        if response.status == 201:
            return None
        if response.status == 202:
            return _session(repository, response)
    response = repository.request("POST", "blobs/uploads/", accept=(202, 404), doing=doing)
    if response.status == 404:
        missing = repository_missing(repository, response, doing)
        raise missing or repository.transport.failure(response, doing)
    return _session(repository, response)


def mount_or_find(repository: RepositoryClient, digest: Digest, source: str | None) -> bool:
    """Whether the blob is in the repository now, mounted or there before; no session is left behind where the registry
    opened one instead of mounting."""
    if source is None and has_blob(repository, digest):
        return True
    response = _post_mount(repository, digest, source)
    if response.status == 201:
        return True
    found = source is not None and has_blob(repository, digest)
    if response.status == 202:
        cancel(repository, _session(repository, response))
    return found


def _post_mount(repository: RepositoryClient, digest: Digest, source: str | None) -> Response:
    query = f"mount={quote(str(digest), safe='')}"
    scopes: Scopes = frozenset()
    if source is not None:
        query += f"&from={quote(source, safe='')}"
        scopes = repository_scopes(source, "pull")
    response = repository.request(
        "POST",
        f"blobs/uploads/?{query}",
        accept=(201, 202, *MOUNT_REFUSALS),
        doing=f"mounting {digest.short(12)} into {repository.repository}",
        scopes=scopes,
    )
    if response.status == 201:
        _check_stored(repository, response, digest)
        repository.client.ledger.add(repository.repository, digest)
        repository.statistics.mounted()
    return response


def _session(repository: RepositoryClient, response: Response) -> Session:
    least = response.headers.get("OCI-Chunk-Min-Length", "")
    return Session(
        repository.location(response), min(int(least), 1 << 30) if least.isdigit() and len(least) < 12 else 0
    )


def cancel(repository: RepositoryClient, session: Session) -> None:
    """Gives a session up; registries forget sessions by themselves, so a fault here is none."""
    with contextlib.suppress(ImagebuildError):
        repository.request("DELETE", session.url, accept=range(100, 600), retry=False)


def parse_accepted(value: str | None) -> int | None:
    """How many bytes a session holds as its `Range` says (`0-N`, N being the last byte).

    `0-0` is what distribution says of one byte and of none; it counts as not known, like no header.
    """
    found = _RANGE.match(value or "")
    return int(found[1]) + 1 if found and int(found[1]) > 0 else None


def _check_stored(repository: RepositoryClient, response: Response, digest: Digest) -> None:
    claimed = response.headers.get("Docker-Content-Digest")
    if claimed is not None and claimed.strip() != str(digest):
        raise RefusedError(
            "registry.digest-mismatch",
            f"{repository.repository}: the registry stored another blob",
            expected=str(digest),
            found=claimed[:100],
        )


def push_blob(
    repository: RepositoryClient,
    content: UploadContent,
    session: Session | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Uploads a blob, resuming from the last accepted byte after breaks, in a session already begun or a new one.

    `stopped` is asked before each request; where it says yes the session is cancelled and UnavailableError
    `registry.stopped` raised.  Other errors are those of the requests, after a bounded number of attempts.
    """
    _Upload(repository, content, session, stopped).run()


class _Upload:
    def __init__(
        self, repository: RepositoryClient, content: UploadContent, session: Session | None, stopped: Callable[[], bool]
    ) -> None:
        self._repository = repository
        self._content = content
        self._session = session
        self._stopped = stopped
        self._position = 0
        self._resumed = False
        self._restarts = 0
        self._attempts: Attempts = repository.transport.attempts()
        self._doing = f"pushing {content.digest.short(12)} to {repository.repository}"

    def run(self) -> None:
        try:
            while not self._step():
                pass
        except Exception:
            if self._session is not None:
                cancel(self._repository, self._session)
            raise
        self._repository.client.ledger.add(self._repository.repository, self._content.digest)

    def _step(self) -> bool:
        """One request; True when the blob is stored."""
        if self._stopped():
            raise UnavailableError(
                "registry.stopped", f"{self._doing}: given up, since another part of the push failed"
            )
        if self._session is None:
            self._session = begin(self._repository, self._content.digest)
            assert self._session is not None
            self._position, self._resumed = 0, False
        whole = self._position == 0 and self._content.size <= max(self._content.chunk, self._session.least)
        last = whole or self._position >= self._content.size
        try:
            response = self._send(self._session, whole, last)
        except DroppedConnection as error:
            return self._recover(error, None)
        if response.status == 201 and last:
            _check_stored(self._repository, response, self._content.digest)
            return True
        if response.status == 202 and not last:
            self._accepted(self._session, response)
            return False
        return self._troubled(self._session, response)

    def _send(self, session: Session, whole: bool, last: bool) -> Response:
        limit = self._content.size if whole else max(self._content.chunk, session.least)
        window = self._content.window(self._position, limit) if whole or not last else Window(0, 0, io.BytesIO)
        self._end = window.start + window.length
        url, headers = session.url, {"Content-Type": "application/octet-stream"}
        if last:
            url += ("&" if "?" in url else "?") + f"digest={quote(str(self._content.digest), safe='')}"
        else:
            headers["Content-Range"] = f"{window.start}-{self._end - 1}"
        return self._repository.request(
            "PUT" if last else "PATCH",
            url,
            headers=headers,
            body=Body(window.open, window.length),
            accept=range(100, 600),
            retry=False,
        )

    def _accepted(self, session: Session, response: Response) -> None:
        session.url = self._repository.location(response)
        accepted = parse_accepted(response.headers.get("Range"))
        reached = self._end if accepted is None else accepted
        if not self._position < reached <= self._end:
            self._attempts.pause(self._bad_answer(f"says it holds {reached} bytes, and was sent {self._end}"))
            self._session = None
            return
        self._position = reached
        self._attempts.progressed()

    def _troubled(self, session: Session, response: Response) -> bool:
        status, codes = response.status, response.codes
        failure = self._repository.transport.failure(response, self._doing)
        if status in RETRYABLE:
            return self._recover(failure, self._repository.transport.retry_after(response.headers))
        accepted = parse_accepted(response.headers.get("Range"))
        if status == 416 and accepted is not None and accepted <= self._content.size:
            if response.headers.get("Location"):
                session.url = self._repository.location(response)
            self._attempts.pause(failure)
            self._position, self._resumed = accepted, True
            return False
        lost = status in (404, 410, 416) or "BLOB_UPLOAD_INVALID" in codes or "BLOB_UPLOAD_UNKNOWN" in codes
        if lost or (status == 400 and self._resumed):
            return self._restart(failure)
        if status < 400:
            failure = self._bad_answer(f"was answered {status}")
        raise failure

    def _recover(self, failure: ImagebuildError, wait: float | None) -> bool:
        """After a break: waits, then asks the session how far it came."""
        self._attempts.pause(failure, wait)
        self._repository.statistics.retry()
        assert self._session is not None
        response = self._repository.request(
            "GET", self._session.url, accept=(200, 202, 204, 400, 404, 405, 410, 416), doing=self._doing
        )
        accepted = parse_accepted(response.headers.get("Range"))
        if response.status not in (200, 202, 204) or accepted is None or accepted > self._content.size:
            return self._restart(failure)
        if response.headers.get("Location"):
            self._session.url = self._repository.location(response)
        if accepted > self._position:
            self._attempts.progressed()
        self._position, self._resumed = accepted, True
        return False

    def _restart(self, failure: ImagebuildError) -> bool:
        """The session is lost: because its last step succeeded and only the answer was lost, or for good."""
        lost, self._session = self._session, None
        if has_blob(self._repository, self._content.digest):
            return True
        if lost is not None:
            cancel(self._repository, lost)
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise failure
        return False

    def _bad_answer(self, what: str) -> UnavailableError:
        return UnavailableError("registry.bad-answer", f"{self._doing}: the registry {what}")
