"""Make a pair of keys for signing.  Nothing is ever written over.

The private key (mode 0600) is encrypted with the passphrase of --passphrase-file, IMAGEBUILD_PASSPHRASE or
COSIGN_PASSWORD; a plain one is made with --unencrypted alone.  cosign reads the public key as it is, and the private one
after `cosign import-key-pair`.

Examples:
  imagebuild keygen release --passphrase-file secret.txt     makes release.key and release.pub
  imagebuild keygen test --type ed25519 --unencrypted
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session

TYPES = ("ecdsa-p256", "ed25519")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="imagebuild", help="NAME.key and NAME.pub (default: imagebuild)")
    parser.add_argument("--type", choices=TYPES, default=TYPES[0], help="kind of key (default: ecdsa-p256)")
    parser.add_argument("--passphrase-file", metavar="FILE", help="its first line encrypts the private key")
    parser.add_argument("--unencrypted", action="store_true", help="leave the private key plain")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.attest.keys import KeySigner, passphrase_from, store_key_pair

    file = None if arguments.passphrase_file is None else Path(arguments.passphrase_file)
    passphrase = None if arguments.unencrypted else passphrase_from(file)()
    signer = KeySigner.make(arguments.type)
    private, public = store_key_pair(signer, Path(arguments.name), passphrase)
    document = {
        "kind": "keys",
        "schemaVersion": 1,
        "private": str(private),
        "public": str(public),
        "type": signer.public_key.algorithm,
        "encrypted": passphrase is not None,
        "fingerprint": signer.public_key.fingerprint,
    }
    session.output.answer(document, f"{private}\n{public}")
    return 0
