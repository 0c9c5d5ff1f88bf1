"""Mirrors are asked first and believed no more than others; certificates are checked."""

from __future__ import annotations

import datetime
import io
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.content.reader import read_verified
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.reference import Repository, parse_registry_reference
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.open import open_client, open_sink, open_source
from imagebuild.registry.settings import RegistryOptions
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.images import ImageSpec, make_image
from imagebuild.testing.registry_client import FakeTime, repository_at, surroundings
from imagebuild.testing.registry_double import RegistryDouble

IMAGE = make_image(ImageSpec(()))
DATA = random.Random(3).randbytes(50_000)
BLOB = Descriptor("application/octet-stream", Digest.of(DATA), len(DATA))

Start = Callable[..., RegistryDouble]
Connect = Callable[..., RegistryClient]


@pytest.fixture
def mirrored(start: Start, connect: Connect, tmp_path: Path) -> tuple[RegistryDouble, RegistryDouble, RegistrySource]:
    """A mirror, the registry, and a source that knows of both."""
    mirror, primary = start(), start()
    conf = tmp_path / "etc" / "containers" / "registries.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(
        f'[[registry]]\nlocation = "{primary.host}"\n[[registry.mirror]]\nlocation = "{mirror.host}/cache"\n'
    )
    primary.put_image("a/b", IMAGE, "v1")
    primary.put_blob("a/b", DATA)
    mirror.put_image("cache/a/b", IMAGE, "v1")
    mirror.put_blob("cache/a/b", DATA)
    return mirror, primary, RegistrySource(connect(time=FakeTime()), repository_at(primary, "a/b"))


def read(source: RegistrySource) -> bytes:
    with source.open_blob(BLOB) as stream:
        return read_verified(stream, BLOB.digest, BLOB.size)


def test_the_mirror_is_asked_first(mirrored: Any) -> None:
    mirror, primary, source = mirrored
    assert source.resolve("v1").digest == IMAGE.digest
    assert source.read_document(IMAGE.digest)[0] == IMAGE.raw
    assert read(source) == DATA
    assert primary.log == []
    assert len(mirror.log) == 3


def test_what_the_mirror_lacks_comes_from_the_registry(mirrored: Any) -> None:
    mirror, _, source = mirrored
    mirror.repositories.clear()
    assert source.resolve("v1").digest == IMAGE.digest
    assert source.read_document(IMAGE.digest)[0] == IMAGE.raw
    assert read(source) == DATA


def test_a_lying_mirror_is_passed_over(mirrored: Any) -> None:
    mirror, primary, source = mirrored
    mirror.fault("GET .*manifests", change=lambda body: body + b" ")
    assert source.read_document(IMAGE.digest)[0] == IMAGE.raw
    assert len(primary.log) == 1
    mirror.fault("GET .*blobs", change=lambda body: b"?" * len(body))
    with pytest.raises(RefusedError):
        read(source)


def test_a_mirror_that_dies_in_the_middle_is_followed_by_the_registry(mirrored: Any) -> None:
    mirror, primary, source = mirrored
    mirror.fault("GET .*blobs", cut_response=20_000)
    mirror.fault("GET .*blobs", times=99, status=404)
    assert read(source) == DATA
    assert primary.log[-1].headers["range"] == "bytes=20000-49999"


def test_referrers_and_presence_are_the_registrys_own(mirrored: Any) -> None:
    mirror, primary, source = mirrored
    source.referrers(IMAGE.digest)
    source.has_blob(BLOB)
    assert mirror.log == []
    assert len(primary.log) == 2


def test_what_is_nowhere_is_said_of_the_registry(mirrored: Any) -> None:
    _, primary, source = mirrored
    with pytest.raises(RefusedError) as caught:
        source.resolve("v2")
    assert primary.host in caught.value.message


