"""Requests to registries: authentication, redirects, retries and counting, in this order from the inside out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

from imagebuild import __version__
from imagebuild.content.reader import Readable
from imagebuild.errors import ImagebuildError, UnavailableError
from imagebuild.registry.authentication import Authenticator, Authorization
from imagebuild.registry.challenge import Scopes
from imagebuild.registry.connections import Connections, OutgoingBody, network_failure
from imagebuild.registry.credentials import Credentials
from imagebuild.registry.failure import ERROR_BODY_LIMIT, DroppedConnection, Response, show_url, status_failure
from imagebuild.registry.retry import RETRYABLE, Attempts, RetryPolicy, Settling, Timing, parse_retry_after
from imagebuild.registry.secret import SecretRegister
from imagebuild.registry.settings import RegistrySettings
from imagebuild.registry.statistics import Statistics

if TYPE_CHECKING:
    import urllib3

Answer = TypeVar("Answer")

REDIRECTS = 8
ANSWER_LIMIT = 1 << 20
_FOLLOWED = {301: ("GET", "HEAD"), 302: ("GET", "HEAD"), 303: ("GET", "HEAD"), 307: None, 308: None}


@dataclass(frozen=True, slots=True)
class Body:
    """What a request sends: `open` gives a fresh stream of `length` bytes each time it has to be sent."""

    open: Callable[[], Readable] = field(repr=False)
    length: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a registry's client.

    `url` is absolute; `registry` the registry's name, whose authorization is added where the URL is of its own host
    (None: never); `repository` its path, for credentials that are kept for a part of a registry; `accept` the statuses
    that are an answer; `limit` the bytes that the answer's body may have; `retry` whether the transport repeats it
    (401s are always repeated); `away` whether a redirect may lead to another host; `doing` words for the error.
    """

    method: str
    url: str
    registry: str | None
    repository: str = ""
    scopes: Scopes = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    accept: Collection[int] = (200,)
    limit: int = ANSWER_LIMIT
    retry: bool = True
    away: bool = True
    doing: str = ""


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL (RFC 6454)."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    return parts.scheme, (parts.hostname or "").lower(), port or (443 if parts.scheme == "https" else 80)


