"""A code host in this process: GitHub's API as far as pull requests and issues go, on loopback.

with CodeHostDouble() as host:
    host.answers["/repos/o/r/pulls/12"] = (200, {"state": "open"})
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from imagebuild.host.loopback import LoopbackHandler, LoopbackServer

Said = tuple[int, Any] | tuple[int, Any, Mapping[str, str]]
"""Status, body (JSON, or bytes as they are), further headers."""


class CodeHostDouble:
    """`answers` by path, 404 for every other; `asked` are the paths in order with the authorization that came along."""

    def __init__(self) -> None:
        self.answers: dict[str, Said] = {}
        self.asked: list[tuple[str, str | None]] = []
        self._lock = threading.Lock()
        double = self

        class Handler(LoopbackHandler):
            def do_GET(self) -> None:
                with double._lock:
                    double.asked.append((self.path, self.headers.get("Authorization")))
                status, value, *more = double.answers.get(self.path, (404, {"message": "Not Found"}))
                body = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                for name, text in (more[0] if more else {}).items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = LoopbackServer(Handler)
        self.url = f"http://{self._server.address}"

    def __enter__(self) -> CodeHostDouble:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()
