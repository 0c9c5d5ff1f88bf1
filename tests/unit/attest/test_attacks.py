"""What somebody who may push, and has no trusted key, cannot achieve."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import Stored, passed, stored

from imagebuild.attest.bundle import Bundle
from imagebuild.attest.dsse import sign_payload
from imagebuild.attest.evidence import Evidence, gather
from imagebuild.attest.keys import KeySigner
from imagebuild.attest.policy_checks import PolicyQuestion, policy_checks
from imagebuild.attest.predicates.image_signature import TYPE, image_signature
from imagebuild.attest.predicates.types import RELEASE
from imagebuild.attest.statement import Statement, Subject
from imagebuild.attest.storage import BUNDLE_TYPE, fetch_bundles
from imagebuild.attest.subjects import ImageSubject, image_subjects
from imagebuild.attest.trust import TrustedKey
from imagebuild.content.digest import Digest
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import Document, LocalBlob
from imagebuild.oci.tree import read_image_tree
from imagebuild.target.policy import Policy, PolicyKey, Requirement, WaiverRule
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, make_image, make_index
from imagebuild.testing.memory import MemorySource

OTHER = Digest.of(b"another image")
IMAGE = (Requirement("image"),)


@pytest.fixture
def image(tmp_path: Path) -> Stored:
    return stored(tmp_path)


def attach_text(image: Stored, subject: int, bundle: bytes, **changes: Any) -> Document:
    """Attaches arbitrary bytes as a bundle, with a manifest changed at will."""
    import io

    descriptor = image.subjects[subject].descriptor
    config, layer = (
        LocalBlob(Descriptor(kind, Digest.of(data), len(data)), lambda data=data: io.BytesIO(data))
        for kind, data in (("application/vnd.oci.empty.v1+json", b"{}"), (BUNDLE_TYPE, bundle))
    )
    value = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": BUNDLE_TYPE,
        "config": config.descriptor.to_json(),
        "layers": [layer.descriptor.to_json()],
        "subject": Descriptor(descriptor.media_type, descriptor.digest, descriptor.size).to_json(),
        **changes,
    }
    raw = json.dumps(value).encode()
    made = Document(Descriptor(value["mediaType"], Digest.of(raw), len(raw)), raw)
    image.place.attach(made, [config, layer])
    return made


def text_of(statement: Statement, signer: KeySigner) -> dict[str, Any]:
    return Bundle(sign_payload(statement.format(), signer.sign), signer.public_key.hint).to_json()


def ignored(image: Stored, signer: KeySigner, subject: int = 0) -> str:
    evidence = gather(image.place.source, image.subjects, [TrustedKey("k", signer.public_key)])
    assert evidence[subject].verified == ()
    return " ".join(evidence[subject].ignored)


def test_what_is_signed_right_passes(image: Stored, signer: KeySigner) -> None:
    image.sign_all(signer)
    checks = image.signatures(signer)
    assert passed(checks, "verify.signature") == [True] * 3
    assert signer.public_key.fingerprint in str(checks[0].found)


def test_a_signature_of_another_digest(image: Stored, signer: KeySigner) -> None:
    image.attach_raw(0, image_signature(OTHER), signer)
    check = image.signatures(signer)[0]
    assert check.passed is False
    assert "attest.other-digest" in str(check.found)
    assert str(OTHER) in str(check.found)


def test_a_statement_of_another_type_is_no_signature(image: Stored, signer: KeySigner) -> None:
    for number, subject in enumerate(image.subjects):
        statement = Statement.about(subject.digest, "https://example.com/p", {})
        image.attach_raw(number, statement, signer, said=TYPE)
    checks = image.signatures(signer)
    assert passed(checks, "verify.signature") == [False] * 3
    assert "https://example.com/p" in str(checks[0].found)


def test_an_annotation_that_names_the_wanted_type_gives_nothing(image: Stored, signer: KeySigner) -> None:
    """The type that counts is the signed one."""
    for number in (1, 2):
        image.attach_raw(number, image_signature(image.subjects[number].digest), signer, said="https://example.com/p")
    need = (Requirement("https://example.com/p"),)
    assert passed(image.judge({"a": (signer, "x")}, require=need), "verify.evidence") == [False, False]


def test_an_index_signature_presented_for_a_platform(image: Stored, signer: KeySigner) -> None:
    for number in range(3):
        image.attach_raw(number, image_signature(image.subjects[0].digest), signer)
    assert passed(image.signatures(signer), "verify.signature") == [True, False, False]
    assert "attest.other-digest" in ignored(image, signer, 1)


def test_only_the_index_signed_is_not_enough(image: Stored, signer: KeySigner) -> None:
    image.attach(0, image_signature(image.subjects[0].digest), signer)
    assert passed(image.signatures(signer), "verify.signature") == [True, False, False]
    assert passed(image.judge({"a": (signer, "x")}, require=IMAGE), "verify.signature") == [True, False, False]


@pytest.mark.parametrize(
    "claim",
    [
        {"annotations": {"vnd.docker.reference.type": "attestation-manifest"}},
        {"artifactType": "application/x"},
        {"artifactType": "application/x", "platform": None},
    ],
    ids=repr,
)
def test_an_image_that_is_called_an_attestation_needs_evidence_all_the_same(
    signer: KeySigner, tmp_path: Path, claim: dict[str, Any]
) -> None:
    """Clients take the manifest of their platform, or one of no platform, whatever else the index says of it."""
    good = ImageSpec((LayerSpec((File("x", b"good"),)),), platform=Platform("linux", "arm64"))
    bad = make_image(ImageSpec((LayerSpec((File("x", b"bad"),)),)))
    entry = {**bad.descriptor.to_json(), "platform": {"os": "linux", "architecture": "amd64"}, **claim}
    child = {key: value for key, value in entry.items() if value is not None}
    index = make_index(IndexSpec((good,), attestations=True, extra_children=(child,)))
    subjects = image_subjects(read_image_tree(MemorySource(index), index.digest))
    assert [subject.digest for subject in subjects] == [index.digest, index.images[0].digest, bad.digest]


def test_an_index_of_nothing_meets_no_requirement(signer: KeySigner) -> None:
    index = make_index(IndexSpec(()))
    top = Evidence(ImageSubject("index", index.descriptor), ())
    key = TrustedKey("a", signer.public_key, "x")
    listed = PolicyKey("a", "x", pem=signer.public_key.pem.decode())
    for word in ("provenance", "smoke", "https://example.com/p"):
        policy = Policy({"a": listed}, require=(Requirement(word),))
        checks = policy_checks(PolicyQuestion(policy, (key,), [top], None, 0))
        assert passed(checks, "verify.evidence") == [False]


def test_several_subjects_speak_of_those_that_they_name_and_of_no_other(image: Stored, signer: KeySigner) -> None:
    both = Statement((Subject(OTHER), Subject(image.subjects[1].digest)), TYPE, {})
    for number in range(3):
        image.attach_raw(number, both, signer)
    assert passed(image.signatures(signer), "verify.signature") == [False, True, False]


def test_an_altered_digest_in_the_payload(image: Stored, signer: KeySigner) -> None:
    bundle = text_of(image_signature(OTHER), signer)
    moved = text_of(image_signature(image.subjects[0].digest), signer)
    bundle["dsseEnvelope"]["payload"] = moved["dsseEnvelope"]["payload"]
    attach_text(image, 0, json.dumps(bundle).encode())
    assert "attest.bad-signature" in ignored(image, signer)


def test_a_recorded_digest_beside_the_signature(image: Stored, signer: KeySigner) -> None:
    bundle = text_of(image_signature(image.subjects[0].digest), signer)
    bundle["messageSignature"] = {"messageDigest": {"algorithm": "SHA2_256", "digest": "QUJD"}, "signature": "QUJD"}
    attach_text(image, 0, json.dumps(bundle).encode())
    assert "attest.bad-bundle" in ignored(image, signer)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda e: e.update(payloadType="application/json"), "attest.unknown-payload-type"),
        (lambda e: e.update(payload=e["payload"][:-4]), "attest.bad-signature"),
        (lambda e: e.update(payload=e["payload"].rstrip("=")[:-1]), "attest.bad-envelope"),
        (lambda e: e.update(payload=e["payload"] + "\n"), "attest.bad-envelope"),
        (lambda e: e["signatures"][0].update(sig=e["signatures"][0]["sig"][:-4]), "attest.bad-"),
        (lambda e: e["signatures"][0].update(sig="\u00a0" + e["signatures"][0]["sig"]), "attest.bad-envelope"),
        (lambda e: e["signatures"].append({"sig": "AA=="}), "attest.bad-bundle"),
        (lambda e: e["signatures"].clear(), "attest.bad-envelope"),
    ],
)
def test_tampered_envelopes(image: Stored, signer: KeySigner, change: Any, code: str) -> None:
    bundle = text_of(image_signature(image.subjects[0].digest), signer)
    change(bundle["dsseEnvelope"])
    attach_text(image, 0, json.dumps(bundle).encode())
    assert code in ignored(image, signer)


def test_a_certificate_without_a_trust_root(image: Stored, signer: KeySigner) -> None:
    bundle = text_of(image_signature(image.subjects[0].digest), signer)
    bundle["verificationMaterial"] = {"certificate": {"rawBytes": "QUJD"}, "publicKey": {"hint": "x"}}
    attach_text(image, 0, json.dumps(bundle).encode())
    assert "attest.no-trust-root" in ignored(image, signer)


def test_garbage_beside_a_good_signature_changes_nothing(image: Stored, signer: KeySigner) -> None:
    attach_text(image, 0, b"\xff" * 100)
    attach_text(image, 0, b"{}", layers=[])
    image.sign_all(signer)
    attach_text(image, 0, b'{"a": 1, "a": 2}')
    assert passed(image.signatures(signer), "verify.signature") == [True] * 3


def test_a_referrer_listed_for_another_image(image: Stored, signer: KeySigner) -> None:
    """An index of the tag scheme may list what is about something else."""
    image.attach(1, image_signature(image.subjects[1].digest), signer)
    (listed,) = image.place.source.referrers(image.subjects[1].digest)

    class Lying:
        location = "a registry"

        def referrers(self, subject: Digest) -> list[Descriptor]:
            return [replace(listed, artifact_type="application/x", annotations={})]

        def __getattr__(self, name: str) -> Any:
            return getattr(image.place.source, name)

    (found,) = fetch_bundles(Lying(), image.subjects[0].digest)  # type: ignore[arg-type]
    assert found.bundle is None
    assert found.fault is not None
    assert found.fault.code == "attest.bad-bundle"


def test_one_key_under_two_names_and_roles_counts_once(image: Stored, signer: KeySigner, other: KeySigner) -> None:
    image.sign_all(signer)
    need = (Requirement("image", threshold=2),)
    twice = {"a": (signer, "builder"), "b": (signer, "tester"), "c": (other, "tester")}
    assert passed(image.judge(twice, require=need), "verify.signature") == [False] * 3
    roles = (Requirement("image", threshold=2, distinct_roles=True),)
    assert passed(image.judge(twice, require=roles), "verify.signature") == [False] * 3
    image.sign_all(other)
    assert passed(image.judge(twice, require=need), "verify.signature") == [True] * 3
    assert passed(image.judge(twice, require=roles), "verify.signature") == [True] * 3
    alike = {"a": (signer, "tester"), "b": (other, "tester"), "c": (KeySigner.make(), "builder")}
    assert passed(image.judge(alike, require=roles), "verify.signature") == [False] * 3


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_revoked_digest(image: Stored, signer: KeySigner, number: int) -> None:
    image.sign_all(signer)
    digest = image.subjects[number].digest
    checks = image.judge({"a": (signer, "x")}, require=IMAGE, revoked={digest: "CVE-2026-1"})
    assert passed(checks, "verify.signature") == [True] * 3
    bad = [check for check in checks if check.passed is False]
    assert [(check.code, check.found) for check in bad] == [("verify.revoked", "CVE-2026-1")]


def test_an_older_release_counter(image: Stored, signer: KeySigner, stranger: KeySigner) -> None:
    def verdict() -> list[bool | None]:
        return passed(image.judge({"a": (signer, "x")}, minimum_release={"b300-vllm": 7}), "verify.minimum-release")

    def release(counter: Any, target: str = "b300-vllm") -> Statement:
        return Statement.about(image.subjects[0].digest, RELEASE, {"target": target, "counter": counter})

    assert verdict() == [False]
    image.attach(0, release(6), signer)
    image.attach(0, release(9), stranger)
    image.attach(0, release(9, "other"), signer)
    image.attach(0, release("9"), signer)
    image.attach(0, release(True), signer)
    assert verdict() == [False]
    image.attach(0, release(7), signer)
    assert verdict() == [True]


def test_a_newer_release_that_shares_a_platform_does_not_lift_an_older_image(image: Stored, signer: KeySigner) -> None:
    """Release 9 names another index and one manifest of this image; somebody who may push attaches it there."""

    def release(counter: int, *digests: Digest) -> Statement:
        predicate = {
            "target": "b300-vllm", "counter": counter, "waiver": {"number": counter},
            "base": {"reference": "docker.io/v/v:1@sha256:00"},
        }  # fmt: skip
        return Statement(tuple(map(Subject, digests)), RELEASE, predicate)

    image.attach(0, release(6, *(subject.digest for subject in image.subjects)), signer)
    image.attach(1, release(9, OTHER, image.subjects[1].digest), signer)
    rules: dict[str, Any] = {"minimum_release": {"b300-vllm": 7}, "waiver": WaiverRule(True)}
    checks = image.judge({"a": (signer, "x")}, **rules)
    assert passed(checks, "verify.minimum-release") == [False]
    assert [check.message for check in checks if check.code == "verify.waiver"] == [
        "the release has a waiver, number 6"
    ]


def test_a_policy_that_requires_nothing_by_name_still_wants_signatures(
    image: Stored, signer: KeySigner, stranger: KeySigner
) -> None:
    image.sign_all(stranger)
    assert passed(image.judge({"a": (signer, "x")}), "verify.signature") == [False] * 3
    image.sign_all(signer)
    assert passed(image.judge({"a": (signer, "x")}), "verify.signature") == [True] * 3
    assert passed(image.judge({}), "verify.signature") == [False] * 3
