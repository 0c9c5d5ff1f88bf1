"""Blobs are read with resumption, and whatever comes is checked by size and digest."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from imagebuild.content.digest import Digest
from imagebuild.content.reader import read_verified
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci.descriptor import Descriptor
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.registry_client import FakeTime, repository_at
from imagebuild.testing.registry_double import RegistryDouble

DATA = random.Random(1).randbytes(300_000)
BLOB = Descriptor("application/octet-stream", Digest.of(DATA), len(DATA))


@pytest.fixture
def source(double: RegistryDouble, client: RegistryClient) -> RegistrySource:
    double.put_blob("a/b", DATA)
    return RegistrySource(client, repository_at(double, "a/b"))


def read(source: RegistrySource) -> bytes:
    with source.open_blob(BLOB) as stream:
        return read_verified(stream, BLOB.digest, BLOB.size)


def ranges(double: RegistryDouble) -> list[str]:
    return [request.headers.get("range", "") for request in double.requests("GET .*blobs")]


def test_a_blob_comes_in_one_request(double: RegistryDouble, source: RegistrySource) -> None:
    assert read(source) == DATA
    assert ranges(double) == [""]
    assert source.statistics.snapshot().downloaded_bytes == len(DATA)


def test_a_broken_stream_goes_on_where_it_was(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault("GET .*blobs", cut_response=1000)
    double.fault("GET .*blobs", cut_response=5000)
    assert read(source) == DATA
    assert ranges(double) == ["", "bytes=1000-299999", "bytes=6000-299999"]
    assert source.statistics.snapshot().downloaded_bytes == len(DATA)


def test_a_200_to_a_range_is_the_whole_blob_from_byte_0(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault("GET .*blobs", cut_response=1000)
    double.fault("GET .*blobs", status=200, body=DATA)
    assert read(source) == DATA


@pytest.mark.parametrize(
    "content_range", ["bytes 0-298999/300000", "bytes 1001-299999/300000", "bytes 1000-299999/299999", "nonsense", ""]
)
def test_a_206_with_another_range_does_not_count(
    double: RegistryDouble, source: RegistrySource, content_range: str
) -> None:
    double.fault("GET .*blobs", cut_response=1000)
    double.fault("GET .*blobs", headers={"Content-Range": content_range}, change=lambda body: b"?" * len(body))
    assert read(source) == DATA
    assert ranges(double) == ["", "bytes=1000-299999", ""]


def test_a_part_of_the_range_is_followed_by_the_next_range(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault("GET .*blobs", cut_response=1000)
    double.fault("GET .*blobs", status=206, headers={"Content-Range": "bytes 1000-1999/300000"}, body=DATA[1000:2000])
    assert read(source) == DATA
    assert ranges(double) == ["", "bytes=1000-299999", "bytes=2000-299999"]


def test_a_refused_range_is_asked_for_whole(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault("GET .*blobs", cut_response=1000)
    double.fault("GET .*blobs", status=416)
    assert read(source) == DATA
    assert ranges(double) == ["", "bytes=1000-299999", ""]


def test_a_stream_that_never_gets_anywhere_ends(double: RegistryDouble, source: RegistrySource, time: FakeTime) -> None:
    double.fault("GET .*blobs", cut_response=10, times=1000)
    with pytest.raises(UnavailableError) as caught:
        read(source)
    assert caught.value.code == "registry.dropped"
    assert len(double.requests("GET .*blobs")) < 20
    assert time.slept


def one_byte_changed(body: bytes) -> bytes:
    return body[:777] + bytes([body[777] ^ 1]) + body[778:]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (one_byte_changed, "content.digest-mismatch"),
        (lambda body: b"<html>log in</html>", "content.size-mismatch"),
        (lambda body: b'{"errors": []}'.ljust(len(body)), "content.digest-mismatch"),
    ],
)
def test_other_bytes_under_right_looking_headers_are_a_mismatch(
    double: RegistryDouble, source: RegistrySource, change: Callable[[bytes], bytes], code: str
) -> None:
    """goharbor/harbor#23600"""
    double.fault("GET .*blobs", change=change)
    with pytest.raises(RefusedError) as caught:
        read(source)
    assert caught.value.code == code


def test_a_longer_blob_is_a_mismatch(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault("GET .*blobs", status=200, body=DATA + b"x")
    with pytest.raises(RefusedError) as caught:
        read(source)
    assert caught.value.code == "content.size-mismatch"


def test_a_missing_blob_is_said_at_once(double: RegistryDouble, source: RegistrySource) -> None:
    double.repository("a/b").blobs.clear()
    with pytest.raises(RefusedError) as caught:
        source.open_blob(BLOB)
    assert caught.value.code == "registry.not-found"
    assert not source.has_blob(BLOB)


def test_a_blob_that_is_there_is_asked_for_once(double: RegistryDouble, source: RegistrySource) -> None:
    assert source.has_blob(BLOB)
    assert source.has_blob(BLOB)
    assert double.lines() == [f"HEAD /v2/a/b/blobs/{BLOB.digest}"]


def test_a_failing_registry_does_not_mean_absent(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault("HEAD", status=503, times=100)
    with pytest.raises(UnavailableError):
        source.has_blob(BLOB)


def test_a_closed_stream_gives_nothing_more(source: RegistrySource) -> None:
    stream = source.open_blob(BLOB)
    assert stream.read(10) == DATA[:10]
    stream.close()
    assert stream.read(10) == b""