def authority(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that is its own authority, and a server's context with it."""
    x509 = pytest.importorskip("cryptography.x509")
    import ipaddress

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "double")])
    day = datetime.timedelta(days=1)
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(today - day)
        .not_valid_after(today + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    pem, secret = folder / "ca.pem", folder / "key.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, secret)
    return pem, context


@pytest.fixture
def encrypted(start: Start, tmp_path: Path) -> tuple[RegistryDouble, Path]:
    pem, context = authority(tmp_path)
    double = start(tls=context)
    double.put_image("a/b", IMAGE, "v1")
    return double, pem


def resolves(client: RegistryClient, double: RegistryDouble) -> bool:
    return RegistrySource(client, repository_at(double, "a/b")).resolve("v1").digest == IMAGE.digest


def test_an_unknown_authority_is_not_trusted(encrypted: Any, connect: Connect) -> None:
    """On loopback too: HTTPS that is spoken is verified, and not left for HTTP."""
    double, _ = encrypted
    with pytest.raises(UnavailableError) as caught:
        resolves(connect(), double)
    assert caught.value.code == "registry.tls"
    assert double.log == []


def test_a_bundle_and_certs_d_and_insecure(encrypted: Any, connect: Connect, tmp_path: Path) -> None:
    double, pem = encrypted
    assert resolves(connect(ca_bundle=str(pem)), double)
    assert resolves(connect(insecure=frozenset({double.host})), double)
    folder = tmp_path / "etc" / "containers" / "certs.d" / double.host
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_bytes(pem.read_bytes())
    assert resolves(connect(), double)
    assert [request.status for request in double.log] == [200, 200, 200]


def test_evidence_says_how_sure_the_identity_is(encrypted: Any, connect: Connect, start: Start) -> None:
    double, pem = encrypted
    assert connect(ca_bundle=pem).security(double.host) == "tls"
    assert connect(insecure=frozenset({double.host})).security(double.host) == "tls-unverified"
    assert connect().security(start().host) == "plain-http"
    assert connect(plain_http=frozenset({"r.example"})).security("r.example") == "plain-http"
    assert connect().security("r.example") == "tls"


def test_a_plain_host_is_not_asked_for_tls(start: Start, connect: Connect) -> None:
    double = start()
    double.put_image("a/b", IMAGE, "v1")
    client = connect(plain_http=frozenset({double.host}))
    assert client.transport.base_url(double.host) == f"http://{double.host}"
    assert resolves(client, double)


def test_opening_by_reference(double: RegistryDouble, tmp_path: Path) -> None:
    options = RegistryOptions(surroundings=surroundings(tmp_path))
    double.put_image("a/b", IMAGE, "v1")
    tagged = open_source(parse_registry_reference(f"{double.host}/a/b:v1"), options)
    pinned = open_source(parse_registry_reference(f"{double.host}/a/b@{IMAGE.digest}"), options)
    sink = open_sink(parse_registry_reference(f"{double.host}/a/b:v1"), options)
    assert tagged.resolve(None).digest == pinned.resolve(None).digest == sink.current("v1") == IMAGE.digest
    assert tagged.client is pinned.client is sink.client is open_client(options)
    assert open_client(RegistryOptions(surroundings=surroundings(tmp_path))) is not sink.client
    assert options.statistics.requests == 3
    sink.client.close()


def test_docker_hub_is_reached_under_its_own_host(connect: Connect) -> None:
    client = connect()
    source = RegistrySource(client, Repository("docker.io", "library/debian"))
    assert source.primary.url("tags/list") == "https://registry-1.docker.io/v2/library/debian/tags/list"
    assert source.location == "docker.io/library/debian"


def test_a_registry_that_names_itself_without_tls_is_still_spoken_to_with_it(connect: Connect) -> None:
    from imagebuild.registry.failure import Response

    client = connect()
    primary = RegistrySource(client, Repository("registry.example", "a")).primary
    given = Response(
        "POST", "https://registry.example/v2/a/blobs/uploads/", 202, {"Location": "http://registry.example/x?y=1"}
    )
    assert primary.location(given) == "https://registry.example/x?y=1"


def test_a_stream_is_readable_to_the_end(mirrored: Any) -> None:
    _, _, source = mirrored
    with source.open_blob(BLOB) as stream:
        assert io.BytesIO(stream.read()).read() == DATA


def test_requests_go_through_the_proxy_with_its_login(start: Start, connect: Connect) -> None:
    proxy = start()
    proxy.put_image("a/b", IMAGE, "v1")
    client = connect(
        variables={"http_proxy": f"http://me:pass-word-1@{proxy.host}"}, plain_http=frozenset({"r.example"})
    )
    assert RegistrySource(client, Repository("r.example", "a/b")).resolve("v1").digest == IMAGE.digest
    assert proxy.log[0].headers["host"] == "r.example"
    assert proxy.log[0].headers["proxy-authorization"] == "Basic bWU6cGFzcy13b3JkLTE="
    assert "authorization" not in proxy.log[0].headers


def test_a_proxy_that_lets_nothing_through_is_said(start: Start, connect: Connect) -> None:
    proxy = start()
    client = connect(variables={"HTTPS_PROXY": f"http://me:pass-word-1@{proxy.host}"}, time=FakeTime())
    with pytest.raises(UnavailableError) as caught:
        RegistrySource(client, Repository("r.example", "a/b")).resolve("v1")
    assert caught.value.code == "registry.unreachable"
    assert "proxy" in caught.value.message
    assert "pass-word-1" not in str(caught.value)
