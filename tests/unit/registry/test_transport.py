"""Redirects, retries, faults of the network, and what errors say of them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from email.utils import formatdate

import pytest

from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.oci.reference import Repository
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.retry import RetryPolicy, parse_retry_after
from imagebuild.registry.source import RegistrySource
from imagebuild.registry.statistics import Statistics, Transfer
from imagebuild.registry.transport import Request, origin
from imagebuild.testing.images import ImageSpec, make_image
from imagebuild.testing.registry_client import EPOCH, FakeTime, repository_at
from imagebuild.testing.registry_double import RegistryDouble

IMAGE = make_image(ImageSpec(()))
LOGIN = {"username": "me", "password": "pass-word-1"}

Start = Callable[..., RegistryDouble]
Connect = Callable[..., RegistryClient]


@pytest.fixture
def source(double: RegistryDouble, client: RegistryClient) -> RegistrySource:
    double.put_image("a/b", IMAGE, "v1")
    return RegistrySource(client, repository_at(double, "a/b"))


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_faults_are_tried_again(
    double: RegistryDouble, source: RegistrySource, time: FakeTime, status: int
) -> None:
    double.fault("^HEAD", times=2, status=status)
    assert source.resolve("v1").digest == IMAGE.digest
    assert time.slept == [0.125, 0.25]
    assert source.statistics.snapshot().retries == 2


def test_dropped_connections_are_tried_again(double: RegistryDouble, source: RegistrySource, time: FakeTime) -> None:
    double.fault("^GET", cut_response=3)
    double.fault("^GET", cut_request=0)
    assert source.read_document(IMAGE.digest)[0] == IMAGE.raw
    assert len(time.slept) == 2


@pytest.mark.parametrize("status", [400, 402, 406, 409, 410, 418])
def test_other_4xx_are_final(double: RegistryDouble, source: RegistrySource, time: FakeTime, status: int) -> None:
    double.fault("^GET", status=status, body=b'{"errors":[{"code":"DENIED","message":"no\\u001b[31m"}]}')
    with pytest.raises(RefusedError) as caught:
        source.read_document(IMAGE.digest)
    assert time.slept == []
    assert f"GET http://{double.host}/v2/a/b/manifests/{IMAGE.digest} was answered {status}" in caught.value.message
    assert "DENIED: no\N{REPLACEMENT CHARACTER}[31m" in caught.value.message
    assert caught.value.details["status"] == status


def test_the_waiting_grows_and_ends(double: RegistryDouble, source: RegistrySource, time: FakeTime) -> None:
    time.chance = 1.0
    double.fault("^HEAD", times=99, status=503)
    with pytest.raises(UnavailableError) as caught:
        source.resolve("v1")
    assert time.slept == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert caught.value.details["attempts"] == 6


def test_the_waiting_is_capped_and_bounded(double: RegistryDouble, connect: Connect) -> None:
    time = FakeTime(double, 1.0)
    client = connect(time=time, policy=RetryPolicy(attempts=99, first=1.0, cap=5.0, total=30.0))
    double.fault("^HEAD", times=99, status=503)
    with pytest.raises(UnavailableError):
        RegistrySource(client, repository_at(double, "a/b")).resolve("v1")
    assert time.slept == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0]


def test_retry_after_in_seconds_and_as_a_date(double: RegistryDouble, source: RegistrySource, time: FakeTime) -> None:
    """containerd/containerd#10447"""
    double.fault("^HEAD", status=429, headers={"Retry-After": "2"})
    double.fault("^HEAD", status=429, headers={"Retry-After": formatdate(EPOCH + 32, usegmt=True)})
    source.resolve("v1")
    assert time.slept == [2.0, 30.0]


def test_a_wait_beyond_the_total_is_not_begun(double: RegistryDouble, source: RegistrySource, time: FakeTime) -> None:
    double.fault("^HEAD", status=429, headers={"Retry-After": "3600"})
    with pytest.raises(UnavailableError) as caught:
        source.resolve("v1")
    assert caught.value.code == "registry.rate-limited"
    assert time.slept == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        (" 17 ", 17.0),
        ("Wed, 15 Nov 2023 00:00:00 GMT", 1_700_006_400 - 1_700_000_000),
        ("Tue, 14 Nov 2000 00:00:00 GMT", 0.0),
        ("-1", None),
        ("soon", None),
        ("1.5", None),
        ("²", None),
        (None, None),
    ],
)
def test_forms_of_retry_after(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, 1_700_000_000) == seconds


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_authorization_does_not_go_to_another_host(start: Start, connect: Connect, status: int) -> None:
    double, elsewhere = start(basic={"me": "pass-word-1"}), start()
    double.put_image("a/b", IMAGE, "v1")
    elsewhere.put_image("a/b", IMAGE)
    client = connect(docker_config={"auths": {double.host: LOGIN, elsewhere.host: LOGIN}})
    source = RegistrySource(client, repository_at(double, "a/b"))
    source.resolve("v1")
    blob = IMAGE.descriptor
    target = f"http://{elsewhere.host}/v2/a/b/manifests/{blob.digest}?signature=s"
    double.fault("^GET", status=status, headers={"Location": target})
    assert source.read_document(IMAGE.digest)[0] == IMAGE.raw
    assert double.log[-1].headers["authorization"].startswith("Basic ")
    assert elsewhere.log[0].query == "signature=s"
    assert "authorization" not in elsewhere.log[0].headers


