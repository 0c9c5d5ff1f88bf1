"""A plain reverse proxy in front of a real registry that writes down what goes by."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import threading
from dataclasses import dataclass

from imagebuild.host import clock
from imagebuild.host.loopback import LoopbackHandler, LoopbackServer

BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that went by: bytes are those of bodies; `path` holds the query."""

    method: str
    path: str
    status: int
    sent_bytes: int
    received_bytes: int


class RecordingProxy:
    """Serves on `host` (loopback) and passes everything on to `upstream` (HOST:PORT, plain HTTP).

    `delay` seconds are waited before each request is passed on, as a network's round trip would take.  Location
    headers that name the upstream are written to name the proxy.
    """

    def __init__(self, upstream: str, delay: float = 0.0) -> None:
        self.upstream = upstream
        self.delay = delay
        self._passed: dict[int, Passed] = {}
        self._places = itertools.count()
        self._active = 0
        self._lock = threading.Condition()
        self._server = _Server(self)
        self.host = self._server.address

    def __enter__(self) -> RecordingProxy:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()

    @property
    def passed(self) -> list[Passed]:
        """What has gone by, in the order of the upstream's answers.

        Waits for the requests that are being passed on, since a client has its answer before they end.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._active == 0)
            return [self._passed[place] for place in sorted(self._passed)]

    def begin(self) -> None:
        with self._lock:
            self._active += 1

    def take_place(self) -> int:
        """The next place in the order of answers."""
        with self._lock:
            return next(self._places)

    def end(self, answered: tuple[int, Passed] | None) -> None:
        """The end of what `begin` began, with its place; None where the request was not answered."""
        with self._lock:
            self._active -= 1
            if answered is not None:
                self._passed[answered[0]] = answered[1]
            self._lock.notify_all()

    def clear(self) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self._active == 0)
            self._passed.clear()

    @property
    def downloaded_bytes(self) -> int:
        return sum(entry.received_bytes for entry in self.passed)

    @property
    def uploaded_bytes(self) -> int:
        return sum(entry.sent_bytes for entry in self.passed)


class _Server(LoopbackServer):
    def __init__(self, proxy: RecordingProxy) -> None:
        self.proxy = proxy
        super().__init__(_Handler)


class _Handler(LoopbackHandler):
    server: _Server
    _onward: http.client.HTTPConnection | None = None

    def handle(self) -> None:
        if self.connection.recv(1, socket.MSG_PEEK) != b"\x16":
            super().handle()

    def finish(self) -> None:
        if self._onward is not None:
            self._onward.close()
        with contextlib.suppress(OSError):
            super().finish()

    def _pass_on(self) -> None:
        proxy = self.server.proxy
        proxy.begin()
        answered = None
        try:
            answered = self._answered(proxy)
        finally:
            proxy.end(answered)

    def _answered(self, proxy: RecordingProxy) -> tuple[int, Passed]:
        if proxy.delay:
            clock.sleep(proxy.delay)
        if self._onward is None:
            self._onward = http.client.HTTPConnection(proxy.upstream, timeout=600)
            self._onward.connect()
            self._onward.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        onward, length = self._onward, int(self.headers.get("Content-Length") or 0)
        onward.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for key, value in self.headers.items():
            if key.lower() != "connection":
                onward.putheader(key, value)
        onward.endheaders()
        left = length
        while left:
            part = self.rfile.read(min(left, BLOCK))
            if not part:
                break
            onward.send(part)
            left -= len(part)
        answer = onward.getresponse()
        # before the client has the answer, so that what it asks because of it comes after
        place = proxy.take_place()
        received = self._answer(answer)
        if answer.will_close:
            onward.close()
            self._onward = None
        return place, Passed(self.command, self.path, answer.status, length - left, received)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on

    def _answer(self, answer: http.client.HTTPResponse) -> int:
        proxy = self.server.proxy
        self.send_response_only(answer.status, answer.reason)
        for key, value in answer.getheaders():
            if key.lower() in ("connection", "transfer-encoding"):
                continue
            if key.lower() == "location":
                value = value.replace(f"http://{proxy.upstream}/", f"http://{proxy.host}/", 1)
            self.send_header(key, value)
        sized = answer.getheader("Content-Length") is not None or answer.status in (204, 304)
        if not sized and self.command != "HEAD":
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        received = 0
        while part := answer.read(BLOCK):
            self.wfile.write(part)
            received += len(part)
        return received
