"""What `sign` and `attest` answer: the pinned reference, and what was attached to what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.attest.storage import Attached
    from imagebuild.cli.statement_signing import Signatory
    from imagebuild.content.digest import Digest
    from imagebuild.oci.reference import Reference


def pinned_text(reference: Reference, digest: Digest) -> str:
    """The reference with the digest that was signed, without a tag, which may move."""
    from imagebuild.oci.reference import DigestReference, PathReference, TagReference

    if isinstance(reference, TagReference | DigestReference):
        return f"{reference.repository}@{digest}"
    if isinstance(reference, PathReference):
        return str(PathReference(reference.transport, reference.path, None, digest))
    return str(reference)


def answer_signed(
    session: Session,
    reference: Reference,
    digest: Digest,
    place: str,
    signatory: Signatory,
    attached: Sequence[Attached],
    legacy: Sequence[str] = (),
) -> None:
    text = pinned_text(reference, digest)
    document = {
        "kind": "signatures",
        "schemaVersion": 1,
        "reference": text,
        "digest": str(digest),
        "key": None if signatory.key is None else signatory.key.public_key.fingerprint,
        "identity": None
        if signatory.keyless is None
        else {"name": signatory.keyless.identity.name, "issuer": signatory.keyless.identity.issuer},
        "repository": place,
        "attached": [
            {
                "subject": str(item.subject),
                "referrer": str(item.referrer),
                "predicateType": item.predicate_type,
                "added": item.added,
            }
            for item in attached
        ],
        "legacy": list(legacy),
    }
    added = sum(item.added for item in attached)
    session.output.note(f"{added} added, {len(attached) - added} there already, in {place}")
    session.output.answer(document, text)