def test_authorization_does_not_come_back_after_another_host(start: Start, connect: Connect) -> None:
    double, elsewhere = start(basic={"me": "pass-word-1"}), start()
    double.put_image("a/b", IMAGE, "v1")
    source = RegistrySource(connect(docker_config={"auths": {double.host: LOGIN}}), repository_at(double, "a/b"))
    source.resolve("v1")
    double.fault("^GET", status=307, headers={"Location": f"http://{elsewhere.host}/x"})
    elsewhere.fault("^GET", status=307, headers={"Location": f"http://{double.host}/v2/a/b/tags/list"})
    with pytest.raises(RefusedError):
        source.read_document(IMAGE.digest)
    assert "authorization" not in double.log[-1].headers


def test_a_redirect_on_the_same_host_keeps_the_authorization(start: Start, connect: Connect) -> None:
    double = start(basic={"me": "pass-word-1"})
    double.put_image("a/b", IMAGE, "v1")
    source = RegistrySource(connect(docker_config={"auths": {double.host: LOGIN}}), repository_at(double, "a/b"))
    source.resolve("v1")
    double.fault("^GET", status=307, headers={"Location": f"/v2/a/b/manifests/{IMAGE.digest}?again=1"})
    assert source.read_document(IMAGE.digest)[0] == IMAGE.raw


@pytest.mark.parametrize("target", ["ftp://x/y", "http://me:secret@x/y", "javascript:x"])
def test_what_is_no_web_address_is_not_followed(double: RegistryDouble, source: RegistrySource, target: str) -> None:
    double.fault("^GET", status=307, headers={"Location": target})
    with pytest.raises(ImagebuildError) as caught:
        source.read_document(IMAGE.digest)
    assert caught.value.code in ("registry.bad-redirect", "registry.not-found")
    assert "secret" not in str(caught.value)


def test_a_circle_of_redirects_ends(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault("^GET", times=99, status=302, headers={"Location": "/v2/a/b/manifests/v1"})
    with pytest.raises(UnavailableError) as caught:
        source.read_document(IMAGE.digest)
    assert caught.value.code == "registry.bad-redirect"
    assert len(double.log) < 20


def test_the_step_from_tls_to_plain_http_is_refused(client: RegistryClient) -> None:
    with pytest.raises(UnavailableError) as caught:
        client.transport.check_location("https://registry.example/v2/", "http://registry.example/v2/x?token=abc")
    assert caught.value.code == "registry.bad-redirect"
    assert "abc" not in str(caught.value)
    client.transport.check_location("https://registry.example/v2/", "https://storage.example/x")


def test_an_upload_location_on_another_host_gets_no_authorization(start: Start, connect: Connect) -> None:
    double, elsewhere = start(basic={"me": "pass-word-1"}), start()
    client = connect(docker_config={"auths": {double.host: LOGIN, elsewhere.host: LOGIN}})
    for method in ("PUT", "PATCH", "GET", "DELETE"):
        request = Request(method, f"http://{elsewhere.host}/upload", double.host, accept=(200, 404))
        client.transport.request(request)
    assert len(elsewhere.log) == 4
    assert not any("authorization" in request.headers for request in elsewhere.log)


def test_a_challenge_of_another_host_is_not_answered(start: Start, connect: Connect) -> None:
    double, elsewhere = start(basic={"me": "pass-word-1"}), start(basic={"me": "pass-word-1"})
    client = connect(docker_config={"auths": {double.host: LOGIN, elsewhere.host: LOGIN}})
    request = Request("PUT", f"http://{elsewhere.host}/v2/a/b/blobs/uploads/1", double.host, accept=(401,))
    client.transport.request(request)
    assert "authorization" not in elsewhere.log[0].headers
    assert len(elsewhere.log) == 1


def test_nothing_listens(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    time = FakeTime()
    with pytest.raises(UnavailableError) as caught:
        RegistrySource(connect(time=time), Repository(host, "a/b")).resolve("v1")
    assert caught.value.code == "registry.unreachable"
    assert "refused" in caught.value.message


def test_an_answer_is_bounded(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault("^GET", status=200, body=b" " * (4 << 20) + b"{}", headers={"Content-Type": "application/json"})
    with pytest.raises(UnavailableError) as caught:
        source.read_document(IMAGE.digest)
    assert caught.value.code == "registry.answer-too-large"


def test_library_logs_do_not_hold_urls(
    double: RegistryDouble, source: RegistrySource, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        source.resolve("v1")
    assert not any(record.name.startswith("urllib3") for record in caplog.records)


def test_loopback_is_asked_over_http_where_tls_is_not_spoken(double: RegistryDouble, client: RegistryClient) -> None:
    assert client.transport.base_url(double.host) == f"http://{double.host}"
    assert client.transport.base_url(double.host) == f"http://{double.host}"
    assert double.log == []


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://Host/x", ("https", "host", 443)),
        ("http://host:80/", ("http", "host", 80)),
        ("http://[::1]:5000/", ("http", "::1", 5000)),
        ("http://host:99999999/", ("http", "host", 80)),
    ],
)
def test_origins(url: str, found: tuple[str, str, int]) -> None:
    assert origin(url) == found


def test_counts_go_to_the_parent_too() -> None:
    whole = Statistics()
    part = Statistics(whole)
    part.request()
    part.request()
    part.challenged()
    part.downloaded(5)
    assert part.snapshot() == whole.snapshot() == Transfer(requests=1, authentication=1, downloaded_bytes=5)
    assert whole.snapshot() - Transfer(requests=1) == Transfer(authentication=1, downloaded_bytes=5)
