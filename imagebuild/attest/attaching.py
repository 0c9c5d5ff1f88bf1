"""Envelopes that are signed already, put where clients look for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from imagebuild.attest.bundle import Bundle
from imagebuild.attest.dsse import Envelope, pae, verify_envelope
from imagebuild.attest.public_key import PublicKey
from imagebuild.attest.statement import Statement, read_statement
from imagebuild.attest.storage import Attached, EvidencePlace, FoundBundle, bundle_artifact, fetch_bundles
from imagebuild.errors import RefusedError
from imagebuild.oci.descriptor import Descriptor


@dataclass(frozen=True, slots=True)
class SignedStatement:
    """A statement in an envelope with the one signature of `key`."""

    statement: Statement
    envelope: Envelope
    key: PublicKey

    @classmethod
    def read(cls, envelope: Envelope, key: PublicKey) -> SignedStatement:
        """What `key` signed, with its signature alone (a bundle holds one).

        Raises RefusedError `attest.bad-signature`, `attest.bad-statement`.
        """
        statement = read_statement(verify_envelope(envelope, [key]))
        message = pae(envelope.payload_type, envelope.payload)
        own = next(item for item in envelope.signatures if key.verifies(item.sig, message))
        return cls(statement, Envelope(envelope.payload, (own,)), key)


def find_signed(found: Iterable[FoundBundle], wanted: SignedStatement) -> FoundBundle | None:
    """A valid bundle of the same key over the same payload."""
    for item in found:
        if item.bundle is None or item.bundle.envelope.payload != wanted.envelope.payload:
            continue
        try:
            verify_envelope(item.bundle.envelope, [wanted.key])
        except RefusedError:
            continue
        return item
    return None


def attach_signed(
    place: EvidencePlace, subject: Descriptor, signed: Sequence[SignedStatement], created: int
) -> list[Attached]:
    """Stores each envelope as a referrer of `subject`, unless an equal one is there; what is there is read once.

    `created` (seconds since 1970) stands in the referrer's annotation.  Raises what reading referrers and pushing raise.
    """
    there = fetch_bundles(place.source, subject.digest)
    out = []
    for item in signed:
        if not item.statement.names(subject.digest):
            raise ValueError("a statement is attached to what it speaks about")
        kind = item.statement.predicate_type
        known = find_signed(there, item)
        if known is not None:
            out.append(Attached(subject.digest, known.digest, kind, False))
            continue
        bundle = Bundle(item.envelope, item.key.hint)
        document, blobs = bundle_artifact(bundle, subject, kind, created)
        place.attach(document, blobs)
        out.append(Attached(subject.digest, document.descriptor.digest, kind, True))
    return out
