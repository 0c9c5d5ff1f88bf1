"""Public keys as values: ECDSA P-256 (with SHA-256) and Ed25519, the two that evidence is signed with."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

from imagebuild.errors import InputError

ECDSA_P256 = "ecdsa-p256"
ED25519 = "ed25519"
ALGORITHMS = (ECDSA_P256, ED25519)
PEM_LIMIT = 64 << 10
"""Bytes of a key file at most."""


def unsupported(what: str, found: str) -> InputError:
    return InputError(
        "attest.unsupported-key",
        f"{what} is of a kind that is not used here",
        expected="ECDSA on P-256, or Ed25519",
        found=found,
        hint="imagebuild keygen makes such a key",
    )


def algorithm_of(key: Any, what: str) -> str:
    """The algorithm of one of cryptography's keys.  Raises InputError `attest.unsupported-key`."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    if isinstance(key, ed25519.Ed25519PublicKey | ed25519.Ed25519PrivateKey):
        return ED25519
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        if isinstance(key.curve, ec.SECP256R1):
            return ECDSA_P256
        raise unsupported(what, f"ECDSA on {key.curve.name}")
    raise unsupported(what, type(key).__name__.lstrip("_"))


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key.  `spki` is its SubjectPublicKeyInfo in DER, written anew on reading, so that one key is one value
    however its file spells it."""

    algorithm: str
    spki: bytes

    @classmethod
    def of(cls, key: Any, what: str = "the key") -> PublicKey:
        """From one of cryptography's public keys."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        algorithm = algorithm_of(key, what)
        return cls(algorithm, key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))

    @classmethod
    def parse(cls, pem: bytes, what: str = "the key") -> PublicKey:
        """Reads PEM (RFC 7468, PUBLIC KEY).  Raises InputError `attest.bad-key`, `attest.unsupported-key`."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        if len(pem) > PEM_LIMIT or b"PRIVATE KEY-----" in pem or b"-----BEGIN CERTIFICATE" in pem:
            kind = "a private key" if b"PRIVATE KEY-----" in pem else "a certificate, or too large"
            raise InputError(
                "attest.bad-key", f"{what} is no public key", expected="-----BEGIN PUBLIC KEY-----", found=kind
            )
        try:
            loaded = load_pem_public_key(pem)
        except UnsupportedAlgorithm as error:
            raise unsupported(what, "an algorithm that cannot be read") from error
        except ValueError as error:
            raise InputError(
                "attest.bad-key", f"{what} is no public key in PEM", expected="-----BEGIN PUBLIC KEY-----"
            ) from error
        return cls.of(loaded, what)

    @property
    def pem(self) -> bytes:
        text = base64.b64encode(self.spki).decode("ascii")
        lines = [text[start : start + 64] for start in range(0, len(text), 64)]
        return "\n".join(["-----BEGIN PUBLIC KEY-----", *lines, "-----END PUBLIC KEY-----", ""]).encode("ascii")

    @property
    def fingerprint(self) -> str:
        """`sha256:HEX` over the DER, for people and messages."""
        return f"sha256:{hashlib.sha256(self.spki).hexdigest()}"

    @property
    def hint(self) -> str:
        """What bundles carry to tell which key is meant: base64 of the sha256 over the DER (as Sigstore's clients
        write it).  A hint only: no key is trusted or chosen by it."""
        return base64.b64encode(hashlib.sha256(self.spki).digest()).decode("ascii")

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` is this key's over `message`."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
        from cryptography.hazmat.primitives.serialization import load_der_public_key

        key = load_der_public_key(self.spki)
        try:
            if isinstance(key, ed25519.Ed25519PublicKey):
                key.verify(signature, message)
            elif isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
            else:
                return False
        except InvalidSignature:
            return False
        return True
