"""What trusted keys say of an image: bundles fetched, signatures verified, and only then read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from imagebuild.attest.check import Check
from imagebuild.attest.dsse import VerifiedPayload, verify_envelope
from imagebuild.attest.predicates import image_signature
from imagebuild.attest.simple_signature import FoundSignature, fetch_signatures, signature_tag, verify_signature
from imagebuild.attest.statement import Statement, read_statement
from imagebuild.attest.storage import FoundBundle, fetch_bundles
from imagebuild.attest.subjects import ImageSubject, describe
from imagebuild.attest.trust import Identity, TrustedKey, count_signers
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.oci.source import ImageSource

SHOWN = 10
"""Reasons that one check lists."""


@dataclass(frozen=True, slots=True)
class VerifiedStatement:
    """A statement about one digest that trusted keys signed (under each name that a key is trusted by); `referrer` is
    the digest of the manifest that it came in.  A signature of the older form (`older`) is the statement of an image
    signature, and `referrer` the digest of its payload.  One under a certificate has an `identity`, and no keys."""

    subject: Digest
    referrer: Digest
    statement: Statement
    keys: tuple[TrustedKey, ...]
    older: bool = False
    identity: Identity | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found about one manifest or index.  `ignored` says, a line each, why other bundles do not count;
    `unavailable` why it could not be found out what else is attached: what was found counts all the same.  `elsewhere` are
    statements that trusted keys signed about other digests, though they are attached here."""

    subject: ImageSubject
    verified: tuple[VerifiedStatement, ...]
    ignored: tuple[str, ...] = ()
    unavailable: UnavailableError | None = None
    elsewhere: tuple[VerifiedStatement, ...] = ()

    def of_type(self, predicate_type: str) -> list[VerifiedStatement]:
        return [item for item in self.verified if item.statement.predicate_type == predicate_type]

    def limited_to(self, keys: Collection[TrustedKey]) -> Evidence:
        """The same as if these keys alone were trusted, and no identity."""
        kept = [replace(item, keys=tuple(k for k in item.keys if k in keys)) for item in self.verified]
        left = [
            f"{item.referrer.short(12)}: signed by {', '.join(map(str, item.keys)) or item.identity}, which does not count here"
            for item, limited in zip(self.verified, kept, strict=True)
            if not limited.keys
        ]
        elsewhere = [replace(item, keys=tuple(k for k in item.keys if k in keys)) for item in self.elsewhere]
        return replace(
            self,
            verified=tuple(k for k in kept if k.keys),
            ignored=(*left, *self.ignored),
            elsewhere=tuple(k for k in elsewhere if k.keys),
        )


class CertificateJudge(Protocol):
    """What can verify bundles under a certificate of one identity (attest.keyless)."""

    identity: Identity

    def verify(self, raw: bytes) -> VerifiedPayload: ...


def verify_bundle(
    found: FoundBundle, subject: Digest, keys: Sequence[TrustedKey], certificates: CertificateJudge | None = None
) -> VerifiedStatement:
    """The statement in a bundle, which must be signed by one of `keys`, or under a certificate that `certificates` accepts,
    attached to `subject`; whether it speaks of it is for whoever asks.

    Raises RefusedError `attest.bad-signature`, `attest.bad-statement`, the bundle's fault, and what `certificates` raises.
    """
    if found.certified is not None and certificates is not None:
        verified, identity = certificates.verify(found.certified), certificates.identity
    elif found.bundle is None:
        assert found.fault is not None
        raise found.fault
    else:
        verified, identity = verify_envelope(found.bundle.envelope, [item.key for item in keys]), None
    signers = tuple(item for item in keys if item.key in verified.keys)
    return VerifiedStatement(subject, found.digest, read_statement(verified), signers, identity=identity)


def _other_digest(found: VerifiedStatement) -> RefusedError:
    return RefusedError(
        "attest.other-digest",
        "a trusted key signed a statement about something else",
        expected=str(found.subject),
        found=", ".join(str(item.digest or item.name) for item in found.statement.subjects[:5]),
    )


