"""manifests/NAME/release.dsse.json: the signed release statement, verifiable with the public key alone (formats.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuild.attest.check import Check
from imagebuild.attest.dsse import ENVELOPE_LIMIT, Envelope, sign_payload, verify_envelope
from imagebuild.attest.keys import Signer
from imagebuild.attest.predicates.types import RELEASE
from imagebuild.attest.public_key import PublicKey
from imagebuild.attest.statement import Statement, read_statement
from imagebuild.attest.subjects import ImageSubject
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import ImagebuildError, RefusedError

FILE_NAME = "release.dsse.json"


@dataclass(frozen=True, slots=True)
class VerifiedRelease:
    """A release statement that `keys` signed."""

    statement: Statement
    keys: frozenset[PublicKey]


def read_release(raw: bytes, keys: Iterable[PublicKey], threshold: int = 1) -> VerifiedRelease:
    """The statement in a release file; nothing but the bytes and the keys is needed.

    Raises RefusedError `attest.bad-envelope`, `attest.unknown-payload-type`, `attest.bad-signature`,
    `attest.bad-statement` (also for a statement of another type).
    """
    verified = verify_envelope(Envelope.parse(raw, "the release"), keys, threshold)
    statement = read_statement(verified)
    if statement.predicate_type != RELEASE:
        raise RefusedError(
            "attest.bad-statement",
            "the file holds a signed statement of another type",
            expected=RELEASE,
            found=statement.predicate_type,
        )
    return VerifiedRelease(statement, verified.keys)


def load_release(path: Path, keys: Iterable[PublicKey], threshold: int = 1) -> VerifiedRelease:
    """Raises as `read_release`, and UnavailableError `content.io`."""
    with io_faults(path, "reading"), open(path, "rb") as stream:
        raw = stream.read(ENVELOPE_LIMIT + 1)
    return read_release(raw, keys, threshold)


def store_release(path: Path, statement: Statement, signer: Signer) -> bool:
    """Signs and writes the file; False where it holds the same statement of the same key already, and then it stays as
    it is, byte for byte."""
    if statement.predicate_type != RELEASE:
        raise ValueError("only a release goes into a release file")
    payload = statement.format()
    try:
        there = load_release(path, [signer.public_key])
        if there.statement.format() == payload:
            return False
    except ImagebuildError:
        pass
    atomic_write(path, sign_payload(payload, signer.sign).format() + b"\n")
    return True


def release_checks(release: VerifiedRelease, subjects: Sequence[ImageSubject]) -> list[Check]:
    """Whether the release names the image: its index and every platform's manifest."""
    named = ", ".join(f"{item.digest} ({item.name})" for item in release.statement.subjects)
    return [
        Check(
            "verify.release",
            release.statement.names(subject.digest),
            f"the release names the {subject.name} {subject.digest}",
            str(subject.digest),
            named,
        )
        for subject in subjects
    ]
