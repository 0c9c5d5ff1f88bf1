"""Referrers: the API, the tag scheme, and other writers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.source import Document, LocalBlob
from imagebuild.registry.client import RegistryClient
from imagebuild.registry.referrers import own_referrers, referrers_tag
from imagebuild.registry.sink import RegistrySink
from imagebuild.registry.source import RegistrySource
from imagebuild.testing.images import ImageSpec, make_image
from imagebuild.testing.registry_client import FakeTime, repository_at
from imagebuild.testing.registry_double import RegistryDouble

IMAGE = make_image(ImageSpec(()))
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
EMPTY = b"{}"
TAG = referrers_tag(IMAGE.digest)

Start = Callable[..., RegistryDouble]


def referrer(text: str = "one", artifact_type: str | None = BUNDLE) -> tuple[Document, list[LocalBlob]]:
    payload = json.dumps({"bundle": text}).encode()
    blobs = [
        LocalBlob(Descriptor(kind, Digest.of(data), len(data)), lambda data=data: io.BytesIO(data))
        for kind, data in ((mt.OCI_EMPTY, EMPTY), (BUNDLE, payload))
    ]
    value = {
        "schemaVersion": 2,
        "mediaType": mt.OCI_MANIFEST,
        **({"artifactType": artifact_type} if artifact_type else {}),
        "config": blobs[0].descriptor.to_json(),
        "layers": [blobs[1].descriptor.to_json()],
        "subject": {"mediaType": mt.OCI_MANIFEST, "digest": str(IMAGE.digest), "size": len(IMAGE.raw)},
        "annotations": {"dev.sigstore.bundle.content": "dsse-envelope", "text": text},
    }
    raw = json.dumps(value).encode()
    return Document(Descriptor(mt.OCI_MANIFEST, Digest.of(raw), len(raw)), raw), blobs


@pytest.fixture(params=[True, False], ids=["api", "tag"])
def place(request: pytest.FixtureRequest, start: Start) -> RegistryDouble:
    double = start(referrers=request.param)
    double.put_image("a/b", IMAGE, "v1")
    return double


@pytest.fixture
def old(start: Start) -> RegistryDouble:
    """A registry without the referrers API."""
    double = start(referrers=False)
    double.put_image("a/b", IMAGE, "v1")
    return double


def source(double: RegistryDouble, client: RegistryClient) -> RegistrySource:
    return RegistrySource(client, repository_at(double, "a/b"))


def sink(double: RegistryDouble, client: RegistryClient) -> RegistrySink:
    return RegistrySink(client, repository_at(double, "a/b"))


def entries(double: RegistryDouble) -> list[dict[str, Any]]:
    found = double.repository("a/b").manifest(TAG)
    assert found is not None
    listed: list[dict[str, Any]] = json.loads(found[1])["manifests"]
    return listed


def write_index(double: RegistryDouble, listed: list[dict[str, Any]], **more: Any) -> None:
    value = {"schemaVersion": 2, "mediaType": mt.OCI_INDEX, "manifests": listed, **more}
    double.put_manifest("a/b", json.dumps(value).encode(), mt.OCI_INDEX, TAG)


def foreign(number: int, **more: Any) -> dict[str, Any]:
    return {"mediaType": mt.OCI_MANIFEST, "digest": str(Digest.of(bytes([number]))), "size": 7, **more}


def test_what_was_attached_is_found(place: RegistryDouble, client: RegistryClient) -> None:
    """kyverno/kyverno#16754, sigstore/cosign#5098"""
    document, blobs = referrer()
    assert sink(place, client).attach(document, blobs) is place.referrers
    (found,) = source(place, client).referrers(IMAGE.digest)
    assert found.digest == document.descriptor.digest
    assert found.artifact_type == BUNDLE
    assert found.annotations["text"] == "one"
    assert (place.tag("a/b", TAG) is None) is place.referrers


def test_no_referrers_is_an_empty_list(place: RegistryDouble, client: RegistryClient) -> None:
    assert source(place, client).referrers(IMAGE.digest) == []


def test_several_referrers_of_one_subject(place: RegistryDouble, client: RegistryClient) -> None:
    documents = [referrer(text) for text in ("one", "two", "three")]
    for document, blobs in documents:
        sink(place, client).attach(document, blobs)
    found = source(place, client).referrers(IMAGE.digest)
    assert {d.digest for d in found} == {document.descriptor.digest for document, _ in documents}


