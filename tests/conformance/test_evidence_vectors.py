"""The standards' own vectors and examples: DSSE 1.0 protocol, in-toto attestation framework, test-result v0.1."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from imagebuild.attest.dsse import Envelope, VerifiedPayload, decode_base64, pae, sign_payload, verify_envelope
from imagebuild.attest.keys import KeySigner
from imagebuild.attest.predicates.types import TEST_RESULT, stated_time
from imagebuild.attest.public_key import PublicKey
from imagebuild.attest.statement import read_statement
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError

# DSSE protocol.md, Test Vectors
TYPE = "http://example.com/HelloWorld"
BODY = b"hello world"
X = 46950820868899156662930047687818585632848591499744589407958293238635476079160
Y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
D = 97358161215184420915383655311931858321456579547487070936769975997791359926199
VECTOR = {
    "payload": "aGVsbG8gd29ybGQ=",
    "payloadType": TYPE,
    "signatures": [{"sig": "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="}],
}


def dsse_key() -> Any:
    return ec.EllipticCurvePublicNumbers(X, Y, ec.SECP256R1()).public_key()


def test_dsse_pre_authentication_encoding() -> None:
    assert pae(TYPE, BODY) == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("", b"") == b"DSSEv1 0  0 "


def test_dsse_signature_of_the_vector() -> None:
    """The vector's signature is the bare r and s; ours carry them in DER."""
    raw = decode_base64(VECTOR["signatures"][0]["sig"], "sig")  # type: ignore[index]
    signature = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
    key = PublicKey.of(dsse_key())
    assert decode_base64(VECTOR["payload"], "payload") == BODY
    assert key.verifies(signature, pae(TYPE, BODY))
    assert not key.verifies(signature, BODY)
    assert not key.verifies(raw, pae(TYPE, BODY))


def test_dsse_unsupported_types_are_rejected() -> None:
    with pytest.raises(RefusedError) as caught:
        Envelope.parse(json.dumps(VECTOR).encode())
    assert caught.value.code == "attest.unknown-payload-type"


def test_dsse_signing_with_the_vectors_key() -> None:
    private = ec.EllipticCurvePrivateNumbers(D, dsse_key().public_numbers()).private_key()
    signer = KeySigner.of(private)
    envelope = sign_payload(BODY, signer.sign)
    assert verify_envelope(Envelope.parse(envelope.format()), [PublicKey.of(dsse_key())]).payload == BODY


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_dsse_verifiers_must_accept_either_base64(encode: Any) -> None:
    signer = KeySigner.make()
    payload = b'{"x":"\xc3\xbf\xc3\xbe?>~"}'
    envelope = sign_payload(payload, signer.sign)
    value = envelope.to_json()
    value["payload"] = encode(payload).decode()
    value["signatures"][0]["sig"] = encode(envelope.signatures[0].sig).decode()
    assert verify_envelope(Envelope.from_json(value), [signer.public_key]).payload == payload


def test_dsse_thresholds_are_over_unique_keys() -> None:
    """protocol.md, Multi-signature Verification: the accepted public keys are a set."""
    one, two = KeySigner.make(), KeySigner.make()
    message = pae("application/vnd.in-toto+json", b"{}")
    first = sign_payload(b"{}", one.sign)
    again = Envelope(b"{}", (*first.signatures, *sign_payload(b"{}", one.sign).signatures))
    with pytest.raises(RefusedError):
        verify_envelope(again, [one.public_key, two.public_key], 2)
    both = Envelope(b"{}", (*again.signatures, *sign_payload(b"{}", two.sign).signatures))
    assert verify_envelope(both, [one.public_key, two.public_key], 2).keys == {one.public_key, two.public_key}
    assert one.public_key.verifies(first.signatures[0].sig, message)


def read(value: Any) -> Any:
    return read_statement(VerifiedPayload(json.dumps(value).encode(), frozenset()))


# in-toto attestation, spec/predicates/test-result.md, Example (shortened lists)
EXAMPLE = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"digest": {"gitCommit": "d20ace7968ba43c0219f62d71334c1095bab1602"}}],
    "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
    "predicate": {
        "result": "PASSED",
        "configuration": [
            {
                "name": ".github/workflows/ci.yml",
                "downloadLocation": "https://github.com/in-toto/in-toto/blob/d20ace7968ba43c0219f62d71334c1095bab1602/.github/workflows/ci.yml",
                "digest": {"gitBlob": "ebe4add40f63c3c98bc9b32ff1e736f04120b023"},
            }
        ],
        "url": "https://github.com/in-toto/in-toto/actions/runs/4425592351",
        "passedTests": ["build (3.7, ubuntu-latest, py)"],
        "warnedTests": [],
        "failedTests": [],
    },
}


def test_in_toto_test_result_example() -> None:
    statement = read(EXAMPLE)
    assert statement.predicate_type == TEST_RESULT
    assert statement.value["result"] == "PASSED"
    assert stated_time(TEST_RESULT, statement.value) is None
    assert statement.subjects[0].digest is None


def test_in_toto_predicate_unset_is_the_same_as_empty() -> None:
    """statement.md: `predicate` is optional, unset is treated as set-but-empty."""
    digest = Digest.of(b"x")
    value = {**EXAMPLE, "subject": [{"digest": {"sha256": digest.hex}}]}
    del value["predicate"]
    assert read(value).value == read({**value, "predicate": {}}).value == {}


def test_in_toto_unknown_fields_are_ignored_and_digests_decide() -> None:
    """statement.md: subjects are matched purely by digest; parsing rules: unrecognised fields are ignored."""
    digest = Digest.of(b"x")
    subject = {"name": "_", "uri": "https://example.com/x", "digest": {"sha512": "00", "sha256": digest.hex}}
    statement = read({**EXAMPLE, "subject": [subject], "more": {"a": 1}})
    assert statement.names(digest)
    assert not statement.names(Digest.of(b"y"))
