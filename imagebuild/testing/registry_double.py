"""A registry in this process: distribution-spec 1.1 over HTTP on loopback, with scripted faults and a log.

with RegistryDouble() as double:
    double.fault("PATCH", cut_request=100)
    client.push(f"{double.host}/some/repository:tag")
    assert double.lines("POST") == […]
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import ssl
import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError
from imagebuild.host.loopback import LoopbackHandler, LoopbackServer
from imagebuild.testing.images import MadeImage
from imagebuild.testing.registry_faults import Fault, Gathering, LoggedRequest, Script
from imagebuild.testing.registry_routes import Answer, Call, Routes
from imagebuild.testing.registry_state import HeldRepository, Tokens, Upload

_NAME = re.compile(r"/v2/(?P<name>[a-z0-9._/-]+?)/(?P<kind>blobs|manifests|tags|referrers)/(?P<rest>.*)\Z")


class RegistryDouble:
    """The scripted registry.

    `referrers` whether it has the referrers API; `mounts` one of `from` (mounts with `from`), `any` (also without),
    `never`; `tokens` asks for bearer tokens, `basic` (user to password) for Basic; `digest_header` whether answers
    carry Docker-Content-Digest; `changing_locations` gives each upload step a new Location and takes no other;
    `absolute` writes whole URLs into Location; `least_chunk` is OCI-Chunk-Min-Length; `immutable` refuses to move
    tags; `creates` whether repositories come into being by themselves; `tls` a server context.
    `now` is its clock (seconds), which only tests and delays move.
    """

    def __init__(
        self,
        *,
        referrers: bool = True,
        mounts: str = "from",
        tokens: Tokens | None = None,
        basic: dict[str, str] | None = None,
        digest_header: bool = True,
        changing_locations: bool = False,
        absolute: bool = False,
        least_chunk: int = 0,
        page: int = 1000,
        immutable: bool = False,
        creates: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.referrers, self.mounts, self.tokens, self.basic = referrers, mounts, tokens, basic
        self.digest_header, self.changing_locations, self.absolute = digest_header, changing_locations, absolute
        self.least_chunk, self.page, self.immutable, self.creates = least_chunk, page, immutable, creates
        self.repositories: dict[str, HeldRepository] = {}
        self.uploads: dict[str, Upload] = {}
        self.log: list[LoggedRequest] = []
        self.delayed = 0.0
        self.now = 0.0
        self.lock = threading.RLock()
        self.gatherings: list[Gathering] = []
        self.script = Script()
        self._tls = tls
        self._server = _Server(self)
        self.host = self._server.address

    def __enter__(self) -> RegistryDouble:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()

    @property
    def scheme(self) -> str:
        return "https" if self._tls else "http"

    def clock(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        with self.lock:
            self.now += seconds

    def fault(self, pattern: str, **what: Any) -> Fault:
        """Adds a fault; see Fault."""
        made = Fault(pattern, **what)
        self.script.faults.append(made)
        return made

    def gather(self, pattern: str, count: int) -> Gathering:
        """Holds the next `count` requests of this pattern until all of them are there."""
        made = Gathering(pattern, count)
        self.gatherings.append(made)
        return made

    def reset(self) -> None:
        """Forgets everything that it holds, logged or was to do wrong."""
        with self.lock:
            self.repositories.clear()
            self.uploads.clear()
            self.log.clear()
            self.script.faults.clear()
            self.gatherings.clear()
            if self.tokens is not None:
                self.tokens.issued.clear()
                self.tokens.asked.clear()

    def repository(self, name: str) -> HeldRepository:
        return self.repositories.setdefault(name, HeldRepository())

    def put_blob(self, name: str, data: bytes) -> Digest:
        digest = Digest.of(data)
        self.repository(name).blobs[digest] = data
        return digest

    def put_manifest(self, name: str, raw: bytes, media_type: str, tag: str | None = None) -> Digest:
        digest = Digest.of(raw)
        self.repository(name).manifests[digest] = (raw, media_type)
        if tag is not None:
            self.repository(name).tags[tag] = digest
        return digest

    def put_image(self, name: str, image: MadeImage, tag: str | None = None) -> Digest:
        """Stores a made image or index whole."""
        for child in image.images:
            self.put_image(name, child)
        for data in image.blobs.values():
            self.put_blob(name, data)
        return self.put_manifest(name, image.raw, image.descriptor.media_type, tag)

    def tag(self, name: str, tag: str) -> Digest | None:
        return self.repository(name).tags.get(tag)

    def incomplete_tags(self) -> list[str]:
        """Tags that point at something of which a part is missing or damaged."""
        out = []
        with self.lock:
            for name, held in self.repositories.items():
                for tag, digest in held.tags.items():
                    if digest not in held.manifests or held.lacks(held.manifests[digest][0]):
                        out.append(f"{name}:{tag}")
        return out

    def damaged_blobs(self) -> list[Digest]:
        with self.lock:
            return [d for held in self.repositories.values() for d, data in held.blobs.items() if Digest.of(data) != d]

    def requests(self, pattern: str = "") -> list[LoggedRequest]:
        """The requests whose line matches, token requests left out unless the pattern names them."""
        with self.lock:
            logged = list(self.log)
        return [r for r in logged if re.search(pattern, r.line) and (r.path != "/token" or "token" in pattern)]

    def lines(self, pattern: str = "") -> list[str]:
        return [request.line for request in self.requests(pattern)]


class _Server(LoopbackServer):
    def __init__(self, double: RegistryDouble) -> None:
        self.double = double
        super().__init__(_Handler)


class _Handler(LoopbackHandler):
    server: _Server

    def setup(self) -> None:
        context = self.server.double._tls
        if context is not None:
            self.request = context.wrap_socket(self.request, server_side=True)
        super().setup()

    def handle(self) -> None:
        # A TLS greeting to a plain server is answered by the end of the connection, as real ones do in the end.
        if self.server.double._tls is None and self.connection.recv(1, socket.MSG_PEEK) == b"\x16":
            return
        with contextlib.suppress(ssl.SSLError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        if self.server.double._tls is not None:
            self.request.close()

    def _serve(self) -> None:
        double = self.server.double
        parts = urlsplit(self.path)
        line = f"{self.command} {self.path}"
        for gathering in list(double.gatherings):
            gathering.join(line)
        fault = double.script.take(line)
        if fault is not None and fault.act is not None:
            fault.act()
        if fault is not None and fault.delay:
            with double.lock:
                double.delayed += fault.delay
                double.now += fault.delay
        length = int(self.headers.get("Content-Length") or 0)
        cut = fault.cut_request if fault is not None else None
        body = self.rfile.read(length if cut is None else min(cut, length))
        headers = {key.lower(): value for key, value in self.headers.items()}
        call = Call(self.command, parts.path, parse_qs(parts.query, keep_blank_values=True), headers, body)
        answer: Answer | None
        if fault is not None and fault.status is not None and not fault.after:
            answer = Answer(fault.status, dict(fault.headers), fault.body)
        else:
            with double.lock:
                answer = self._answer(call, partial=cut is not None and cut < length)
            if fault is not None and answer is not None:
                answer = self._spoilt(fault, answer)
        if cut is not None:
            answer = None
        with double.lock:
            status = 0 if answer is None else answer.status
            double.log.append(LoggedRequest(self.command, parts.path, parts.query, headers, len(body), status))
        if answer is None:
            self._hang_up()
            return
        self._send(answer, None if fault is None else fault.cut_response)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _answer(self, call: Call, partial: bool) -> Answer:
        double = self.server.double
        if call.path == "/token" and double.tokens is not None:
            return self._token(double.tokens, call)
        found = _NAME.match(call.path)
        if call.path in ("/v2/", "/v2"):
            return Answer(200, {}, b"{}")
        if found is None:
            return Answer(404, {"Content-Type": "text/plain"}, b"404 page not found\n")
        refused = self._refused(call, found["name"])
        if refused is not None:
            return refused
        try:
            return Routes(double, call, found["name"], partial).serve(found["kind"], found["rest"])
        except (ImagebuildError, ValueError, KeyError) as error:
            return Answer.error(400, "BAD_REQUEST", str(error)[:200])

    def _refused(self, call: Call, name: str) -> Answer | None:
        """401 with the challenge, where the request may not be made."""
        double = self.server.double
        given = call.headers.get("authorization", "")
        if double.basic is not None:
            good = {"Basic " + base64.b64encode(f"{u}:{p}".encode()).decode() for u, p in double.basic.items()}
            if given in good:
                return None
            return Answer.error(401, "UNAUTHORIZED", "who are you", {"WWW-Authenticate": 'Basic realm="double"'})
        if double.tokens is None:
            return None
        actions = ["pull"] if call.method in ("GET", "HEAD") and "/uploads/" not in call.path else ["pull", "push"]
        wanted = {(f"repository:{name}", action) for action in actions}
        if given.startswith("Bearer ") and double.tokens.admits(given[7:], wanted, double.now):
            return None
        scope = f"repository:{name}:{','.join(actions)}"
        realm = f"{double.scheme}://{double.host}/token"
        challenge = f'Bearer realm="{realm}",service="the double",scope="{scope}"'
        if given:
            challenge += ',error="invalid_token"'
        return Answer.error(401, "UNAUTHORIZED", "authentication required", {"WWW-Authenticate": challenge})

    def _token(self, tokens: Tokens, call: Call) -> Answer:
        if call.method == "POST":
            form = parse_qs(call.body.decode())
            allowed = form.get("refresh_token", [""])[0] in tokens.identity
            scopes = form.get("scope", [""])[0].split()
        else:
            given = call.headers.get("authorization", "")
            pair = base64.b64decode(given[6:]).decode() if given.startswith("Basic ") else ":"
            user, _, password = pair.partition(":")
            allowed = not (tokens.users or tokens.identity) or (user in tokens.users and tokens.users[user] == password)
            scopes = call.query.get("scope", [])
        value = tokens.issue(scopes, self.server.double.now) if allowed else None
        if value is None:
            return Answer.error(403 if allowed else 401, "DENIED", "no token for you")
        document = {"token": value, "access_token": value, "expires_in": int(tokens.life)}
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(document).encode())

    def _spoilt(self, fault: Fault, answer: Answer) -> Answer:
        if fault.status is not None:
            return Answer(fault.status, dict(fault.headers), fault.body)
        headers = {**answer.headers, **fault.headers}
        kept = {key: value for key, value in headers.items() if value}
        if fault.change is None:
            return Answer(answer.status, kept, answer.body, answer.length)
        return Answer(answer.status, kept, fault.change(answer.body))

    def _send(self, answer: Answer, cut: int | None) -> None:
        self.send_response(answer.status)
        headers = dict(answer.headers)
        bare = self.command == "HEAD" or answer.status == 204
        if answer.status != 204:
            headers.setdefault("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if not bare:
            self.wfile.write(answer.body if cut is None else answer.body[:cut])
        if cut is not None:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