class ResponseStream:
    """An answer whose body is read piece by piece.  Reads raise DroppedConnection where the connection breaks."""

    def __init__(self, raw: urllib3.BaseHTTPResponse, method: str, url: str, statistics: Statistics) -> None:
        self._raw = raw
        self._statistics = statistics
        self.method = method
        self.url = url
        self.status = raw.status
        self.headers: Mapping[str, str] = raw.headers

    def header_lines(self, name: str) -> list[str]:
        return self._raw.headers.getlist(name)

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = self._raw.read(size if size >= 0 else None, decode_content=False)
        except Exception as error:
            self.close()
            if isinstance(error, (OSError, ValueError)) or type(error).__module__.startswith("urllib3"):
                raise network_failure(error, f"{self.method} {show_url(self.url)}") from None
            raise
        self._statistics.downloaded(len(data))
        return data

    def read_whole(self, limit: int) -> bytes:
        """The body, at most `limit` bytes; raises UnavailableError `registry.answer-too-large`."""
        parts, size = [], 0
        while part := self.read(1 << 16):
            parts.append(part)
            size += len(part)
            if size > limit:
                self.close()
                raise UnavailableError(
                    "registry.answer-too-large",
                    f"{self.method} {show_url(self.url)}: the answer is too large",
                    expected=f"at most {limit} bytes",
                )
        self._raw.release_conn()
        return b"".join(parts)

    def close(self) -> None:
        """Gives the connection up; it is used again only when the body was read to its end."""
        self._raw.close()

    def __enter__(self) -> ResponseStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Transport:
    """The one door to registries.  Safe to use from several threads; one transport serves one run."""

    def __init__(
        self,
        settings: RegistrySettings,
        credentials: Credentials,
        policy: RetryPolicy | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.settings = settings
        self.secrets = SecretRegister()
        self.statistics = settings.options.statistics
        self._credentials = credentials
        self._connections = Connections(settings)
        self._policy = policy or RetryPolicy()
        self._timing = timing or Timing()
        self._lock = threading.Lock()
        self._authenticators: dict[tuple[str, str], Authenticator] = {}

    def base_url(self, registry: str) -> str:
        return self._connections.base_url(registry)

    def attempts(self) -> Attempts:
        return Attempts(self._policy, self._timing)

    def settling(self) -> Settling:
        return Settling(self._timing)

    def retry_after(self, headers: Mapping[str, str]) -> float | None:
        return parse_retry_after(headers.get("Retry-After"), self._timing.now())

    def failure(self, response: Response, doing: str = "") -> ImagebuildError:
        return status_failure(response, self.secrets, doing)

    def request(self, request: Request, statistics: Statistics | None = None) -> Response:
        """The whole answer, its status one of `request.accept`.

        Raises the errors of `status_failure`, DroppedConnection, UnavailableError `registry.unreachable`, `.tls`,
        `.answer-too-large`, `.bad-redirect`.  Without `retry` any status comes back and nothing is repeated.
        """

        def read(stream: ResponseStream) -> Response:
            good = stream.status in request.accept
            body = stream.read_whole(request.limit if good else max(request.limit, ERROR_BODY_LIMIT))
            return Response(stream.method, stream.url, stream.status, stream.headers, body)

        return self._repeat(request, statistics or self.statistics, read)

    def open(self, request: Request, statistics: Statistics | None = None) -> ResponseStream:
        """The answer with its body unread.  Errors as `request`; those while reading are the caller's."""
        return self._repeat(request, statistics or self.statistics, lambda stream: stream)

    def _repeat(self, request: Request, statistics: Statistics, read: Callable[[ResponseStream], Answer]) -> Answer:
        attempts = self.attempts()
        while True:
            failure: ImagebuildError
            wait = None
            try:
                stream = self._authenticated(request, statistics)
                if stream.status in request.accept or not request.retry:
                    return read(stream)
                response = _error_response(stream)
                failure = status_failure(response, self.secrets, request.doing, self._sent(request))
                if response.status not in RETRYABLE:
                    raise failure
                wait = self.retry_after(response.headers)
            except DroppedConnection as error:
                if not request.retry:
                    raise
                failure = error
            attempts.pause(failure, wait)
            statistics.retry()

    def _authenticated(self, request: Request, statistics: Statistics) -> ResponseStream:
        registry = request.registry
        if registry is None or origin(request.url) != origin(self.base_url(registry)):
            return self._followed(request, None, statistics)
        authenticator = self._authenticator(registry, request.repository)
        used = authenticator.authorization(request.scopes)
        for turn in range(3):
            stream = self._followed(request, used, statistics)
            if stream.status != 401 or turn == 2 or origin(stream.url) != origin(request.url):
                return stream
            lines = stream.header_lines("WWW-Authenticate")
            try:
                better = authenticator.challenged(lines, request.scopes, used, exclusive=turn == 1 and used is not None)
            except BaseException:
                stream.close()
                raise
            if better is None:
                return stream
            _drain(stream)
            statistics.challenged()
            used = better
        raise AssertionError("unreachable")

    def _sent(self, request: Request) -> str | None:
        return None if request.registry is None else self._authenticator(request.registry, request.repository).sent()

    def _authenticator(self, registry: str, path: str) -> Authenticator:
        part = self._credentials.part(registry, path)
        encrypted = self.base_url(registry).startswith("https:")
        with self._lock:
            found = self._authenticators.get((registry, part))
            if found is None:
                found = self._authenticators[registry, part] = Authenticator(
                    registry,
                    lambda: self._credentials.lookup(registry, part),
                    self._exchange_token,
                    self._timing.monotonic,
                    self.secrets,
                    encrypted,
                )
            return found

    def _exchange_token(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> Response:
        """A request to a token server; it is counted apart."""
        statistics = Statistics()
        request = Request(
            method,
            url,
            None,
            headers=headers,
            body=None if body is None else Body(lambda: _bytes_stream(body), len(body)),
            away=False,
            doing="asking for a token",
        )
        try:
            return self.request(request, statistics)
        finally:
            for _ in range(statistics.snapshot().requests):
                self.statistics.authentication()

    def _followed(
        self, request: Request, authorization: Authorization | None, statistics: Statistics
    ) -> ResponseStream:
        url = request.url
        own = origin(url)
        headers = {"User-Agent": f"imagebuild/{__version__}", "Accept-Encoding": "identity", **request.headers}
        if authorization is not None:
            headers["Authorization"] = authorization.value.reveal()
        for _ in range(REDIRECTS):
            stream = self._one(request, url, headers, statistics)
            methods = _FOLLOWED.get(stream.status, ())
            target = stream.headers.get("Location")
            if (methods is not None and request.method not in methods) or not target:
                return stream
            following = urljoin(url, target)
            _drain(stream)
            self.check_location(url, following)
            if origin(following) != own:
                if not request.away:
                    raise _bad_redirect(url, following, "the same host")
                # Never to another host, and not again on the way back: what it leads to was chosen by others.
                headers.pop("Authorization", None)
            url = following
        raise UnavailableError("registry.bad-redirect", f"{request.method} {show_url(request.url)}: too many redirects")

    def check_location(self, url: str, following: str) -> None:
        """Refuses an address given by `url` that is no web address, or leads from TLS to plain HTTP; UnavailableError
        `registry.bad-redirect`."""
        scheme, host, _ = origin(following)
        netloc = urlsplit(following).netloc
        if scheme not in ("http", "https") or not host or "@" in netloc:
            raise _bad_redirect(url, following, "an http or https address without user information")
        if scheme == "http" and url.startswith("https:") and netloc not in self.settings.options.plain_http:
            raise _bad_redirect(url, following, "an https address")

    def _one(self, request: Request, url: str, headers: Mapping[str, str], statistics: Statistics) -> ResponseStream:
        statistics.request()
        body: OutgoingBody | bytes | None = None
        if request.body is not None:
            body = OutgoingBody(request.body.open(), request.body.length, statistics.uploaded)
            headers = {**headers, "Content-Length": str(request.body.length)}
        elif request.method in ("POST", "PUT", "PATCH"):
            headers = {**headers, "Content-Length": "0"}
        try:
            raw = self._connections.exchange(request.method, url, headers, body)
        finally:
            if isinstance(body, OutgoingBody):
                body.close()
        return ResponseStream(raw, request.method, url, statistics)

    def close(self) -> None:
        self._connections.close()


def _bad_redirect(url: str, following: str, expected: str) -> UnavailableError:
    return UnavailableError(
        "registry.bad-redirect",
        f"{show_url(url)} leads to {show_url(following)}, which is not followed",
        expected=expected,
    )


def _drain(stream: ResponseStream) -> None:
    """Reads a short body to its end, so that the connection can serve the next request."""
    try:
        stream.read_whole(ERROR_BODY_LIMIT)
    except UnavailableError:
        stream.close()


def _error_response(stream: ResponseStream) -> Response:
    try:
        body = stream.read_whole(ERROR_BODY_LIMIT)
    except UnavailableError:
        body = b""
    return Response(stream.method, stream.url, stream.status, stream.headers, body)


def _bytes_stream(data: bytes) -> Readable:
    import io

    return io.BytesIO(data)
