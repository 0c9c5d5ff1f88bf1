"""DSSE envelopes (Dead Simple Signing Envelope, protocol 1.0.2): signed bytes with the type of what they hold.

What is signed is the pre-authentication encoding of type and payload, both as bytes.  A payload is given out by
`verify_envelope` alone, as a `VerifiedPayload`; an `Envelope` is only a claim.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from imagebuild.attest.public_key import PublicKey
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.json_text import dump, parse

PAYLOAD_TYPE = "application/vnd.in-toto+json"
"""The only payload type that is read: an in-toto statement."""
ENVELOPE_LIMIT = 32 << 20
"""Bytes of an envelope's JSON text at most."""
SIGNATURES_LIMIT = 100


def _bad(what: str, why: str, found: str | None = None) -> RefusedError:
    return RefusedError("attest.bad-envelope", f"{what}: {why}", found=found)


def pae(payload_type: str, payload: bytes) -> bytes:
    """The pre-authentication encoding; lengths count bytes, of the type in UTF-8 too (DSSE protocol, PAE)."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def decode_base64(text: Any, what: str) -> bytes:
    """Base64 in the standard or the URL-safe alphabet (DSSE protocol: either is allowed), in its one canonical form.

    A mixture of alphabets, missing padding, spaces, other characters and stray bits in the last one are refused: each
    of them would let one signature be written in several ways.  Raises RefusedError `attest.bad-envelope`.
    """
    if not isinstance(text, str):
        raise _bad(what, "not base64 text")
    for alphabet in (b"+/", b"-_"):
        try:
            data = text.encode("ascii")
            found = base64.b64decode(data, altchars=alphabet, validate=True)
        except (ValueError, binascii.Error):
            continue
        if base64.b64encode(found, altchars=alphabet) == data:
            return found
    raise _bad(what, "not base64 in its canonical form", text[:60])


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature.  `keyid` is a hint of whoever wrote the envelope and decides nothing."""

    sig: bytes
    keyid: str = ""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"sig": base64.b64encode(self.sig).decode("ascii")}
        return {"keyid": self.keyid, **out} if self.keyid else out


@dataclass(frozen=True, slots=True)
class Envelope:
    """An envelope as read, nothing of it verified.  Raises RefusedError `attest.unknown-payload-type`."""

    payload: bytes = field(repr=False)
    signatures: tuple[Signature, ...]
    payload_type: str = PAYLOAD_TYPE

    def __post_init__(self) -> None:
        if self.payload_type != PAYLOAD_TYPE:
            raise RefusedError(
                "attest.unknown-payload-type",
                "an envelope holds something else than an in-toto statement",
                expected=PAYLOAD_TYPE,
                found=self.payload_type,
            )
        if not 1 <= len(self.signatures) <= SIGNATURES_LIMIT:
            raise _bad("an envelope", f"not between 1 and {SIGNATURES_LIMIT} signatures", str(len(self.signatures)))

    @classmethod
    def from_json(cls, value: Any, what: str = "the envelope") -> Envelope:
        """Reads the envelope's object.  Unknown keys are left alone, since nothing is taken from them (DSSE protocol,
        Data structure).  Raises RefusedError `attest.bad-envelope`, `attest.unknown-payload-type`."""
        if not isinstance(value, dict):
            raise _bad(what, "not an object")
        kind, listed = value.get("payloadType"), value.get("signatures")
        if not isinstance(kind, str):
            raise _bad(what, "payloadType is missing or not text")
        if not isinstance(listed, list) or len(listed) > SIGNATURES_LIMIT:
            raise _bad(what, "signatures is missing, not a list, or too long")
        signatures = []
        for number, item in enumerate(listed):
            if not isinstance(item, dict):
                raise _bad(what, f"signature {number} is not an object")
            keyid = item.get("keyid")
            if keyid is not None and not isinstance(keyid, str):
                raise _bad(what, f"the keyid of signature {number} is not text")
            signatures.append(Signature(decode_base64(item.get("sig"), f"{what}, signature {number}"), keyid or ""))
        return cls(decode_base64(value.get("payload"), f"{what}, payload"), tuple(signatures), kind)

    @classmethod
    def parse(cls, raw: bytes, what: str = "the envelope") -> Envelope:
        """Reads the JSON text.  Raises as `from_json`."""
        return cls.from_json(parse_object(raw, what), what)

    def to_json(self) -> dict[str, Any]:
        return {
            "payload": base64.b64encode(self.payload).decode("ascii"),
            "payloadType": self.payload_type,
            "signatures": [signature.to_json() for signature in self.signatures],
        }

    def format(self) -> bytes:
        """Compact JSON text."""
        return dump(self.to_json())


def parse_object(raw: bytes, what: str) -> dict[str, Any]:
    """A bounded JSON object; RefusedError `attest.bad-envelope` for anything else."""
    if len(raw) > ENVELOPE_LIMIT:
        raise _bad(what, f"more than {ENVELOPE_LIMIT} bytes", f"{len(raw)} bytes")
    try:
        value = parse(raw, what)
    except InputError as error:
        raise _bad(what, "not JSON that all readers read alike") from error
    if not isinstance(value, dict):
        raise _bad(what, "not an object")
    return value


@dataclass(frozen=True, slots=True)
class VerifiedPayload:
    """A payload that each of `keys` (distinct public keys) has signed."""

    payload: bytes = field(repr=False)
    keys: frozenset[PublicKey]


def sign_payload(payload: bytes, sign: Callable[[bytes], bytes]) -> Envelope:
    """The envelope over an in-toto statement with one signature; `sign` gets the encoded bytes."""
    return Envelope(payload, (Signature(sign(pae(PAYLOAD_TYPE, payload))),))


def verify_envelope(envelope: Envelope, keys: Iterable[PublicKey], threshold: int = 1) -> VerifiedPayload:
    """The payload, where at least `threshold` distinct public keys of `keys` signed it.

    Every signature is tried with every key and keyids are not looked at, so neither a wrong, missing or doubled keyid
    nor one key listed twice changes the count.  Raises RefusedError `attest.bad-signature`.
    """
    if threshold < 1:
        raise ValueError("a threshold is at least 1")
    distinct = frozenset(keys)
    message = pae(envelope.payload_type, envelope.payload)
    signed = frozenset(
        key for key in distinct if any(key.verifies(signature.sig, message) for signature in envelope.signatures)
    )
    if len(signed) < threshold:
        raise RefusedError(
            "attest.bad-signature",
            "no signature of the trusted keys fits what the envelope holds"
            if not signed
            else "too few of the trusted keys have signed",
            expected=f"{threshold} of: " + (", ".join(sorted(key.fingerprint for key in distinct)) or "no key"),
            found=", ".join(sorted(key.fingerprint for key in signed)) or "none",
        )
    return VerifiedPayload(envelope.payload, signed)