@pytest.mark.parametrize("status", [429, 500, 503, 401, 403, 400, 405])
def test_could_not_find_out_is_not_unsigned(place: RegistryDouble, client: RegistryClient, status: int) -> None:
    """giantswarm/retagger#1239"""
    place.fault("referrers", times=99, status=status)
    with pytest.raises(UnavailableError) as caught:
        source(place, client).referrers(IMAGE.digest)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("status", [429, 500, 403])
def test_nor_is_a_failing_tag(old: RegistryDouble, client: RegistryClient, status: int) -> None:
    old.fault("manifests", times=99, status=status)
    with pytest.raises(UnavailableError):
        source(old, client).referrers(IMAGE.digest)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"schemaVersion": 2}', b'{"schemaVersion": 2, "manifests": [{}]}', b""]
)
def test_an_answer_that_is_no_index_is_not_an_empty_list(
    place: RegistryDouble, client: RegistryClient, body: bytes
) -> None:
    place.fault("referrers", status=200, body=body)
    with pytest.raises(UnavailableError) as caught:
        source(place, client).referrers(IMAGE.digest)
    assert caught.value.code == "registry.referrers-unknown"


def test_an_image_under_the_tag_is_no_list(old: RegistryDouble, client: RegistryClient) -> None:
    old.put_image("a/b", IMAGE, TAG)
    with pytest.raises(UnavailableError):
        source(old, client).referrers(IMAGE.digest)


def test_the_list_comes_page_by_page(start: Start, client: RegistryClient) -> None:
    double = start(page=2)
    double.put_image("a/b", IMAGE)
    for text in "abcde":
        document, _ = referrer(text)
        double.put_manifest("a/b", document.raw, mt.OCI_MANIFEST)
    assert len(source(double, client).referrers(IMAGE.digest)) == 5
    assert len(double.requests("referrers")) == 3


def test_a_page_that_fails_fails_the_list(start: Start, client: RegistryClient) -> None:
    double = start(page=1)
    double.put_image("a/b", IMAGE)
    for text in "abc":
        double.put_manifest("a/b", referrer(text)[0].raw, mt.OCI_MANIFEST)
    double.fault("referrers", skip=1, times=99, status=404)
    with pytest.raises(UnavailableError):
        source(double, client).referrers(IMAGE.digest)


def test_a_registry_that_took_the_subject_is_not_written_a_tag(start: Start, client: RegistryClient) -> None:
    double = start()
    double.put_image("a/b", IMAGE)
    double.fault("PUT .*manifests", headers={"OCI-Subject": ""})
    document, blobs = referrer()
    assert sink(double, client).attach(document, blobs) is False
    assert double.tag("a/b", TAG) is not None


def test_entries_of_others_stay_as_they_are(old: RegistryDouble, client: RegistryClient) -> None:
    theirs = [foreign(1, annotations={"x": "y"}, unknown={"n": 1e3}), foreign(2)]
    write_index(old, theirs, vendor="kept")
    document, blobs = referrer()
    sink(old, client).attach(document, blobs)
    assert entries(old)[:2] == theirs
    assert entries(old)[2]["digest"] == str(document.descriptor.digest)
    held = old.repository("a/b").manifest(TAG)
    assert held is not None
    assert json.loads(held[1])["vendor"] == "kept"


def test_attaching_twice_changes_nothing(old: RegistryDouble, client: RegistryClient) -> None:
    document, blobs = referrer()
    sink(old, client).attach(document, blobs)
    before = old.tag("a/b", TAG)
    old.log.clear()
    sink(old, client).attach(document, blobs)
    assert old.tag("a/b", TAG) == before
    assert old.requests(f"PUT .*{TAG}") == []


def test_ours_is_found_and_mended_whatever_the_index_says_of_its_type(
    old: RegistryDouble, client: RegistryClient
) -> None:
    """cosign writes the empty type there."""
    document, blobs = referrer()
    entry = document.descriptor.to_json()
    write_index(old, [{**entry, "artifactType": mt.OCI_EMPTY}])
    found = source(old, client).referrers(IMAGE.digest)
    assert own_referrers(found, {document.descriptor.digest}) == found
    sink(old, client).attach(document, blobs)
    assert [item["artifactType"] for item in entries(old)] == [BUNDLE]


