"""Signatures under the older tag `sha256-….sig`: read, verified, and what somebody without a trusted key cannot achieve."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from places import NOW

from imagebuild.attest.check import Check
from imagebuild.attest.evidence import gather, signature_checks
from imagebuild.attest.keys import KeySigner
from imagebuild.attest.predicates.image_signature import image_signature
from imagebuild.attest.simple_signature import SIGNATURE, SIMPLE_SIGNING, signature_tag, simple_payload
from imagebuild.attest.simple_signing import push_simple_signature
from imagebuild.attest.storage import attach_statement, registry_place
from imagebuild.attest.subjects import ImageSubject, image_subjects
from imagebuild.attest.trust import TrustedKey
from imagebuild.content.digest import Digest
from imagebuild.oci.tree import read_image_tree
from imagebuild.testing.images import ImageSpec, make_image
from imagebuild.testing.memory import MemorySource
from imagebuild.testing.registry_client import FakeTime, client_for, repository_at
from imagebuild.testing.registry_double import RegistryDouble

IMAGE = make_image(ImageSpec(()))
OTHER = Digest.of(b"another image")
TAG = signature_tag(IMAGE.digest)


class Old:
    """An image in a scripted registry, and what is under its older tag."""

    def __init__(self, double: RegistryDouble, folder: Path) -> None:
        self.double = double
        self.client = client_for(folder, time=FakeTime(double))
        self.repository = repository_at(double, "a/b")
        self.place = registry_place(self.client, self.repository)
        self.subject: ImageSubject
        (self.subject,) = image_subjects(read_image_tree(MemorySource(IMAGE), IMAGE.digest))

    def push(self, signer: KeySigner, subject: Digest = IMAGE.digest) -> None:
        push_simple_signature(self.client, self.repository, subject, signer)

    def put(self, *layers: tuple[bytes, Any], manifest: bytes | None = None) -> None:
        """Writes the tag as an attacker would: payloads with the text of their annotation."""
        listed = []
        for payload, signature in layers:
            self.double.put_blob("a/b", payload)
            named = {} if signature is None else {SIGNATURE: signature}
            digest = str(Digest.of(payload))
            listed.append({"mediaType": SIMPLE_SIGNING, "digest": digest, "size": len(payload), "annotations": named})
        config = b"{}"
        self.double.put_blob("a/b", config)
        kind = "application/vnd.oci.image.manifest.v1+json"
        value = {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": str(Digest.of(config)),
                "size": 2,
            },
            "layers": listed,
        }
        self.double.put_manifest("a/b", manifest or json.dumps(value).encode(), kind, TAG)

    def check(self, *signers: KeySigner, threshold: int = 1) -> Check:
        keys = [TrustedKey(f"k{number}", signer.public_key) for number, signer in enumerate(signers)]
        (check,) = signature_checks(gather(self.place.source, [self.subject], keys), keys, threshold)
        return check


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Old]:
    with RegistryDouble() as double:
        double.put_image("a/b", IMAGE, "v1")
        made = Old(double, tmp_path)
        yield made
        made.client.close()


def text(signer: KeySigner, payload: bytes) -> str:
    return base64.b64encode(signer.sign(payload)).decode()


def test_our_own_count_and_the_form_is_said(old: Old, signer: KeySigner, other: KeySigner) -> None:
    assert old.check(signer).passed is False
    old.push(signer)
    old.push(other)
    assert old.check(signer).passed
    assert TAG in str(old.check(other).found)


def test_another_key(old: Old, signer: KeySigner, stranger: KeySigner) -> None:
    old.push(stranger)
    check = old.check(signer)
    assert check.passed is False
    assert "attest.bad-signature" in str(check.found)


def test_a_signature_of_another_digest_under_this_tag(old: Old, signer: KeySigner) -> None:
    payload = simple_payload(OTHER, "a/b")
    old.put((payload, text(signer, payload)))
    check = old.check(signer)
    assert check.passed is False
    assert "attest.other-digest" in str(check.found)


def test_an_altered_payload(old: Old, signer: KeySigner) -> None:
    signature = text(signer, simple_payload(OTHER, "a/b"))
    old.put((simple_payload(IMAGE.digest, "a/b"), signature))
    assert old.check(signer).passed is False


def test_a_statement_of_the_newer_form_is_none_of_the_older(old: Old, signer: KeySigner) -> None:
    """The two forms sign different texts: neither can be presented as the other."""
    from imagebuild.attest.dsse import sign_payload

    envelope = sign_payload(image_signature(IMAGE.digest).format(), signer.sign)
    old.put((envelope.payload, base64.b64encode(envelope.signatures[0].sig).decode()))
    assert old.check(signer).passed is False


def claims(**critical: Any) -> bytes:
    image = {"docker-manifest-digest": str(IMAGE.digest)}
    full = {"identity": {"docker-reference": ""}, "image": image, "type": "cosign container image signature"}
    return json.dumps({"critical": {**full, **critical}, "optional": {}}).encode()


@pytest.mark.parametrize(
    "payload",
    [
        claims(type="atomic container signature"),
        claims(image={"docker-manifest-digest": None}),
        claims(image=str(IMAGE.digest)),
        b'{"critical": null}',
        b"[]",
        b"{",
        claims()[:-1] + b', "critical": {}}',
    ],
)
def test_a_signed_payload_that_does_not_name_the_image(old: Old, signer: KeySigner, payload: bytes) -> None:
    old.put((payload, text(signer, payload)))
    assert old.check(signer).passed is False


def test_spelling_and_name_of_a_payload_decide_nothing(old: Old, signer: KeySigner) -> None:
    payload = claims(identity={"docker-reference": "somewhere/else"})
    old.put((payload, text(signer, payload)))
    assert old.check(signer).passed


@pytest.mark.parametrize(
    "change", [lambda s: None, lambda s: s[:-4], lambda s: s + "=", lambda s: " " + s, lambda s: ""]
)
def test_base64_that_is_malleable_truncated_or_missing(
    old: Old, signer: KeySigner, change: Callable[[str], Any]
) -> None:
    payload = claims()
    old.put((payload, change(text(signer, payload))))
    assert old.check(signer).passed is False


def test_garbage_beside_a_good_one_changes_nothing(old: Old, signer: KeySigner, stranger: KeySigner) -> None:
    payload = claims()
    old.put(
        (b"garbage", "AAAA"),
        (payload, "not base64"),
        (payload, text(stranger, payload)),
        (payload, text(signer, payload)),
    )
    assert old.check(signer).passed


def test_a_tag_that_holds_no_manifest(old: Old, signer: KeySigner) -> None:
    old.put(manifest=b'{"schemaVersion": 2, "layers": 1}')
    check = old.check(signer)
    assert check.passed is False


def test_one_key_in_both_forms_is_one_signer(old: Old, signer: KeySigner, other: KeySigner) -> None:
    old.push(signer)
    attach_statement(old.place, old.subject.descriptor, image_signature(IMAGE.digest), signer, NOW)
    assert old.check(signer, other, threshold=2).passed is False
    old.push(other)
    assert old.check(signer, other, threshold=2).passed
    assert TAG not in str(old.check(signer, other, threshold=2).found), "one of them stands in a bundle"


def test_a_tag_that_cannot_be_asked_for_is_not_an_unsigned_image(
    old: Old, signer: KeySigner, stranger: KeySigner
) -> None:
    attach_statement(old.place, old.subject.descriptor, image_signature(IMAGE.digest), signer, NOW)
    old.double.fault(rf"(GET|HEAD) .*/manifests/{TAG}", status=403, times=1000)
    assert old.check(signer).passed, "what was found is enough"
    assert old.check(stranger).passed is None


def test_the_older_form_answers_where_referrers_cannot(old: Old, signer: KeySigner, stranger: KeySigner) -> None:
    old.push(signer)
    old.double.fault("GET .*/referrers/", status=500, times=1000)
    assert old.check(signer).passed
    assert old.check(stranger).passed is None
