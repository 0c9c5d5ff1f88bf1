"""Envelopes: what is signed, what is refused, who is counted."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from imagebuild.attest.dsse import PAYLOAD_TYPE, Envelope, Signature, decode_base64, pae, sign_payload, verify_envelope
from imagebuild.attest.keys import KeySigner
from imagebuild.errors import RefusedError

PAYLOAD = '{"name":"Zoë"}'.encode()


def refused(code: str, act: Any, *arguments: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        act(*arguments)
    assert caught.value.code == code
    return caught.value


def document(envelope: Envelope, **changes: Any) -> bytes:
    return json.dumps({**envelope.to_json(), **changes}).encode()


def test_lengths_count_bytes_and_not_characters() -> None:
    assert pae("é", "ü".encode()) == b"DSSEv1 2 \xc3\xa9 2 \xc3\xbc"


@pytest.mark.parametrize("name", ["signer", "other"])
def test_a_signature_verifies_after_a_round_trip(name: str, request: pytest.FixtureRequest) -> None:
    key: KeySigner = request.getfixturevalue(name)
    envelope = sign_payload(PAYLOAD, key.sign)
    read = Envelope.parse(envelope.format())
    assert read == envelope
    verified = verify_envelope(read, [key.public_key])
    assert verified.payload == PAYLOAD
    assert verified.keys == {key.public_key}


def test_an_altered_payload_another_key_and_a_bare_signature_are_refused(signer: KeySigner, other: KeySigner) -> None:
    envelope = sign_payload(PAYLOAD, signer.sign)
    refused("attest.bad-signature", verify_envelope, Envelope(PAYLOAD + b" ", envelope.signatures), [signer.public_key])
    refused("attest.bad-signature", verify_envelope, envelope, [other.public_key])
    refused("attest.bad-signature", verify_envelope, envelope, [])
    bare = Envelope(PAYLOAD, (Signature(signer.sign(PAYLOAD)),))
    refused("attest.bad-signature", verify_envelope, bare, [signer.public_key])


@pytest.mark.parametrize("swapped", ["application/json", "application/vnd.in-toto+json ", "", PAYLOAD_TYPE.upper()])
def test_another_payload_type_is_refused_whoever_signed_it(signer: KeySigner, swapped: str) -> None:
    envelope = sign_payload(PAYLOAD, signer.sign)
    resigned = Signature(signer.sign(pae(swapped, PAYLOAD))).to_json()
    raw = document(envelope, payloadType=swapped, signatures=[resigned])
    refused("attest.unknown-payload-type", Envelope.parse, raw)


def test_a_signature_over_another_type_does_not_fit_ours(signer: KeySigner) -> None:
    signature = Signature(signer.sign(pae("application/json", PAYLOAD)))
    refused("attest.bad-signature", verify_envelope, Envelope(PAYLOAD, (signature,)), [signer.public_key])


def test_both_alphabets_are_read() -> None:
    data = bytes(range(248, 256))
    assert decode_base64(base64.b64encode(data).decode(), "x") == data
    assert decode_base64(base64.urlsafe_b64encode(data).decode(), "x") == data


@pytest.mark.parametrize(
    "text",
    ["QQ", "QQ=", "QR==", "QQ===", "QQ==QQ==", " QQ==", "QQ==\n", "Q Q=", "-_+/", "QQ\u00e9=", "====", "Q", 5, None],
    ids=repr,
)
def test_base64_has_one_form(text: Any) -> None:
    refused("attest.bad-envelope", decode_base64, text, "x")


def test_one_key_under_two_ids_counts_once(signer: KeySigner, other: KeySigner) -> None:
    message = pae(PAYLOAD_TYPE, PAYLOAD)
    twice = Envelope(PAYLOAD, (Signature(signer.sign(message), "a"), Signature(signer.sign(message), "b")))
    error = refused(
        "attest.bad-signature", verify_envelope, twice, [signer.public_key, signer.public_key, other.public_key], 2
    )
    assert error.found == signer.public_key.fingerprint
    both = Envelope(PAYLOAD, (*twice.signatures, Signature(other.sign(message), "a")))
    assert len(verify_envelope(both, [signer.public_key, other.public_key], 2).keys) == 2


def test_a_keyid_is_no_more_than_a_hint(signer: KeySigner) -> None:
    sig = base64.b64encode(signer.sign(pae(PAYLOAD_TYPE, PAYLOAD))).decode()
    for entry in ({"sig": sig}, {"sig": sig, "keyid": "wrong"}, {"sig": sig, "keyid": None, "more": 1}):
        raw = document(Envelope(PAYLOAD, (Signature(b"x"),)), signatures=[entry])
        assert verify_envelope(Envelope.parse(raw), [signer.public_key]).payload == PAYLOAD


@pytest.mark.parametrize(
    "change",
    [
        {"payload": None},
        {"payloadType": None},
        {"signatures": []},
        {"signatures": {}},
        {"signatures": [5]},
        {"signatures": [{}]},
        {"signatures": [{"sig": "QQ==", "keyid": 5}]},
        {"signatures": [{"sig": "QQ=="}] * 101},
    ],
    ids=repr,
)
def test_malformed_envelopes_are_refused(signer: KeySigner, change: dict[str, Any]) -> None:
    refused("attest.bad-envelope", Envelope.parse, document(sign_payload(PAYLOAD, signer.sign), **change))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"payload":"","payload":""}', b"\xff", b"{" + b" " * (33 << 20)])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    refused("attest.bad-envelope", Envelope.parse, raw)
