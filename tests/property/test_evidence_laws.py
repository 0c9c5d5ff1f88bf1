"""Laws of envelopes: nothing but the signed bytes under the trusted key is ever given out."""

from __future__ import annotations

import base64
import contextlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuild.attest.bundle import Bundle
from imagebuild.attest.dsse import Envelope, decode_base64, pae, sign_payload, verify_envelope
from imagebuild.attest.keys import KeySigner
from imagebuild.attest.public_key import ED25519
from imagebuild.errors import RefusedError

SIGNERS = (KeySigner.make(), KeySigner.make(ED25519))
PAYLOAD = b'{"a":"' + bytes(range(0x30, 0x50)) + b'"}'
BUNDLES = tuple(
    (signer, Bundle(sign_payload(PAYLOAD, signer.sign), signer.public_key.hint).format()) for signer in SIGNERS
)
"""Signed once: signatures of ECDSA differ each time, in length too."""
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@given(TEXT, st.binary(max_size=60), TEXT, st.binary(max_size=60))
def test_the_encoding_is_injective(kind: str, body: bytes, other_kind: str, other_body: bytes) -> None:
    assert (pae(kind, body) == pae(other_kind, other_body)) == ((kind, body) == (other_kind, other_body))


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(SIGNERS))
def test_a_round_trip_gives_the_payload_back(payload: bytes, signer: KeySigner) -> None:
    envelope = Envelope.parse(sign_payload(payload, signer.sign).format())
    assert verify_envelope(envelope, [signer.public_key]).payload == payload


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_bundle_changed_anywhere_gives_the_same_payload_or_none(data: st.DataObject) -> None:
    signer, signed = data.draw(st.sampled_from(BUNDLES))
    raw = bytearray(signed)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        kind = data.draw(st.sampled_from(("change", "cut", "add")))
        if kind == "change":
            raw[place] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del raw[place]
        else:
            raw.insert(place, data.draw(st.integers(0, 255)))
    try:
        bundle = Bundle.parse(bytes(raw))
        found = verify_envelope(bundle.envelope, [signer.public_key])
    except RefusedError:
        return
    assert found.payload == PAYLOAD


@given(st.text("ABCDwxyz0189+/-_= \n", max_size=24))
def test_base64_that_is_read_has_one_spelling_in_each_alphabet(text: str) -> None:
    try:
        found = decode_base64(text, "x")
    except RefusedError:
        return
    assert text in (base64.b64encode(found).decode(), base64.urlsafe_b64encode(found).decode())


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda x: st.lists(x) | st.dictionaries(TEXT, x)))
def test_no_json_brings_the_reader_down(value: object) -> None:
    for make in (
        lambda: Bundle.parse(json.dumps(value).encode()),
        lambda: Envelope.parse(json.dumps({"payload": value, "payloadType": value, "signatures": value}).encode()),
    ):
        with contextlib.suppress(RefusedError):
            make()
