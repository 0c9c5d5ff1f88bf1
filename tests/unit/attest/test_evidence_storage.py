"""Bundles as referrers: in registries of both kinds and in layouts, once, whole, and never mistaken for absent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from places import NOW, Stored, passed, stored

from imagebuild.attest.check import Check
from imagebuild.attest.evidence import gather, signature_checks
from imagebuild.attest.keys import KeySigner
from imagebuild.attest.predicates.image_signature import TYPE, image_signature
from imagebuild.attest.simple_signing import SIGNATURE, push_simple_signature, signature_tag
from imagebuild.attest.statement import Statement
from imagebuild.attest.storage import BUNDLE_TYPE, EvidencePlace, attach_statement, fetch_bundles, registry_place
from imagebuild.attest.subjects import ImageSubject, image_subjects
from imagebuild.attest.trust import TrustedKey
from imagebuild.errors import UnavailableError
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.images import ImageSpec, MadeImage, make_image
from imagebuild.testing.memory import MemorySource
from imagebuild.testing.registry_client import FakeTime, client_for, repository_at
from imagebuild.testing.registry_double import RegistryDouble

IMAGE = make_image(ImageSpec(()))


class Held:
    """An image in a scripted registry."""

    def __init__(self, double: RegistryDouble, folder: Path) -> None:
        self.double = double
        self.client = client_for(folder, time=FakeTime(double))
        self.repository = repository_at(double, "a/b")
        self.place: EvidencePlace = registry_place(self.client, self.repository)
        (self.subject,) = image_subjects(read_image_tree(MemorySource(IMAGE), IMAGE.digest))

    def sign(self, signer: KeySigner) -> bool:
        return attach_statement(self.place, self.subject.descriptor, image_signature(IMAGE.digest), signer, NOW).added

    def check(self, signer: KeySigner) -> Check:
        keys = [TrustedKey("k", signer.public_key)]
        (check,) = signature_checks(gather(self.place.source, [self.subject], keys), keys)
        return check


@pytest.fixture(params=[True, False], ids=["api", "tag"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Held]:
    with ExitStack() as stack:
        double = stack.enter_context(RegistryDouble(referrers=request.param))
        double.put_image("a/b", IMAGE, "v1")
        made = Held(double, tmp_path)
        stack.callback(made.client.close)
        yield made


def test_the_artifact_is_what_the_contract_says(held: Held, signer: KeySigner) -> None:
    assert held.sign(signer)
    (listed,) = held.place.source.referrers(IMAGE.digest)
    raw, media_type = held.place.source.read_document(listed.digest)
    value = json.loads(raw)
    assert media_type == value["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert value["artifactType"] == listed.artifact_type == BUNDLE_TYPE
    assert (value["config"]["mediaType"], value["config"]["size"]) == ("application/vnd.oci.empty.v1+json", 2)
    assert [layer["mediaType"] for layer in value["layers"]] == [BUNDLE_TYPE]
    assert value["subject"]["digest"] == str(IMAGE.digest)
    assert value["annotations"] == dict(listed.annotations)
    assert value["annotations"]["dev.sigstore.bundle.content"] == "dsse-envelope"
    assert value["annotations"]["dev.sigstore.bundle.predicateType"] == TYPE
    assert value["annotations"]["org.opencontainers.image.created"] == "2026-09-21T14:13:20Z"
    (found,) = fetch_bundles(held.place.source, IMAGE.digest)
    assert found.bundle is not None
    assert found.bundle.hint == signer.public_key.hint


def test_signing_again_adds_nothing_and_another_key_does(held: Held, signer: KeySigner, other: KeySigner) -> None:
    assert [held.sign(signer), held.sign(signer), held.sign(other), held.sign(other)] == [True, False, True, False]
    assert len(held.place.source.referrers(IMAGE.digest)) == 2
    before = len(held.double.lines("PUT"))
    assert not held.sign(signer)
    assert len(held.double.lines("PUT")) == before


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_registry_that_fails_is_not_an_unsigned_image(held: Held, signer: KeySigner, status: int) -> None:
    held.sign(signer)
    assert held.check(signer).passed is True
    held.double.fault("GET .*/referrers/", status=status, times=1000)
    check = held.check(signer)
    assert check.passed is None
    assert "could not find out" in check.message


def test_a_bundle_that_cannot_be_fetched_is_not_an_unsigned_image(held: Held, signer: KeySigner) -> None:
    held.sign(signer)
    held.double.fault("GET .*/blobs/", status=503, times=1000)
    assert held.check(signer).passed is None


def test_nothing_attached_is_an_answer(held: Held, signer: KeySigner) -> None:
    check = held.check(signer)
    assert (check.passed, check.found) == (False, "nothing is attached")


def test_writers_at_the_same_time_keep_each_other(held: Held) -> None:
    signers = [KeySigner.make() for _ in range(4)]
    faults: list[BaseException] = []

    def sign(signer: KeySigner) -> None:
        try:
            held.sign(signer)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=sign, args=(signer,)) for signer in signers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert [held.check(signer).passed for signer in signers] == [True] * 4


def test_an_entry_that_another_writer_lost_is_put_back(tmp_path: Path, signer: KeySigner, other: KeySigner) -> None:
    """Somebody who read the fallback index before us writes it after us."""
    with RegistryDouble(referrers=False) as double:
        double.put_image("a/b", IMAGE, "v1")
        held = Held(double, tmp_path)
        held.sign(other)
        tag = f"sha256-{IMAGE.digest.hex}"
        repository = double.repository("a/b")
        found = repository.manifest(tag)
        assert found is not None
        stale = found[1]
        held.sign(signer)
        from imagebuild.registry.manifests import Manifests

        view = held.client.repository(
            held.client.settings.push_location(held.repository), held.client.statistics, "pull", "push"
        )
        Manifests(view).push(tag, stale, "application/vnd.oci.image.index.v1+json")
        assert held.check(signer).passed is False
        assert held.sign(signer)
        assert held.check(signer).passed is True
        assert held.check(other).passed is True
        held.client.close()


def test_too_many_referrers_conclude_nothing(signer: KeySigner, tmp_path: Path) -> None:
    image = stored(tmp_path)
    image.sign_all(signer)
    (listed,) = image.place.source.referrers(image.subjects[0].digest)

    class Flooded:
        location = "x"

        def referrers(self, subject: Any) -> list[Any]:
            return [listed] * 1001

    with pytest.raises(UnavailableError) as caught:
        fetch_bundles(Flooded(), image.subjects[0].digest)  # type: ignore[arg-type]
    assert caught.value.code == "attest.too-many-referrers"


def test_a_layout_keeps_its_names_and_its_image(tmp_path: Path, signer: KeySigner) -> None:
    image = stored(tmp_path)
    path = tmp_path / "layout"
    before = LayoutSource(path).resolve(None)
    image.sign_all(signer)
    index = (path / "index.json").read_bytes()
    image.sign_all(signer)
    assert (path / "index.json").read_bytes() == index
    assert LayoutSource(path).resolve(None) == before
    entries = json.loads(index)["manifests"]
    assert [entry.get("artifactType") for entry in entries] == [None, *[BUNDLE_TYPE] * 3]
    assert not [e for e in entries[1:] if "org.opencontainers.image.ref.name" in e["annotations"]]
    assert passed(image.signatures(signer), "verify.signature") == [True] * 3


def test_a_damaged_bundle_in_a_layout_is_found(tmp_path: Path, signer: KeySigner) -> None:
    image = stored(tmp_path)
    image.sign_all(signer)
    (listed,) = image.place.source.referrers(image.subjects[0].digest)
    raw, _ = image.place.source.read_document(listed.digest)
    blob = tmp_path / "layout" / "blobs" / "sha256" / json.loads(raw)["layers"][0]["digest"].removeprefix("sha256:")
    data = bytearray(blob.read_bytes())
    data[-20] ^= 1
    blob.write_bytes(data)
    check = image.signatures(signer)[0]
    assert check.passed is False
    assert "content.digest-mismatch" in str(check.found)


def test_an_equal_statement_is_recognised_by_meaning(tmp_path: Path, signer: KeySigner) -> None:
    """cosign writes the same statement with an empty `annotations` and other key order."""
    image = stored(tmp_path)
    subject = image.subjects[0]

    class Theirs(Statement):
        __slots__ = ()

        def format(self) -> bytes:
            return json.dumps(
                {
                    "predicate": {"b": 1, "a": 2},
                    "predicateType": TYPE,
                    "subject": [{"annotations": {}, "digest": {"sha256": subject.digest.hex}}],
                    "_type": "https://in-toto.io/Statement/v1",
                }
            ).encode()

    image.attach_raw(0, Theirs.about(subject.digest, TYPE, {}), signer)
    assert not image.attach(0, Statement.about(subject.digest, TYPE, {"a": 2, "b": 1}), signer).added
    assert image.attach(0, Statement.about(subject.digest, TYPE, {"a": 3, "b": 1}), signer).added


def test_the_older_tag_is_added_to_and_not_overwritten(held: Held, signer: KeySigner, other: KeySigner) -> None:
    def push(who: KeySigner) -> bool:
        return push_simple_signature(held.client, held.repository, IMAGE.digest, who)

    assert [push(signer), push(signer), push(other), push(other), push(signer)] == [True, False, True, False, False]
    found = held.double.repository("a/b").manifest(signature_tag(IMAGE.digest))
    assert found is not None
    layers = json.loads(found[1])["layers"]
    assert len(layers) == 2
    assert len({layer["annotations"][SIGNATURE] for layer in layers}) == 2
    assert {layer["mediaType"] for layer in layers} == {"application/vnd.dev.cosign.simplesigning.v1+json"}


def test_a_slower_writer_of_the_older_tag_loses_ours_nothing(
    held: Held, signer: KeySigner, other: KeySigner, tmp_path: Path
) -> None:
    """It had read the tag before our write, and writes after it."""
    push_simple_signature(held.client, held.repository, IMAGE.digest, other)
    tag = signature_tag(IMAGE.digest)
    found = held.double.repository("a/b").manifest(tag)
    assert found is not None
    late = [lambda: held.double.put_manifest("a/b", found[1], found[2], tag)]

    class Meanwhile(FakeTime):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            while late:
                late.pop()()

    with closing(client_for(tmp_path, time=Meanwhile(held.double))) as client:
        push_simple_signature(client, held.repository, IMAGE.digest, signer)
    assert not late
    kept = held.double.repository("a/b").manifest(tag)
    assert kept is not None
    assert len(json.loads(kept[1])["layers"]) == 2


def test_subjects_are_the_index_and_every_platform(tmp_path: Path) -> None:
    image: Stored = stored(tmp_path)
    assert [subject.name for subject in image.subjects] == ["index", "linux/amd64", "linux/arm64"]
    assert isinstance(image.subjects[0], ImageSubject)
    single: MadeImage = make_image(ImageSpec(()))
    assert len(image_subjects(read_image_tree(MemorySource(single), single.digest))) == 1
