"""The one door to serving: HTTP on a free port of this machine's loopback, for proxies and for doubles of other servers."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def free_port() -> int:
    """A port of loopback that nobody listened on a moment ago, for a server that is told where to listen.

    Another program may take it first; the server then says so, and nothing answers for it unnoticed.
    """
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        return int(server.server_address[1])


class LoopbackHandler(BaseHTTPRequestHandler):
    """HTTP/1.1 with connections that stay open; says nothing on stderr, and a client that goes away is no error."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Whoever serves keeps a log of its own."""


class LoopbackServer(ThreadingHTTPServer):
    """Listens from the moment it is made, serves each connection in a thread between `start` and `stop`.

    `backlog` is how many clients may wait to be accepted; `address` is `127.0.0.1:PORT`, a free port unless one is named.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, handler: type[LoopbackHandler], backlog: int = 128, port: int = 0) -> None:
        self.request_queue_size = backlog
        super().__init__(("127.0.0.1", port), handler)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no matter of the server's."""
