"""Blobs: asked for, read with resumption, mounted (distribution-spec: Pulling blobs, Mounting a blob)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, UnavailableError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.registry.client import RepositoryClient
from imagebuild.registry.failure import DroppedConnection
from imagebuild.registry.retry import Attempts
from imagebuild.registry.transport import ResponseStream

_CONTENT_RANGE = re.compile(r"bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19}|\*)\s*\Z", re.IGNORECASE)
_PROGRESS = 1 << 20
"""Bytes after which a stream that broke before counts as going again."""
REOPENINGS = 100


def parse_content_range(value: str | None) -> tuple[int, int, int | None] | None:
    """First byte, last byte and whole size (None for `*`) of a `Content-Range` (RFC 9110, 14.4)."""
    found = _CONTENT_RANGE.match(value or "")
    if found is None or int(found[1]) > int(found[2]):
        return None
    return int(found[1]), int(found[2]), None if found[3] == "*" else int(found[3])


def has_blob(repository: RepositoryClient, digest: Digest) -> bool:
    """Whether the repository holds the blob: HEAD, asked once a run where the answer is yes."""
    ledger = repository.client.ledger
    if ledger.holds(repository.repository, digest):
        return True
    response = repository.request(
        "HEAD", f"blobs/{digest}", accept=(200, 404), doing=f"looking for the blob {digest.short(12)}"
    )
    if response.status == 200:
        ledger.add(repository.repository, digest)
        return True
    return False


class BlobStream:
    """A blob's bytes, unverified: wrap it in VerifiedReader.

    Where the connection breaks, the stream goes on at the byte it came to, with one range at a time: only 206 with
    the matching Content-Range counts; 200 is the whole blob from byte 0, of which what was given already is skipped;
    anything else is asked again without a range.  `places` are tried in order, mirrors first.
    """

    def __init__(self, places: Sequence[RepositoryClient], descriptor: Descriptor, what: str = "blob") -> None:
        self._places = list(places)
        self._descriptor = descriptor
        self._what = what
        self._position = 0
        self._gained = 0
        self._opened = 0
        self._attempts: Attempts = places[0].transport.attempts()
        self._stream: ResponseStream | None = self._open()
        self._closed = False

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(1 << 20), b""))
        while size and not self._closed:
            try:
                if self._stream is None:
                    self._stream = self._open()
                data = self._stream.read(size)
                if not data and self._is_cut(self._stream):
                    raise DroppedConnection("registry.dropped", f"{self._what}: the answer ended too early")
            except DroppedConnection as error:
                self._drop()
                self._opened += 1
                if self._opened >= REOPENINGS:
                    raise
                self._attempts.pause(error)
                self._places[0].statistics.retry()
                continue
            self._position += len(data)
            self._gained += len(data)
            if self._gained >= _PROGRESS:
                self._attempts.progressed()
                self._gained = 0
            return data
        return b""

    def _is_cut(self, stream: ResponseStream) -> bool:
        """Whether an end before the promised size is a break; where the answer says its own length, it is not: the
        blob is then shorter than its descriptor says."""
        if self._position >= self._descriptor.size:
            return False
        if stream.status == 206:
            return True
        return "Content-Length" not in stream.headers and "Transfer-Encoding" not in stream.headers

    def _open(self) -> ResponseStream:
        while True:
            place = self._places[0]
            try:
                return self._open_at(place)
            except ImagebuildError:
                # What a mirror does not have, or does not give, the registry itself is asked for.
                if len(self._places) == 1:
                    raise
                del self._places[0]

    def _open_at(self, place: RepositoryClient) -> ResponseStream:
        url, doing = f"blobs/{self._descriptor.digest}", f"reading {self._what} {self._descriptor.digest.short(12)}"
        if self._position:
            stream = place.open(
                url,
                headers={"Range": f"bytes={self._position}-{self._descriptor.size - 1}"},
                accept=(200, 206, 416),
                doing=doing,
            )
            if stream.status == 206 and self._matches(stream):
                return stream
            if stream.status != 200:
                stream.close()
                stream = place.open(url, doing=doing)
        else:
            stream = place.open(url, doing=doing)
        left = self._position
        while left:
            part = stream.read(min(left, 1 << 20))
            if not part:
                stream.close()
                raise UnavailableError("registry.bad-answer", f"{doing}: the blob has become shorter")
            left -= len(part)
        return stream

    def _matches(self, stream: ResponseStream) -> bool:
        found = parse_content_range(stream.headers.get("Content-Range"))
        return (
            found is not None
            and found[0] == self._position
            and found[1] < self._descriptor.size
            and found[2] in (None, self._descriptor.size)
        )

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        self._closed = True
        self._drop()

    def __enter__(self) -> BlobStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
