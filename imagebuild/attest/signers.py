"""From the text after `--key` to what signs: a small table of schemes, which others may extend.

`PATH` and `file://PATH` name a file, `env://NAME` a variable that holds the PEM text.  Another package adds a scheme
(a KMS, PKCS#11) through the entry point group `imagebuild.signers`: the entry point's name is the scheme, its value a
function of the text after `://` and a Passphrase that gives a Signer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType

from imagebuild.attest.keys import KeySigner, Passphrase, Signer
from imagebuild.attest.public_key import PEM_LIMIT, PublicKey
from imagebuild.content.files import io_faults
from imagebuild.errors import InputError
from imagebuild.host.environment import variable

GROUP = "imagebuild.signers"
Opener = Callable[[str, Passphrase], Signer]


def read_key_file(path: Path) -> bytes:
    """The bytes of a key file, bounded.  Raises InputError `attest.no-key`."""
    with io_faults(path, "reading"):
        try:
            with open(path, "rb") as stream:
                return stream.read(PEM_LIMIT + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise InputError(
                "attest.no-key", f"there is no key file {path}", hint="imagebuild keygen makes one"
            ) from error


def _file(rest: str, passphrase: Passphrase) -> Signer:
    return KeySigner.parse(read_key_file(Path(rest)), passphrase, rest)


def _variable_text(name: str) -> bytes:
    found = variable(name)
    if found is None:
        raise InputError("attest.no-key", f"the variable {name} is not set", expected="a key in PEM")
    return found.encode("utf-8")


def _environment(rest: str, passphrase: Passphrase) -> Signer:
    return KeySigner.parse(_variable_text(rest), passphrase, f"the variable {rest}")


SCHEMES: Mapping[str, Opener] = MappingProxyType({"file": _file, "env": _environment})


def open_signer(text: str, passphrase: Passphrase, schemes: Mapping[str, Opener] = SCHEMES) -> Signer:
    """What signs for `--key TEXT`.  Raises InputError `attest.unknown-scheme`, and what the scheme raises."""
    scheme, joint, rest = text.partition("://")
    if not joint:
        return schemes["file"](text, passphrase)
    if scheme in schemes:
        return schemes[scheme](rest, passphrase)
    for point in entry_points(group=GROUP, name=scheme):
        opener: Opener = point.load()
        return opener(rest, passphrase)
    known = sorted({*schemes, *(point.name for point in entry_points(group=GROUP))})
    raise InputError(
        "attest.unknown-scheme",
        f"no signer is known for {scheme}://",
        expected=", ".join(f"{name}://" for name in known) + " or a path",
        found=text[:100],
    )


def open_public_key(text: str) -> PublicKey:
    """The public key for `--key TEXT` of a verification: a file, `file://PATH` or `env://NAME`."""
    scheme, joint, rest = text.partition("://")
    if not joint or scheme == "file":
        path = rest if joint else text
        return PublicKey.parse(read_key_file(Path(path)), path)
    if scheme == "env":
        return PublicKey.parse(_variable_text(rest), f"the variable {rest}")
    raise InputError(
        "attest.unknown-scheme", f"no public key can be read from {scheme}://", expected="a path, file:// or env://"
    )
