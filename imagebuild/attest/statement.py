"""in-toto statements, version 1 (in-toto attestation framework, Statement layer): what is said of which digests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuild.attest.dsse import VerifiedPayload
from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.json_text import dump, parse, plain

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
STATEMENT_V0_1 = "https://in-toto.io/Statement/v0.1"
"""What older signers write; it is read alike, and never written."""
SUBJECTS_LIMIT = 1000


def _bad(why: str, found: str | None = None, expected: str | None = None) -> RefusedError:
    return RefusedError(
        "attest.bad-statement", f"a signed payload is no in-toto statement: {why}", expected=expected, found=found
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """One artifact that a statement is about.  `digest` is its sha256, None where the statement names other algorithms
    only: such a subject matches nothing here."""

    digest: Digest | None
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        named = {"name": self.name} if self.name else {}
        return {**named, "digest": {} if self.digest is None else {"sha256": self.digest.hex}}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, as made or as found inside a verified payload.  `predicate` keeps its numbers' spelling; `value`
    gives it with ordinary ones."""

    subjects: tuple[Subject, ...]
    predicate_type: str
    predicate: Mapping[str, Any] = field(hash=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.subjects) <= SUBJECTS_LIMIT:
            raise _bad(f"not between 1 and {SUBJECTS_LIMIT} subjects", str(len(self.subjects)))
        if not self.predicate_type:
            raise _bad("predicateType is empty")

    @classmethod
    def about(cls, digest: Digest, predicate_type: str, predicate: Mapping[str, Any], name: str = "") -> Statement:
        """About one manifest or index."""
        return cls((Subject(digest, name),), predicate_type, predicate)

    @property
    def value(self) -> dict[str, Any]:
        return {key: plain(item) for key, item in self.predicate.items()}

    def names(self, digest: Digest) -> bool:
        """Whether the statement speaks about that digest.

        Any of several subjects may be the one (in-toto: the predicate holds of each); what else is listed, and names of
        subjects, decide nothing.
        """
        return any(subject.digest == digest for subject in self.subjects)

    def format(self) -> bytes:
        """The payload: compact JSON, keys in the order of the specification, the predicate's own order kept."""
        return dump(
            {
                "_type": STATEMENT_TYPE,
                "subject": [subject.to_json() for subject in self.subjects],
                "predicateType": self.predicate_type,
                "predicate": dict(self.predicate),
            }
        )


def read_statement(verified: VerifiedPayload) -> Statement:
    """The statement inside a payload whose signature was verified: nothing unverified is ever parsed.

    Raises RefusedError `attest.bad-statement`.
    """
    try:
        value = parse(verified.payload, "the statement")
    except InputError as error:
        raise _bad("not JSON that all readers read alike") from error
    if not isinstance(value, dict):
        raise _bad("not an object")
    if value.get("_type") not in (STATEMENT_TYPE, STATEMENT_V0_1):
        raise _bad("another _type", str(value.get("_type")), STATEMENT_TYPE)
    kind, predicate, listed = value.get("predicateType"), value.get("predicate"), value.get("subject")
    if not isinstance(kind, str):
        raise _bad("predicateType is missing or not text")
    if predicate is None:
        predicate = {}
    if not isinstance(predicate, dict):
        raise _bad("predicate is not an object")
    if not isinstance(listed, list):
        raise _bad("subject is missing or not a list")
    return Statement(tuple(_subject(item) for item in listed), kind, predicate)


def _subject(item: Any) -> Subject:
    digests = item.get("digest") if isinstance(item, dict) else None
    if not isinstance(digests, dict) or not digests:
        raise _bad("a subject without digest")
    name = item.get("name")
    text = digests.get("sha256")
    if text is None:
        return Subject(None, name if isinstance(name, str) else "")
    try:
        return Subject(Digest(text), name if isinstance(name, str) else "")
    except (InputError, TypeError) as error:
        raise _bad("the sha256 of a subject is none", str(text)[:80]) from error
