"""An OpenAI-compatible server somewhere: one request at a time and thread, with retries where asking again can help."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from imagebuild.errors import InputError, UnavailableError, clean
from imagebuild.host import clock

BODY_LIMIT = 16 << 20
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
LONGEST_WAIT = 30.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server is: scheme, host and port, and the path below which `/v1` stands."""

    scheme: str
    host: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}{self.prefix}"


def parse_endpoint(text: str) -> Endpoint:
    """`http://HOST:PORT` with or without `/v1`.  Raises InputError `check.bad-endpoint`; a URL that carries a password
    is refused, since it would be written into results."""
    parts = urlsplit(text)
    try:
        parts.port  # noqa: B018
        good = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise InputError(
            "check.bad-endpoint",
            "the endpoint is no URL of a server",
            expected="http://HOST:PORT, without user and password",
            found=text.rpartition("@")[2],
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Endpoint(parts.scheme, parts.netloc, path)


@dataclass(frozen=True, slots=True)
class Reply:
    """The last thing that a request gave: status 0 where there was no answer at all."""

    status: int
    body: bytes
    attempts: int
    seconds: float
    error: str | None = None


class Client:
    """Requests to one endpoint.  Safe to use from several threads; connections are kept and used again until `close`.

    `metrics` is where a worker shows its counters, if not at the endpoint.

    Once a request has found nobody under the address `attempts` times over, the server counts as `lost` and later
    requests fail at once, so that a run against a dead server ends.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        key: str | None = None,
        attempts: int = 5,
        timeout: float = 1800.0,
        sleep: Callable[[float], None] = clock.sleep,
        metrics: Endpoint | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.metrics = metrics
        self.attempts = attempts
        self.timeout = timeout
        self.lost = threading.Event()
        self._key = key
        self._sleep = sleep
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get(self, path: str) -> Any:
        """A JSON document.  Raises UnavailableError `check.endpoint-unavailable`."""
        reply = self._once("GET", path, b"")
        try:
            if reply.status != 200:
                raise ValueError(reply.error or f"status {reply.status}")
            return json.loads(reply.body)
        except (ValueError, RecursionError) as error:
            raise UnavailableError(
                "check.endpoint-unavailable",
                f"{self.endpoint}{path}: {clean(str(error), 200)}",
                hint="see that the server is up and that the address is right",
            ) from error

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must reach no file."""
        return (self._key,) if self._key else ()

    def counters(self, parse: Callable[[str], dict[str, float]]) -> dict[str, float]:
        """The engine's counters under `/metrics`, and those of its worker where `metrics` says that it has its own; none
        where there is no such page."""
        reply = self._once("GET", "/metrics", b"")
        found = parse(reply.body.decode("utf-8", "replace")) if reply.status == 200 else {}
        if self.metrics is not None:
            with Client(self.metrics, timeout=30.0) as other:
                found = {**found, **other.counters(parse)}
        return found

    def status(self, path: str) -> int:
        """The status of a GET, 0 where nobody answered; nothing is raised, for waiting until a server is up."""
        return self._once("GET", path, b"").status

    def post(self, path: str, body: bytes, accept: Callable[[bytes], bool]) -> Reply:
        """Sends until there is a status 200 with a body that `accept` takes, or asking again cannot help."""
        attempt = 0
        while True:
            attempt += 1
            if self.lost.is_set():
                return Reply(0, b"", attempt - 1, 0.0, "the server was lost before this request")
            reply = self._once("POST", path, body)
            problem = reply.error
            if reply.status == 200 and problem is None:
                if accept(reply.body):
                    return Reply(200, reply.body, attempt, reply.seconds)
                problem = "the answer is no completion"
            elif reply.status:
                problem = f"status {reply.status}: {clean(reply.body[:300].decode('utf-8', 'replace'))}"
            if attempt >= self.attempts or reply.status not in {0, 200, *AGAIN}:
                # one question that breaks its connection every time does not make a lost server
                if reply.status == 0 and self._once("GET", "/v1/models", b"").status == 0:
                    self.lost.set()
                return Reply(reply.status, b"", attempt, reply.seconds, problem)
            self._sleep(max(_asked_wait(reply), min(LONGEST_WAIT, 0.5 * 2**attempt)))

    def close(self) -> None:
        """Closes the connections that nobody uses just now, and those in use when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _once(self, method: str, path: str, body: bytes) -> _Answered:
        began = clock.monotonic()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        fresh = connection is None
        connection = connection or self._connect()
        try:
            try:
                status, data, wait = self._exchange(connection, method, path, body)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if fresh:
                    raise
                # a connection that was kept may have been closed meanwhile: that says nothing of the server
                connection.close()
                status, data, wait = self._exchange(connection, method, path, body)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return _Answered(0, b"", clock.monotonic() - began, f"{type(error).__name__}: {clean(str(error), 200)}", "")
        if len(data) > BODY_LIMIT:
            connection.close()
            return _Answered(status, b"", clock.monotonic() - began, "the answer is larger than 16 MiB", "")
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
        if self._closed:
            connection.close()
        return _Answered(status, data, clock.monotonic() - began, None, wait)

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.endpoint.scheme == "https" else http.client.HTTPConnection
        return kind(self.endpoint.host, timeout=self.timeout)

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes
    ) -> tuple[int, bytes, str]:
        headers = {"Accept": "application/json"}
        if body:
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection.request(method, self.endpoint.prefix + path, body or None, headers)
        response = connection.getresponse()
        return response.status, response.read(BODY_LIMIT + 1), response.headers.get("Retry-After", "")


@dataclass(frozen=True, slots=True)
class _Answered:
    status: int
    body: bytes
    seconds: float
    error: str | None
    retry_after: str


def _asked_wait(reply: _Answered) -> float:
    text = reply.retry_after.strip()
    return min(LONGEST_WAIT, float(text)) if text.isascii() and text.isdigit() else 0.0