def verify_older(found: FoundSignature, subject: Digest, keys: Sequence[TrustedKey]) -> VerifiedStatement:
    """A signature of the older form as what it says: the statement of an image signature.  Raises as verify_signature."""
    signed = verify_signature(found, subject, [item.key for item in keys])
    statement = image_signature.image_signature(subject)
    return VerifiedStatement(subject, found.digest, statement, tuple(k for k in keys if k.key in signed), older=True)


def gather(
    source: ImageSource,
    subjects: Sequence[ImageSubject],
    keys: Sequence[TrustedKey],
    certificates: CertificateJudge | None = None,
) -> list[Evidence]:
    """The evidence about each subject, read from `source`."""
    return [_gather(source, subject, keys, certificates) for subject in subjects]


def _gather(
    source: ImageSource, subject: ImageSubject, keys: Sequence[TrustedKey], certificates: CertificateJudge | None
) -> Evidence:
    verified: list[VerifiedStatement] = []
    elsewhere: list[VerifiedStatement] = []
    ignored: list[str] = []
    unavailable: UnavailableError | None = None

    def judge(digest: Digest, verify: Callable[[], VerifiedStatement]) -> None:
        try:
            found = verify()
            if not found.statement.names(subject.digest):
                elsewhere.append(found)
                raise _other_digest(found)
            verified.append(found)
        except ImagebuildError as error:
            nonlocal unavailable
            if error.code == "attest.trust-root-unavailable" and isinstance(error, UnavailableError):
                unavailable = unavailable or error
            ignored.append(f"{digest.short(12)}: {describe(error)} [{error.code}]")

    try:
        for item in fetch_bundles(source, subject.digest):
            judge(item.digest, partial(verify_bundle, item, subject.digest, keys, certificates))
    except UnavailableError as error:
        unavailable = unavailable or error
    try:
        for signature in fetch_signatures(source, subject.digest):
            judge(signature.digest, partial(verify_older, signature, subject.digest, keys))
    except UnavailableError as error:
        unavailable = unavailable or error
    return Evidence(subject, tuple(verified), tuple(ignored), unavailable, tuple(elsewhere))


def cannot_tell(code: str, evidence: Evidence, message: str) -> Check:
    """The check for evidence that could not be fetched."""
    assert evidence.unavailable is not None
    return Check(code, None, f"{message}: could not find out: {evidence.unavailable.message}")


def reasons(evidence: Evidence, otherwise: str) -> str:
    """Why what is attached does not count."""
    shown = list(evidence.ignored[:SHOWN])
    if len(evidence.ignored) > SHOWN:
        shown.append(f"and {len(evidence.ignored) - SHOWN} more")
    return "; ".join(shown) or otherwise


def signature_checks(
    evidence: Sequence[Evidence], keys: Sequence[TrustedKey], threshold: int = 1, identity: Identity | None = None
) -> list[Check]:
    """`verify.signature` for the index and every platform's manifest: each must itself be signed, by `threshold` of the keys and
    the identity.

    Only a statement of the signature's own type counts: a key that vouched for an SBOM has not signed the image.
    """
    out = []
    for every in evidence:
        item = every.limited_to(keys)
        message = f"the {item.subject.name} {item.subject.digest} is signed"
        found = item.of_type(image_signature.TYPE)
        signers = list({k.key: k for each in found for k in each.keys}.values())
        certified = [
            each for each in every.of_type(image_signature.TYPE) if identity is not None and each.identity == identity
        ]
        good = count_signers(signers) + bool(certified) >= threshold
        if item.unavailable is not None and not good:
            out.append(cannot_tell("verify.signature", item, message))
            continue
        there = ", ".join(map(str, [*signers, *([identity] if certified else [])]))
        if found and all(each.older for each in found) and not certified:
            there += f", in the older form ({signature_tag(item.subject.digest)})"
        kinds = sorted({said.statement.predicate_type for said in item.verified} - {image_signature.TYPE})
        otherwise = f"signed statements of other types only: {', '.join(kinds)}" if kinds else "nothing is attached"
        out.append(
            Check(
                "verify.signature",
                good,
                message,
                f"{threshold} of: "
                + (", ".join(map(str, [*keys, *([identity] if identity is not None else [])])) or "no key that counts"),
                there or reasons(item, otherwise),
            )
        )
    return out
