"""Sigstore bundles, version 0.3, over a DSSE envelope and a public key (sigstore_bundle.proto)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imagebuild.attest.dsse import Envelope, parse_object
from imagebuild.errors import RefusedError
from imagebuild.oci.json_text import dump

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_CERTIFIED = ("certificate", "x509CertificateChain")


def _bad(what: str, why: str, found: str | None = None, expected: str | None = None) -> RefusedError:
    return RefusedError("attest.bad-bundle", f"{what}: {why}", expected=expected, found=found)


@dataclass(frozen=True, slots=True)
class Bundle:
    """An envelope with the hint of the key that signed it; nothing of it is verified.

    Bundles over a bare digest (`messageSignature`) are not read: they record a digest that their signature need not be
    over.  Entries of transparency logs and timestamps are left alone, since no trust root is there to check them with.
    """

    envelope: Envelope
    hint: str

    @classmethod
    def parse(cls, raw: bytes, what: str = "the bundle") -> Bundle:
        """Raises RefusedError `attest.bad-bundle`, `attest.no-trust-root`, `attest.bad-envelope`,
        `attest.unknown-payload-type`."""
        value = parse_object(raw, what)
        if value.get("mediaType") != BUNDLE_TYPE:
            raise _bad(what, "another media type", str(value.get("mediaType")), BUNDLE_TYPE)
        material = value.get("verificationMaterial")
        if not isinstance(material, dict):
            raise _bad(what, "verificationMaterial is missing")
        if any(material.get(name) is not None for name in _CERTIFIED):
            raise RefusedError(
                "attest.no-trust-root",
                f"{what} is signed under a certificate, and there is no trust root to judge it by",
                expected="verificationMaterial.publicKey",
                found="a certificate",
                hint="imagebuild verify --identity NAME --issuer URL, or have it signed with a key",
            )
        key = material.get("publicKey")
        if not isinstance(key, dict):
            raise _bad(what, "verificationMaterial names no public key")
        hint = key.get("hint")
        if hint is not None and not isinstance(hint, str):
            raise _bad(what, "the hint of the public key is not text")
        if value.get("messageSignature") is not None or value.get("dsseEnvelope") is None:
            raise _bad(what, "it holds no DSSE envelope, or something beside it", expected="dsseEnvelope alone")
        envelope = Envelope.from_json(value["dsseEnvelope"], what)
        if len(envelope.signatures) != 1:
            raise _bad(what, "a bundle's envelope has one signature", str(len(envelope.signatures)), "1")
        return cls(envelope, hint or "")

    def to_json(self) -> dict[str, Any]:
        return {
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {"publicKey": {"hint": self.hint}},
            "dsseEnvelope": self.envelope.to_json(),
        }

    def format(self) -> bytes:
        """Compact JSON text."""
        return dump(self.to_json())
