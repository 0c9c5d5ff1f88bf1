"""Keys: forms of files, passphrases, schemes, and that none is ever lost."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from imagebuild.attest.keys import KeySigner, passphrase_from, store_key_pair
from imagebuild.attest.public_key import ECDSA_P256, ED25519, PublicKey
from imagebuild.attest.signers import open_public_key, open_signer
from imagebuild.errors import ImagebuildError, InputError


def never() -> bytes:
    raise AssertionError("the passphrase was asked for")


def code(act: Any, *arguments: Any) -> str:
    with pytest.raises(ImagebuildError) as caught:
        act(*arguments)
    return caught.value.code


def cosign_file(signer: KeySigner, passphrase: bytes, label: str = "SIGSTORE", **changes: Any) -> bytes:
    """The file that `cosign generate-key-pair` writes, with cheaper parameters."""
    secret = pytest.importorskip("nacl.secret")
    der = signer._key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    salt, nonce = b"s" * 32, b"n" * 24
    box = secret.SecretBox(hashlib.scrypt(passphrase, salt=salt, n=1024, r=8, p=1, dklen=32))
    text = {
        "kdf": {"name": "scrypt", "params": {"N": 1024, "r": 8, "p": 1}, "salt": base64.b64encode(salt).decode()},
        "cipher": {"name": "nacl/secretbox", "nonce": base64.b64encode(nonce).decode()},
        "ciphertext": base64.b64encode(box.encrypt(der, nonce).ciphertext).decode(),
        **changes,
    }
    body = base64.encodebytes(json.dumps(text).encode()).decode()
    return (
        f"-----BEGIN ENCRYPTED {label} PRIVATE KEY-----\n{body}-----END ENCRYPTED {label} PRIVATE KEY-----\n".encode()
    )


@pytest.mark.parametrize("algorithm", [ECDSA_P256, ED25519])
@pytest.mark.parametrize("passphrase", [None, b"secret"])
def test_a_pair_is_stored_and_read_again(tmp_path: Path, algorithm: str, passphrase: bytes | None) -> None:
    made = KeySigner.make(algorithm)
    private, public = store_key_pair(made, tmp_path / "keys" / "release", passphrase)
    assert (private.name, public.name) == ("release.key", "release.pub")
    assert stat.S_IMODE(os.stat(private).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(public).st_mode) == 0o644
    assert (b"ENCRYPTED" in private.read_bytes()) == (passphrase is not None)
    read = open_signer(str(private), never if passphrase is None else lambda: passphrase)
    assert open_public_key(f"file://{public}") == made.public_key == read.public_key
    assert made.public_key.verifies(read.sign(b"m"), b"m")
    assert not made.public_key.verifies(read.sign(b"m"), b"n")


@pytest.mark.parametrize("there", ["k.key", "k.pub"])
@pytest.mark.parametrize("link", [False, True])
def test_keygen_never_overwrites(tmp_path: Path, there: str, link: bool) -> None:
    path = tmp_path / there
    if link:
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.write_text("precious")
    assert code(store_key_pair, KeySigner.make(), tmp_path / "k", None) == "attest.key-exists"
    assert sorted(os.listdir(tmp_path)) == [there]
    assert link or path.read_text() == "precious"


def test_cosign_files_of_both_words_open(signer: KeySigner) -> None:
    for label in ("SIGSTORE", "COSIGN"):
        read = KeySigner.parse(cosign_file(signer, b"secret", label), lambda: b"secret")
        assert read.public_key == signer.public_key


def test_wrong_passphrases(signer: KeySigner) -> None:
    assert code(KeySigner.parse, cosign_file(signer, b"secret"), lambda: b"x") == "attest.wrong-passphrase"
    assert code(KeySigner.parse, signer.pem(b"secret"), lambda: b"x") == "attest.wrong-passphrase"


def test_cosigns_empty_passphrase_need_not_be_given(signer: KeySigner) -> None:
    """An empty COSIGN_PASSWORD, with which many make their keys, cannot be told from none."""
    absent = passphrase_from(None, {}.get)
    assert KeySigner.parse(cosign_file(signer, b""), absent).public_key == signer.public_key
    assert code(KeySigner.parse, cosign_file(signer, b"secret"), absent) == "attest.no-passphrase"
    params = {"N": 1 << 30, "r": 8, "p": 1}
    changed = {"kdf": {"name": "scrypt", "params": params, "salt": "c2FsdA=="}}
    assert code(KeySigner.parse, cosign_file(signer, b"", **changed), absent) == "attest.bad-key"


@pytest.mark.parametrize(
    "params", [{"N": 1 << 24, "r": 8, "p": 1}, {"N": 1000, "r": 8, "p": 1}, {"N": 1024, "r": 8, "p": 99}, {"N": 2.5}]
)
def test_a_cosign_file_cannot_ask_for_all_memory(signer: KeySigner, params: dict[str, Any]) -> None:
    changed = {"kdf": {"name": "scrypt", "params": params, "salt": "AAAA"}}
    assert code(KeySigner.parse, cosign_file(signer, b"secret", **changed), lambda: b"secret") == "attest.bad-key"


def test_sec1_is_read() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    assert KeySigner.parse(pem, never).public_key.algorithm == ECDSA_P256


def test_one_key_is_one_value_however_it_is_spelt() -> None:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    point = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    header = bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200")
    compressed = base64.encodebytes(header + point)
    pem = b"-----BEGIN PUBLIC KEY-----\n" + compressed + b"-----END PUBLIC KEY-----\n"
    assert PublicKey.parse(pem) == PublicKey.of(key)


def test_other_kinds_of_keys_are_refused(signer: KeySigner) -> None:
    wide = ec.generate_private_key(ec.SECP384R1())
    strange = rsa.generate_private_key(65537, 1024)
    for key in (wide, strange):
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        assert code(KeySigner.parse, pem, never) == "attest.unsupported-key"
        assert code(PublicKey.parse, public) == "attest.unsupported-key"
    assert code(PublicKey.parse, signer.pem(None)) == "attest.bad-key"
    assert code(PublicKey.parse, b"-----BEGIN PUBLIC KEY-----\nQQ==\n-----END PUBLIC KEY-----\n") == "attest.bad-key"
    assert code(KeySigner.parse, signer.public_key.pem, never) == "attest.bad-key"


def test_passphrases_come_from_a_file_before_variables(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_bytes(b"from file\r\nsecond line\n")
    variables = {"COSIGN_PASSWORD": "cosign's", "IMAGEBUILD_PASSPHRASE": "ours"}
    assert passphrase_from(file, variables.get)() == b"from file"
    assert passphrase_from(None, variables.get)() == b"ours"
    assert passphrase_from(None, {"COSIGN_PASSWORD": "cosign's"}.get)() == b"cosign's"
    assert code(passphrase_from(None, {}.get)) == "attest.no-passphrase"
    file.write_bytes(b"\n")
    assert code(passphrase_from(file, variables.get)) == "attest.no-passphrase"


def test_schemes(signer: KeySigner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGNING_KEY", signer.pem(None).decode())
    monkeypatch.setenv("PUBLIC_KEY", signer.public_key.pem.decode())
    assert open_signer("env://SIGNING_KEY", never).public_key == signer.public_key
    assert open_public_key("env://PUBLIC_KEY") == signer.public_key
    assert open_signer("kms://x", never, {"kms": lambda rest, _: signer}) is signer
    for text, wanted in (
        ("env://UNSET_HERE", "attest.no-key"),
        (str(tmp_path / "missing"), "attest.no-key"),
        ("awskms://x", "attest.unknown-scheme"),
    ):
        with pytest.raises(InputError) as caught:
            open_signer(text, never)
        assert caught.value.code == wanted
        assert code(open_public_key, text) == wanted


def test_a_private_key_shows_nothing_of_itself(signer: KeySigner) -> None:
    assert "private" not in repr(signer).lower().replace("_key", "")
    assert len(repr(signer)) < 400