def test_without_an_artifact_type_the_configs_type_stands_there(old: RegistryDouble, client: RegistryClient) -> None:
    document, blobs = referrer(artifact_type=None)
    sink(old, client).attach(document, blobs)
    assert entries(old)[0]["artifactType"] == mt.OCI_EMPTY


def test_another_writer_at_the_same_time(old: RegistryDouble, client: RegistryClient) -> None:
    """(measured, cosign 3.1) Four parallel writers: ours is there in the end, the others' are kept where seen."""
    write_index(old, [foreign(0)])
    numbers = iter(range(1, 4))

    def overwrites() -> None:
        number = next(numbers)
        write_index(old, [foreign(0), foreign(number)])

    # The tag's index is read again after our PUT: by then another writer has replaced it.
    old.fault(f"GET .*{TAG}", skip=1, times=3, act=overwrites)
    document, blobs = referrer()
    sink(old, client).attach(document, blobs)
    digests = {item["digest"] for item in entries(old)}
    assert str(document.descriptor.digest) in digests
    assert {foreign(number)["digest"] for number in range(4)} <= digests


def test_a_slower_writer_that_had_read_before_ours_was_there(
    old: RegistryDouble, connect: Callable[..., RegistryClient]
) -> None:
    """Its write comes after ours has been seen, unless it is waited for: ours would be said to be there, and be gone."""
    late = [lambda: write_index(old, [foreign(1)])]

    class Meanwhile(FakeTime):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            while late:
                late.pop()()

    document, blobs = referrer()
    sink(old, connect(time=Meanwhile(old))).attach(document, blobs)
    assert not late
    assert {item["digest"] for item in entries(old)} == {str(document.descriptor.digest), foreign(1)["digest"]}


def test_what_was_read_before_a_wait_is_not_written_after_it(
    old: RegistryDouble, connect: Callable[..., RegistryClient]
) -> None:
    """Writers that contend wait; whatever came in the meantime stays."""
    numbers = iter(range(1, 3))

    class Meanwhile(FakeTime):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            for number in numbers:
                write_index(old, [*(entries(old) if number > 1 else []), foreign(number)])
                break

    document, blobs = referrer()
    time = Meanwhile(old)
    sink(old, connect(time=time)).attach(document, blobs)
    digests = {item["digest"] for item in entries(old)}
    assert digests == {str(document.descriptor.digest), foreign(1)["digest"], foreign(2)["digest"]}
    assert time.slept == [0.2, 0.4]


def test_writers_that_never_stop_are_said(old: RegistryDouble, client: RegistryClient) -> None:
    old.fault(f"GET .*{TAG}", skip=1, times=99, act=lambda: write_index(old, [foreign(9)]))
    document, blobs = referrer()
    with pytest.raises(UnavailableError) as caught:
        sink(old, client).attach(document, blobs)
    assert caught.value.code == "registry.referrers-contended"
    assert len(old.requests(f"PUT .*{TAG}")) == 5


def test_our_own_referrers_of_one_subject_go_one_after_another(old: RegistryDouble, client: RegistryClient) -> None:
    from concurrent.futures import ThreadPoolExecutor

    documents = [referrer(str(number)) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(sink(old, client).attach, *made) for made in documents]:
            future.result()
    assert {item["digest"] for item in entries(old)} == {str(d.descriptor.digest) for d, _ in documents}
    assert len(old.requests(f"PUT .*{TAG}")) == 6


def test_an_index_that_is_none_is_not_overwritten(old: RegistryDouble, client: RegistryClient) -> None:
    image = old.put_image("a/b", IMAGE, TAG)
    document, blobs = referrer()
    with pytest.raises(RefusedError):
        sink(old, client).attach(document, blobs)
    assert old.tag("a/b", TAG) == image


def test_what_has_no_subject_is_no_referrer(double: RegistryDouble, client: RegistryClient) -> None:
    with pytest.raises(ValueError, match="subject"):
        sink(double, client).attach(Document(IMAGE.descriptor, IMAGE.raw), [])
