"""Private keys: made, read from PEM in its several forms, and used to sign.

Forms: PKCS#8 (RFC 5958), plain or encrypted; SEC 1; and cosign's own encrypted file.  A passphrase comes from a file or
a variable and is never asked for, so that a run without a terminal does what one with a terminal does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from imagebuild.attest.cosign_key import LABELS, decrypt_cosign_key
from imagebuild.attest.public_key import ALGORITHMS, ECDSA_P256, ED25519, PEM_LIMIT, PublicKey, algorithm_of
from imagebuild.content.files import io_faults
from imagebuild.errors import InputError
from imagebuild.host.environment import variable

PASSPHRASE_VARIABLES = ("IMAGEBUILD_PASSPHRASE", "COSIGN_PASSWORD")
"""Read in this order."""

Passphrase = Callable[[], bytes]
"""Gives the passphrase when it is needed; raises InputError `attest.no-passphrase` where there is none."""


class Signer(Protocol):
    """Whatever can sign: a key in memory, or one that never leaves its keeper."""

    @property
    def public_key(self) -> PublicKey: ...

    def sign(self, message: bytes) -> bytes:
        """ECDSA: DER over the SHA-256 of `message`; Ed25519: the 64 bytes of RFC 8032."""
        ...


def passphrase_from(file: Path | None, variables: Callable[[str], str | None] = variable) -> Passphrase:
    """The first line of `file`, else the variables of PASSPHRASE_VARIABLES."""

    def give() -> bytes:
        if file is not None:
            if not file.exists():
                raise InputError("attest.no-passphrase", f"there is no passphrase file {file}")
            with io_faults(file, "reading the passphrase file"):
                first = file.read_bytes()[: PEM_LIMIT + 1].split(b"\n", 1)[0].rstrip(b"\r")
            if first:
                return first
            raise InputError("attest.no-passphrase", f"the first line of {file} is empty")
        for name in PASSPHRASE_VARIABLES:
            found = variables(name)
            if found is not None:
                return found.encode("utf-8")
        raise InputError(
            "attest.no-passphrase",
            "there is no passphrase for the private key",
            hint="--passphrase-file FILE, or the variable " + " or ".join(PASSPHRASE_VARIABLES),
        )

    return give


@dataclass(frozen=True, slots=True)
class KeySigner:
    """A private key in memory (one of cryptography's)."""

    public_key: PublicKey
    _key: Any = field(repr=False)

    @classmethod
    def of(cls, key: Any, what: str = "the key") -> KeySigner:
        algorithm_of(key, what)
        return cls(PublicKey.of(key.public_key(), what), key)

    @classmethod
    def make(cls, algorithm: str = ECDSA_P256) -> KeySigner:
        """A new key."""
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519

        if algorithm not in ALGORITHMS:
            raise ValueError(f"no key is made for {algorithm!r}")
        if algorithm == ED25519:
            return cls.of(ed25519.Ed25519PrivateKey.generate())
        return cls.of(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def parse(cls, pem: bytes, passphrase: Passphrase, what: str = "the key") -> KeySigner:
        """Reads any of the forms.  `passphrase` is asked only where the key is encrypted.

        Raises InputError `attest.bad-key`, `attest.unsupported-key`, `attest.no-passphrase`,
        `attest.wrong-passphrase`; UnavailableError `attest.missing-extra` for cosign's form without PyNaCl.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_der_private_key, load_pem_private_key

        if len(pem) > PEM_LIMIT:
            raise InputError("attest.bad-key", f"{what} is too large for a key", expected=f"at most {PEM_LIMIT} bytes")
        try:
            if any(label in pem for label in LABELS):
                return cls.of(load_der_private_key(_opened(pem, passphrase, what), None), what)
            encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in pem or b"Proc-Type: 4,ENCRYPTED" in pem
            if not encrypted:
                return cls.of(load_pem_private_key(pem, None), what)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InputError(
                "attest.bad-key",
                f"{what} is no private key that can be read",
                expected="PKCS#8 or SEC 1 in PEM, or cosign's encrypted key file",
            ) from error
        secret = passphrase()
        try:
            return cls.of(load_pem_private_key(pem, secret), what)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InputError("attest.wrong-passphrase", f"{what} does not open with this passphrase") from error

    def sign(self, message: bytes) -> bytes:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        if self.public_key.algorithm == ED25519:
            return bytes(self._key.sign(message))
        return bytes(self._key.sign(message, ec.ECDSA(hashes.SHA256())))

    def pem(self, passphrase: bytes | None) -> bytes:
        """PKCS#8 in PEM, encrypted (PBES2 with scrypt or PBKDF2, AES-256) unless `passphrase` is None."""
        from cryptography.hazmat.primitives.serialization import (
            BestAvailableEncryption,
            Encoding,
            KeySerializationEncryption,
            NoEncryption,
            PrivateFormat,
        )

        how: KeySerializationEncryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
        return bytes(self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))


def _opened(pem: bytes, passphrase: Passphrase, what: str) -> bytes:
    """PKCS#8 out of cosign's file.  Where cosign is given no passphrase, it encrypts with an empty one."""
    try:
        secret = passphrase()
    except InputError as absent:
        if absent.code != "attest.no-passphrase":
            raise
        try:
            return decrypt_cosign_key(pem, b"", what)
        except InputError as wrong:
            raise absent if wrong.code == "attest.wrong-passphrase" else wrong from wrong
    return decrypt_cosign_key(pem, secret, what)


def store_key_pair(signer: KeySigner, prefix: Path, passphrase: bytes | None) -> tuple[Path, Path]:
    """Writes PREFIX.key (mode 0600) and PREFIX.pub; their paths.

    Neither is ever written over, also where another process makes it at the same moment.  Raises InputError
    `attest.key-exists`.
    """
    private, public = (prefix.with_name(prefix.name + suffix) for suffix in (".key", ".pub"))
    for path in (private, public):
        if os.path.lexists(path):
            raise _exists(path)
    with io_faults(private, "making the folder of"):
        private.parent.mkdir(parents=True, exist_ok=True)
    _create(private, signer.pem(passphrase), 0o600)
    try:
        _create(public, signer.public_key.pem, 0o644)
    except BaseException:
        private.unlink(missing_ok=True)
        raise
    return private, public


def _exists(path: Path) -> InputError:
    return InputError(
        "attest.key-exists",
        f"{path} exists; a key is never written over",
        hint="choose another name, or move the old pair away",
    )


def _create(path: Path, data: bytes, mode: int) -> None:
    with io_faults(path, "writing"):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        except FileExistsError as error:
            raise _exists(path) from error
        try:
            with os.fdopen(handle, "wb") as stream:
                os.fchmod(stream.fileno(), mode)
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
