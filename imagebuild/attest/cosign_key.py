"""cosign's encrypted key file: PKCS#8 in a NaCl secretbox whose key comes from scrypt, as JSON in PEM."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.oci.json_text import parse, plain

LABELS = (b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----", b"-----BEGIN ENCRYPTED COSIGN PRIVATE KEY-----")
"""How such a file begins: today's word and the older one."""
MEMORY_LIMIT = 256 << 20
"""Bytes that scrypt may use: cosign's own parameters need 64 MiB, and a file must not be able to ask for all."""


def decrypt_cosign_key(pem: bytes, passphrase: bytes, what: str) -> bytes:
    """The PKCS#8 DER inside.

    Raises InputError `attest.bad-key`, `attest.wrong-passphrase`; UnavailableError `attest.missing-extra`.
    """
    kdf, box = _parts(pem, what)
    try:
        from nacl.exceptions import CryptoError
        from nacl.secret import SecretBox
    except ImportError as error:
        raise UnavailableError(
            "attest.missing-extra",
            f"{what} is cosign's own key file, and PyNaCl, which opens it, is not installed",
            hint="pip install 'imagebuild[sign]'",
        ) from error
    n, r, p, salt = kdf
    key = hashlib.scrypt(passphrase, salt=salt, n=n, r=r, p=p, dklen=32, maxmem=MEMORY_LIMIT + (1 << 20))
    nonce, ciphertext = box
    try:
        return bytes(SecretBox(key).decrypt(ciphertext, nonce))
    except CryptoError as error:
        raise InputError("attest.wrong-passphrase", f"{what} does not open with this passphrase") from error


def _parts(pem: bytes, what: str) -> tuple[tuple[int, int, int, bytes], tuple[bytes, bytes]]:
    bad = InputError(
        "attest.bad-key", f"{what} is not a key file that cosign wrote", expected="scrypt and nacl/secretbox"
    )
    lines = [line.strip() for line in pem.strip().splitlines()]
    try:
        first = next(number for number, line in enumerate(lines) if line in LABELS)
        last = next(number for number, line in enumerate(lines) if line.startswith(b"-----END ENCRYPTED"))
        value = plain(parse(base64.b64decode(b"".join(lines[first + 1 : last]), validate=True), what))
        kdf, cipher = value["kdf"], value["cipher"]
        if kdf["name"] != "scrypt" or cipher["name"] != "nacl/secretbox":
            raise bad
        n, r, p = (_count(kdf["params"][name]) for name in ("N", "r", "p"))
        if n < 2 or n & (n - 1) or 128 * n * r > MEMORY_LIMIT or p > 16:
            raise bad
        salt, nonce, text = (
            base64.b64decode(item, validate=True) for item in (kdf["salt"], cipher["nonce"], value["ciphertext"])
        )
        if len(nonce) != 24:
            raise bad
    except (StopIteration, KeyError, TypeError, ValueError, binascii.Error, RefusedError, InputError) as error:
        raise bad from error
    return (n, r, p, salt), (nonce, text)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 24:
        raise ValueError("not a count")
    return value
