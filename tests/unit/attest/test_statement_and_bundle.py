"""Statements and bundles: what is read, and what is not taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from imagebuild.attest.bundle import BUNDLE_TYPE, Bundle
from imagebuild.attest.dsse import VerifiedPayload, sign_payload
from imagebuild.attest.keys import KeySigner
from imagebuild.attest.statement import Statement, Subject, read_statement
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError

ONE, TWO = Digest.of(b"one"), Digest.of(b"two")


def read(value: Any) -> Statement:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_statement(VerifiedPayload(raw, frozenset()))


def good(**changes: Any) -> dict[str, Any]:
    made = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "n", "digest": {"sha256": ONE.hex}}],
        "predicateType": "https://example.com/p",
        "predicate": {"a": 1.5},
    }
    return {**made, **changes}


def test_a_statement_makes_a_round_trip_and_keeps_numbers() -> None:
    statement = read(good())
    assert statement.names(ONE)
    assert not statement.names(TWO)
    assert statement.value == {"a": 1.5}
    assert read(statement.format()) == statement
    assert b'"a":1.5' in statement.format()


def test_any_subject_may_be_the_one_and_names_are_none() -> None:
    both = Statement((Subject(TWO, str(ONE)), Subject(ONE)), "t", {})
    assert both.names(ONE)
    assert not Statement((Subject(TWO, f"image@{ONE}"),), "t", {}).names(ONE)


def test_other_algorithms_match_nothing() -> None:
    statement = read(good(subject=[{"digest": {"sha512": ONE.hex}}, {"digest": {"gitCommit": ONE.hex[:40]}}]))
    assert not statement.names(ONE)


@pytest.mark.parametrize(
    "value",
    [
        good(_type="https://in-toto.io/Statement/v2"),
        good(_type=None),
        good(subject=[]),
        good(subject={}),
        good(subject=[{"name": "x"}]),
        good(subject=[{"digest": {}}]),
        good(subject=[{"digest": {"sha256": ONE.hex.upper()}}]),
        good(subject=[{"digest": {"sha256": 5}}]),
        good(subject=[5]),
        good(predicateType=""),
        good(predicateType=5),
        good(predicate=[]),
        [],
        b'{"a":1,"a":2}',
    ],
    ids=lambda value: json.dumps(value)[:60] if not isinstance(value, bytes) else "doubled",
)
def test_what_is_no_statement_is_refused(value: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        read(value)
    assert caught.value.code == "attest.bad-statement"


def bundle(signer: KeySigner, **changes: Any) -> bytes:
    made = Bundle(sign_payload(b"{}", signer.sign), signer.public_key.hint)
    return json.dumps({**made.to_json(), **changes}).encode()


def test_a_bundle_makes_a_round_trip(signer: KeySigner) -> None:
    read = Bundle.parse(bundle(signer, unknown=1))
    assert read.hint == signer.public_key.hint
    assert Bundle.parse(read.format()) == read


@pytest.mark.parametrize("name", ["certificate", "x509CertificateChain"])
def test_a_certificate_without_a_trust_root_is_refused(signer: KeySigner, name: str) -> None:
    for material in ({name: {"rawBytes": "QQ=="}}, {name: {}, "publicKey": {"hint": ""}}):
        with pytest.raises(RefusedError) as caught:
            Bundle.parse(bundle(signer, verificationMaterial=material))
        assert caught.value.code == "attest.no-trust-root"


def test_a_bundle_over_a_recorded_digest_is_refused(signer: KeySigner) -> None:
    """Its digest can be altered without touching the signature, so it is not read at all."""
    message = {"messageDigest": {"algorithm": "SHA2_256", "digest": "QQ=="}, "signature": "QQ=="}
    for changes in ({"messageSignature": message}, {"messageSignature": message, "dsseEnvelope": None}):
        with pytest.raises(RefusedError) as caught:
            Bundle.parse(bundle(signer, **changes))
        assert caught.value.code == "attest.bad-bundle"


@pytest.mark.parametrize(
    "changes",
    [
        {"mediaType": "application/vnd.dev.sigstore.bundle+json;version=0.2"},
        {"mediaType": None},
        {"verificationMaterial": None},
        {"verificationMaterial": {}},
        {"verificationMaterial": {"publicKey": {"hint": 5}}},
        {"dsseEnvelope": None},
    ],
    ids=repr,
)
def test_other_bundles_are_refused(signer: KeySigner, changes: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as caught:
        Bundle.parse(bundle(signer, **changes))
    assert caught.value.code == "attest.bad-bundle"


def test_a_bundle_has_one_signature(signer: KeySigner) -> None:
    envelope = sign_payload(b"{}", signer.sign).to_json()
    envelope["signatures"] *= 2
    with pytest.raises(RefusedError) as caught:
        Bundle.parse(bundle(signer, dsseEnvelope=envelope))
    assert caught.value.code == "attest.bad-bundle"


def test_the_media_type_is_the_contract_s() -> None:
    assert BUNDLE_TYPE == "application/vnd.dev.sigstore.bundle.v0.3+json"
