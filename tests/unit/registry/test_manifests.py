"""Manifests: HEAD before GET, verified over bytes, headers never trusted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.source import ImageSink, ImageSource
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.sink import RegistrySink
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.images import ImageSpec, IndexSpec, make_image, make_index
from imagebuild.testing.registry_client import repository_at
from imagebuild.testing.registry_double import RegistryDouble

IMAGE = make_image(ImageSpec(()))
DESCRIPTOR = Descriptor(mt.OCI_MANIFEST, IMAGE.digest, len(IMAGE.raw))
OTHER = make_image(ImageSpec((), family=mt.DOCKER))
HEAD = "^HEAD .*manifests"
GET = "^GET .*manifests"


@pytest.fixture
def source(double: RegistryDouble, client: RegistryClient) -> RegistrySource:
    double.put_image("a/b", IMAGE, "v1")
    return RegistrySource(client, repository_at(double, "a/b"))


def test_the_protocols_are_met(source: RegistrySource) -> None:
    given: ImageSource = source
    sink: ImageSink = RegistrySink(source.client, source.repository)
    assert isinstance(given, ImageSource)
    assert given.location == sink.location


def test_a_tag_is_resolved_with_one_head(double: RegistryDouble, source: RegistrySource) -> None:
    assert source.resolve("v1") == DESCRIPTOR
    assert double.lines() == ["HEAD /v2/a/b/manifests/v1"]
    accept = double.log[0].headers["accept"]
    assert all(kind in accept for kind in (*mt.INDEXES, *mt.MANIFESTS))


@pytest.mark.parametrize(
    "headers",
    [
        {"Docker-Content-Digest": ""},
        {"Docker-Content-Digest": "sha512:abc"},
        {"Content-Type": "text/plain"},
        {"Content-Length": "many"},
    ],
)
def test_a_head_that_says_too_little_is_followed_by_a_get(
    double: RegistryDouble, source: RegistrySource, headers: dict[str, str]
) -> None:
    double.fault(HEAD, headers=headers)
    assert source.resolve("v1") == DESCRIPTOR
    assert [line.split()[0] for line in double.lines()] == ["HEAD", "GET"]


@pytest.mark.parametrize("status", [405, 501])
def test_a_registry_without_head(double: RegistryDouble, source: RegistrySource, status: int) -> None:
    double.fault(HEAD, status=status)
    assert source.resolve("v1") == DESCRIPTOR


def test_a_digest_resolves_to_itself(double: RegistryDouble, source: RegistrySource) -> None:
    assert source.resolve(str(IMAGE.digest)) == DESCRIPTOR
    double.fault(HEAD, headers={"Docker-Content-Digest": str(Digest.of(b""))})
    with pytest.raises(RefusedError) as caught:
        source.resolve(str(IMAGE.digest))
    assert caught.value.code == "registry.digest-mismatch"


@pytest.mark.parametrize("name", ["v2", str(Digest.of(b"nothing"))])
def test_what_is_not_there(source: RegistrySource, name: str) -> None:
    with pytest.raises(RefusedError) as caught:
        source.resolve(name)
    assert caught.value.code == "registry.not-found"
    assert name in caught.value.message


def test_no_tag_no_answer(source: RegistrySource) -> None:
    with pytest.raises(InputError) as caught:
        source.resolve(None)
    assert caught.value.code == "registry.no-tag"


@pytest.mark.parametrize("tag", ["", "../x", "a b", ".x", "x" * 129, "a/b", "a?b"])
def test_what_is_no_tag_is_not_asked_for(double: RegistryDouble, source: RegistrySource, tag: str) -> None:
    with pytest.raises(InputError):
        source.resolve(tag)
    assert double.log == []


def test_a_document_is_verified_and_asked_for_once(double: RegistryDouble, source: RegistrySource) -> None:
    assert source.read_document(IMAGE.digest) == (IMAGE.raw, mt.OCI_MANIFEST)
    assert source.read_document(IMAGE.digest) == (IMAGE.raw, mt.OCI_MANIFEST)
    assert len(double.log) == 1


@pytest.mark.parametrize(
    "change", [lambda body: body + b" ", lambda body: body[:-1], lambda body: b"<html>", lambda body: OTHER.raw]
)
def test_altered_bytes_are_a_mismatch_whatever_the_header_says(
    double: RegistryDouble, source: RegistrySource, change: Any
) -> None:
    """goharbor/harbor#23600"""
    double.fault(GET, times=9, change=change)
    with pytest.raises(RefusedError) as caught:
        source.read_document(IMAGE.digest)
    assert caught.value.code == "content.digest-mismatch"
    assert source.client.document(IMAGE.digest) is None


def test_a_tag_whose_bytes_are_not_those_of_the_header(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault(HEAD, status=405)
    double.fault(GET, change=lambda body: OTHER.raw)
    with pytest.raises(RefusedError) as caught:
        source.resolve("v1")
    assert caught.value.code == "content.digest-mismatch"


@pytest.mark.parametrize("kind", ["text/plain; charset=utf-8", "application/json", ""])
def test_a_registry_that_does_not_name_the_type(double: RegistryDouble, source: RegistrySource, kind: str) -> None:
    double.fault(GET, headers={"Content-Type": kind})
    assert source.read_document(IMAGE.digest)[1] == mt.OCI_MANIFEST


@pytest.mark.parametrize(
    "document",
    [b"<html>log in</html>", b"[]", b'{"schemaVersion": 1, "name": "x"}', b'{"mediaType": "text/html"}'],
)
def test_what_is_no_manifest(double: RegistryDouble, source: RegistrySource, document: bytes) -> None:
    digest = double.put_manifest("a/b", document, "text/html")
    with pytest.raises(RefusedError) as caught:
        source.read_document(digest)
    assert caught.value.code == "registry.not-a-manifest"


def test_a_manifest_that_says_to_be_huge(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault(HEAD, headers={"Content-Length": str(5 << 20)})
    with pytest.raises(ImagebuildError) as caught:
        source.resolve("v1")
    assert caught.value.code == "oci.document-too-large"


def test_bytes_stay_as_they_were_received(double: RegistryDouble, source: RegistrySource) -> None:
    """containers/skopeo#1451"""
    odd = json.dumps(json.loads(IMAGE.raw), indent=7).encode()
    digest = double.put_manifest("a/b", odd, mt.OCI_MANIFEST)
    assert source.read_document(digest)[0] == odd


def test_tags_come_page_by_page(double: RegistryDouble, source: RegistrySource) -> None:
    double.page = 2
    for number in range(5):
        double.put_image("a/b", IMAGE, f"t{number}")
    assert source.tags() == ["t0", "t1", "t2", "t3", "t4", "v1"]
    assert len(double.requests("tags/list")) == 3


def test_the_next_page_is_on_the_same_host(double: RegistryDouble, source: RegistrySource) -> None:
    double.fault("tags", headers={"Link": '<http://127.0.0.1:1/v2/a/b/tags/list>; rel="next"'})
    with pytest.raises(UnavailableError) as caught:
        source.tags()
    assert caught.value.code == "registry.bad-answer"


def test_an_index_and_a_docker_image(double: RegistryDouble, source: RegistrySource) -> None:
    index = make_index(IndexSpec((ImageSpec(()),)))
    double.put_image("a/b", index, "index")
    double.put_image("a/b", OTHER, "docker")
    assert source.resolve("index").media_type == mt.OCI_INDEX
    assert source.read_document(OTHER.digest)[1] == mt.DOCKER_MANIFEST
