"""The recording proxy passes everything on and counts it; importing the client loads no network library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from imagebuild.oci.reference import Repository
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.sink import RegistrySink
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.images import File, ImageSpec, LayerSpec, make_image
from imagebuild.testing.memory import as_image
from imagebuild.testing.recording_proxy import RecordingProxy
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


def test_importing_the_client_loads_no_network_library() -> None:
    program = (
        "import sys, imagebuild.registry.open, imagebuild.registry.sink; "
        "print(sorted({'urllib3', 'ssl', 'http.client', 'subprocess', 'yaml', 'tomllib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
