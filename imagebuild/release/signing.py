"""Bare statements of checks, signed where they were made, so that another machine can import them."""

from __future__ import annotations

from pathlib import Path

from imagebuild.attest.attaching import SignedStatement
from imagebuild.attest.dsse import Envelope, sign_payload
from imagebuild.attest.keys import Signer
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import ImagebuildError, InputError
from imagebuild.release.evidence import HERE, bare_evidence, read_evidence_file


def sign_evidence(folder: Path, signer: Signer) -> list[Path]:
    """Writes `NAME.dsse.json` beside each bare statement `NAME.json` below `folder`; the paths.  One that holds the same
    statement of the same key already stays as it is.

    Raises InputError `release.no-evidence`, RefusedError `attest.bad-statement`, and what the signer raises.
    """
    out = []
    with io_faults(folder, "reading"):
        paths = sorted(path for path in folder.rglob("*.json") if path.is_file())
    for path in paths:
        file = read_evidence_file(path)
        found = bare_evidence(file, HERE) if file is not None else None
        if found is None:
            continue
        target = path.with_name(path.stem + ".dsse.json")
        payload = found.statement.format()
        if not _says(target, payload, signer):
            atomic_write(target, sign_payload(payload, signer.sign).format() + b"\n")
        out.append(target)
    if not out:
        raise InputError(
            "release.no-evidence",
            f"{folder} holds no statement of a check",
            expected="statement.json as smoke and gsm8k leave it below build/",
        )
    return out


def _says(path: Path, payload: bytes, signer: Signer) -> bool:
    try:
        signed = SignedStatement.read(Envelope.parse(path.read_bytes(), str(path)), signer.public_key)
    except (OSError, ImagebuildError):
        return False
    return signed.envelope.payload == payload
