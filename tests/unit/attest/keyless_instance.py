"""A Sigstore instance in memory: a certificate authority, a certificate log and a transparency log with keys of their own, whose
trust root the real library reads.  Nothing touches the network."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from imagebuild.attest.dsse import PAYLOAD_TYPE, pae

NAME, ISSUER = "builder@example.com", "https://accounts.example.com"
SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
ISSUER_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _octets(data: bytes) -> bytes:
    length = len(data)
    return b"\x04" + (bytes([length]) if length < 128 else bytes([0x81, length])) + data


@dataclass
class Instance:
    """The instance's keys; `logged` counts the entries of its log (each the only leaf of a tree of its own)."""

    root: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    logged: int = 0

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's authority")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self.authority = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.root.public_key())
            .serial_number(1)
            .not_valid_before(THEN - timedelta(days=3000))
            .not_valid_after(THEN + timedelta(days=9000))
            .add_extension(x509.BasicConstraints(True, 0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.root.public_key()), critical=False)
            .sign(self.root, hashes.SHA256())
        )

    def trusted_root(self, folder: Path) -> Path:
        def listed(key: ec.EllipticCurvePrivateKey, url: str) -> dict[str, Any]:
            public = {
                "rawBytes": b64(spki(key)),
                "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                "validFor": {"start": "2000-01-01T00:00:00Z"},
            }
            identity = {"keyId": b64(hashlib.sha256(spki(key)).digest())}
            return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": public, "logId": identity}

        value = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [listed(self.log, "https://log.example")],
            "ctlogs": [listed(self.certificate_log, "https://ctlog.example")],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "tests", "commonName": "a test's authority"},
                    "uri": "https://authority.example",
                    "certChain": {"certificates": [{"rawBytes": b64(self.authority.public_bytes(Encoding.DER))}]},
                    "validFor": {"start": "2000-01-01T00:00:00Z"},
                }
            ],
        }
        path = folder / "trusted_root.json"
        path.write_text(json.dumps(value))
        return path

    def certificate(
        self, key: ec.EllipticCurvePublicKey, when: datetime = THEN, name: str = NAME, issuer: str = ISSUER
    ) -> x509.Certificate:
        """Ten minutes around `when`, with a timestamp of the certificate log over all but that timestamp (RFC 6962, 3.2)."""
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.authority.subject)
            .public_key(key)
            .serial_number(7)
            .not_valid_before(when - timedelta(minutes=5))
            .not_valid_after(when + timedelta(minutes=5))
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(name)]), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.root.public_key()), critical=False)
            .add_extension(x509.UnrecognizedExtension(ISSUER_OID, issuer.encode()), critical=False)
        )
        moment = int(when.timestamp()) * 1000

        def with_timestamp(signature: bytes) -> x509.Certificate:
            identity = hashlib.sha256(spki(self.certificate_log)).digest()
            sct = b"\0" + identity + struct.pack("!QHBBH", moment, 0, 4, 3, len(signature)) + signature
            listed = struct.pack("!HH", len(sct) + 2, len(sct)) + sct
            stamped = builder.add_extension(x509.UnrecognizedExtension(SCT_LIST, _octets(listed)), critical=False)
            return stamped.sign(self.root, hashes.SHA256())

        bare = with_timestamp(b"none yet").tbs_precertificate_bytes
        issuer_hash = hashlib.sha256(spki(self.root)).digest()
        entry = issuer_hash + struct.pack("!I", len(bare))[1:] + bare
        signed = struct.pack("!BBQH", 0, 0, moment, 1) + entry + struct.pack("!H", 0)
        return with_timestamp(sign(self.certificate_log, signed))

    def log_entry(
        self, certificate: x509.Certificate, envelope: dict[str, Any], when: datetime = THEN
    ) -> dict[str, Any]:
        """The entry of an envelope as the log answers it, with proof and promise (Rekor 1, dsse 0.0.1)."""
        payload = base64.b64decode(envelope["payload"])
        verifier = b64(certificate.public_bytes(Encoding.PEM))
        body = json.dumps(
            {
                "apiVersion": "0.0.1",
                "kind": "dsse",
                "spec": {
                    "envelopeHash": {
                        "algorithm": "sha256",
                        "value": hashlib.sha256(json.dumps(envelope).encode()).hexdigest(),
                    },
                    "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
                    "signatures": [{"signature": s["sig"], "verifier": verifier} for s in envelope["signatures"]],
                },
            }
        ).encode()
        identity = hashlib.sha256(spki(self.log)).digest()
        index, self.logged = self.logged, self.logged + 1
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"log.example - 1\n1\n{b64(root)}\n"
        checkpoint = f"{note}\n\u2014 log.example {b64(identity[:4] + sign(self.log, note.encode()))}\n"
        promised = json.dumps(
            {
                "body": b64(body),
                "integratedTime": int(when.timestamp()),
                "logID": identity.hex(),
                "logIndex": index,
            },
            separators=(",", ":"),
        )
        return {
            "logIndex": str(index),
            "logId": {"keyId": b64(identity)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(int(when.timestamp())),
            "inclusionPromise": {"signedEntryTimestamp": b64(sign(self.log, promised.encode()))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": checkpoint},
            },
            "canonicalizedBody": b64(body),
        }

    def bundle(self, payload: bytes, payload_type: str = PAYLOAD_TYPE, **certificate: Any) -> dict[str, Any]:
        """A bundle as a keyless signer writes it."""
        key = new_key()
        made = self.certificate(key.public_key(), **certificate)
        envelope = {
            "payload": b64(payload),
            "payloadType": payload_type,
            "signatures": [{"sig": b64(sign(key, pae(payload_type, payload)))}],
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": b64(made.public_bytes(Encoding.DER))},
                "tlogEntries": [self.log_entry(made, envelope)],
            },
            "dsseEnvelope": envelope,
        }
