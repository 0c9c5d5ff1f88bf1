"""Files from web addresses: taken up where the connection broke, bounded, without credentials."""

from __future__ import annotations

import contextlib
import http.server
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.download import download

DATA = bytes(range(256)) * 40


@dataclass
class Behaviour:
    """What the server does: `cuts` are the bytes after which answers break off, in order; `etag`, and whether ranges are served."""

    cuts: list[int] = field(default_factory=list)
    etag: str = '"v1"'
    ranges: bool = True
    wrong_range: bool = False
    statuses: list[int] = field(default_factory=list)
    redirect: str = ""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)


@pytest.fixture
def web() -> Iterator[tuple[str, Behaviour]]:
    behaviour = Behaviour()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            behaviour.asked.append((self.path, dict(self.headers)))
            if behaviour.redirect and self.path == "/first":
                self.send_response(302)
                self.send_header("Location", behaviour.redirect)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if behaviour.statuses:
                self.send_response(behaviour.statuses.pop(0))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start = 0
            if behaviour.ranges and "Range" in self.headers:
                start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if start else 200)
            if start:
                shown = 0 if behaviour.wrong_range else start
                self.send_header("Content-Range", f"bytes {shown}-{len(DATA) - 1}/{len(DATA)}")
            self.send_header("ETag", behaviour.etag)
            self.send_header("Content-Length", str(len(DATA) - start))
            self.end_headers()
            end = start + behaviour.cuts.pop(0) if behaviour.cuts else len(DATA)
            self.wfile.write(DATA[start:end])
            if end < len(DATA):
                self.close_connection = True
                self.connection.close()

        def log_message(self, *words: object) -> None:
            pass

        def finish(self) -> None:
            with contextlib.suppress(OSError):
                super().finish()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", behaviour
    server.shutdown()
    server.server_close()


@pytest.fixture
def fetch(web: tuple[str, Behaviour], client: RegistryClient) -> Callable[..., bytes]:
    def run(path: str = "/file", limit: int = len(DATA)) -> bytes:
        out = io.BytesIO()
        assert download(client, web[0] + path, out, limit) == len(out.getvalue())
        return out.getvalue()

    return run


def test_a_file_is_fetched_whole(web: tuple[str, Behaviour], fetch: Callable[..., bytes]) -> None:
    assert fetch() == DATA
    (headers,) = [headers for _, headers in web[1].asked]
    assert "Authorization" not in headers


def test_a_broken_connection_is_taken_up_where_it_broke(
    web: tuple[str, Behaviour], fetch: Callable[..., bytes]
) -> None:
    web[1].cuts = [5000, 2000]
    assert fetch() == DATA
    assert [headers.get("Range") for _, headers in web[1].asked] == [None, "bytes=5000-", "bytes=7000-"]
    assert {headers.get("If-Range") for _, headers in web[1].asked[1:]} == {'"v1"'}


@pytest.mark.parametrize("settings", [{"etag": 'W/"weak"'}, {"ranges": False}, {"wrong_range": True}])
def test_where_that_cannot_be_it_begins_anew(
    web: tuple[str, Behaviour], fetch: Callable[..., bytes], settings: dict[str, object]
) -> None:
    for name, value in settings.items():
        setattr(web[1], name, value)
    web[1].cuts = [5000]
    assert fetch() == DATA


def test_more_bytes_than_allowed_are_refused(fetch: Callable[..., bytes]) -> None:
    with pytest.raises(UnavailableError) as caught:
        fetch(limit=len(DATA) - 1)
    assert caught.value.code == "registry.download-too-large"


def test_a_server_that_is_busy_is_asked_again_and_one_that_says_no_is_not(
    web: tuple[str, Behaviour], fetch: Callable[..., bytes]
) -> None:
    web[1].statuses = [503, 429]
    assert fetch() == DATA
    web[1].statuses = [404]
    with pytest.raises(RefusedError):
        fetch()
    assert len(web[1].asked) == 4


def test_a_connection_that_always_breaks_ends(web: tuple[str, Behaviour], fetch: Callable[..., bytes]) -> None:
    web[1].cuts = [10] * 100
    with pytest.raises(ImagebuildError):
        fetch()
    assert len(web[1].asked) < 10


def test_redirects_are_followed(web: tuple[str, Behaviour], fetch: Callable[..., bytes]) -> None:
    web[1].redirect = web[0] + "/second"
    assert fetch("/first") == DATA
    assert [path for path, _ in web[1].asked] == ["/first", "/second"]
