"""The recording proxy passes everything on and counts it; importing the client loads no network library."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from imagebuild.host.loopback import LoopbackHandler, LoopbackServer
from imagebuild.oci.reference import Repository
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.sink import RegistrySink
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.images import File, ImageSpec, LayerSpec, make_image
from imagebuild.testing.memory import as_image
from imagebuild.testing.recording_proxy import BLOCK, RecordingProxy
from imagebuild.testing.registry_double import RegistryDouble

IMAGE = make_image(ImageSpec((LayerSpec((File("x", b"1" * 5000),)),)))


def test_what_goes_by_is_written_down(start: Callable[..., RegistryDouble], client: RegistryClient) -> None:
    double = start(absolute=True)
    with RecordingProxy(double.host) as proxy:
        result = RegistrySink(client, Repository(proxy.host, "me/engine")).store(as_image(IMAGE), "v1")
        source = RegistrySource(client, Repository(proxy.host, "me/engine"))
        layer = IMAGE.layers[0].descriptor
        with source.open_blob(layer) as stream:
            assert stream.read() == IMAGE.layers[0].blob
        assert double.tag("me/engine", "v1") == IMAGE.digest
        assert proxy.uploaded_bytes == result.uploaded_bytes
        assert proxy.downloaded_bytes == client.statistics.downloaded_bytes
        assert sorted(p.method for p in proxy.passed) == sorted(r.method for r in double.log)
        # Upload locations named the registry itself; the proxy wrote itself there, or these had gone past it.
        assert [p.status for p in proxy.passed if p.method == "PUT"] == [201, 201, 201]
        proxy.clear()
        assert proxy.passed == []


def test_what_was_answered_first_stands_first(registry_that_dawdles: LoopbackServer) -> None:
    """The order of the answers, though the first one is still on its way to its client when the second one has ended."""
    with RecordingProxy(registry_that_dawdles.address) as proxy:
        first, second = (http.client.HTTPConnection(proxy.host, timeout=60) for _ in range(2))
        first.request("GET", "/slow")
        answer = first.getresponse()
        assert answer.read(1) == b"a"
        second.request("GET", "/quick")
        assert second.getresponse().read() == b"b"
        # the second one is over for the proxy too when the next answer on its connection comes
        second.request("GET", "/release")
        assert second.getresponse().read() == b"c"
        assert answer.read() == b"x" * BLOCK + b"b"
        first.close()
        second.close()
        assert [p.path for p in proxy.passed] == ["/slow", "/quick", "/release"]


@pytest.fixture
def registry_that_dawdles() -> Iterator[LoopbackServer]:
    """/slow sends its last byte when /release was asked for."""
    released = threading.Event()

    class Handler(LoopbackHandler):
        def do_GET(self) -> None:
            data = {"/slow": b"a" + b"x" * BLOCK + b"b", "/quick": b"b", "/release": b"c"}[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:-1])
            if self.path == "/release":
                released.set()
            if self.path == "/slow":
                released.wait(60)
            self.wfile.write(data[-1:])

    server = LoopbackServer(Handler)
    server.start()
    yield server
    server.stop()


def test_importing_the_client_loads_no_network_library() -> None:
    program = (
        "import sys, imagebuild.registry.open, imagebuild.registry.sink; "
        "print(sorted({'urllib3', 'ssl', 'http.client', 'subprocess', 'yaml', 'tomllib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
