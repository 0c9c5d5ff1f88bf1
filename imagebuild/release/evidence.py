"""Evidence that may stand for a check of a release: whose word it is, which image it is of, what it says.

Three places are looked at.  `build/smoke/TARGET` and `build/gsm8k/TARGET` hold what checks on this machine left: bare
statements, which this release signs.  `manifests/TARGET/evidence` holds what is committed or was imported: envelopes and
bundles count where a key of the policy (or the release's own) signed them, and nothing else does, unless the policy allows
unsigned evidence.  Whatever counts names the digest of the very image; nothing is reused for another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from imagebuild.attest.bundle import BUNDLE_TYPE, Bundle
from imagebuild.attest.dsse import Envelope, VerifiedPayload, parse_object, verify_envelope
from imagebuild.attest.predicates.types import TEST_RESULT, at, stated_time, verdict_of
from imagebuild.attest.statement import STATEMENT_TYPE, Statement, read_statement
from imagebuild.attest.trust import TrustedKey, day_of
from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults, refuse_too_many
from imagebuild.errors import ImagebuildError, RefusedError

HERE = "here"
SIGNED = "signed"
UNSIGNED = "unsigned"
SIZE_LIMIT = 4 << 20
FILE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class CheckEvidence:
    """What one statement says of a check.  `file` names it for people, `digest` is that of its payload; `origin` is HERE
    (made on this machine, unsigned as yet), SIGNED (by `keys`, in `envelope`) or UNSIGNED; `finished` in seconds since 1970,
    the statement's word."""

    check: str
    verdict: str
    statement: Statement
    digest: Digest
    file: str
    origin: str
    finished: int
    envelope: Envelope | None = None
    keys: tuple[TrustedKey, ...] = ()

    @property
    def content_id(self) -> Digest | None:
        """The content id that the check names among what it was run with; None where it names none."""
        listed = self.statement.value.get("configuration")
        for item in listed if isinstance(listed, list) else ():
            if re.sub(r"[^a-z]", "", str(at(item, "name")).lower()) == "contentid":
                try:
                    return Digest.parse(f"sha256:{at(item, 'digest', 'sha256')}")
                except ImagebuildError:
                    return None
        return None

    @property
    def signers(self) -> str:
        return ", ".join(str(key) for key in self.keys) or "nobody"


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """A file that holds a statement: bare (`envelope` None) or in an envelope, nothing of it verified yet."""

    path: Path
    raw: bytes
    envelope: Envelope | None


def read_evidence_file(path: Path) -> EvidenceFile | None:
    """None for a file that holds no statement of a check; a damaged envelope is none either."""
    with io_faults(path, "reading"), path.open("rb") as stream:
        raw = stream.read(SIZE_LIMIT + 1)
    if len(raw) > SIZE_LIMIT:
        return None
    try:
        value = parse_object(raw, str(path))
        if value.get("mediaType") == BUNDLE_TYPE:
            return EvidenceFile(path, raw, Bundle.parse(raw, str(path)).envelope)
        if "payload" in value and "signatures" in value:
            return EvidenceFile(path, raw, Envelope.from_json(value, str(path)))
    except ImagebuildError:
        return None
    if value.get("_type") == STATEMENT_TYPE and value.get("predicateType") == TEST_RESULT:
        return EvidenceFile(path, raw, None)
    return None


def verify_evidence_file(file: EvidenceFile, keys: Sequence[TrustedKey]) -> CheckEvidence | None:
    """The signed statement, None where it is of no check.

    Raises RefusedError `attest.bad-signature`, `attest.bad-statement`; a bare file is refused with
    `release.unsigned-evidence`.
    """
    if file.envelope is None:
        raise RefusedError(
            "release.unsigned-evidence",
            f"{file.path} is a bare statement: whoever can write a file could have written it",
            expected="a DSSE envelope or a Sigstore bundle signed by a key of the policy",
            hint="on the machine that made it: imagebuild release sign-evidence DIR --key KEY",
        )
    verified = verify_envelope(file.envelope, [item.key for item in keys])
    statement = read_statement(verified)
    signers = []
    for item in keys:
        made = stated_time(statement.predicate_type, statement.value)
        if item.key in verified.keys and (made is None or item.counts_on(day_of(made))):
            signers.append(item)
    if not signers:
        raise RefusedError(
            "attest.bad-signature",
            f"{file.path} is signed by a key on a day on which it does not count",
            found=", ".join(str(item) for item in keys if item.key in verified.keys),
        )
    return _evidence(statement, verified.payload, str(file.path), SIGNED, file.envelope, tuple(signers))


def bare_evidence(file: EvidenceFile, origin: str) -> CheckEvidence | None:
    """What a bare statement says, as far as this machine's own (HERE) or an unsigned word (UNSIGNED) counts."""
    if file.envelope is not None:
        return None
    statement = read_statement(VerifiedPayload(file.raw, frozenset()))
    return _evidence(statement, statement.format(), str(file.path), origin, None, ())


def _evidence(
    statement: Statement,
    payload: bytes,
    name: str,
    origin: str,
    envelope: Envelope | None,
    keys: tuple[TrustedKey, ...],
) -> CheckEvidence | None:
    if statement.predicate_type != TEST_RESULT:
        return None
    value = statement.value
    check = value.get("check")
    verdict = verdict_of(str(check), value)
    if not isinstance(check, str) or verdict is None:
        return None
    finished = stated_time(TEST_RESULT, value) or 0
    return CheckEvidence(check, verdict, statement, Digest.of(payload), name, origin, finished, envelope, keys)


@dataclass(frozen=True, slots=True)
class FoundEvidence:
    """All evidence of a target's checks that could be read; `ignored` says, a line each, why other files do not count."""

    items: tuple[CheckEvidence, ...] = ()
    ignored: tuple[str, ...] = ()

    def latest(self, check: str, image: Digest, content_id: Digest) -> CheckEvidence | None:
        """What counts for one image: the result that was finished last; of equal times the worse one.  An unsigned one
        counts only where there is no other, and one that names another content id beside the image's digest never."""
        fitting = [
            item
            for item in self.items
            if item.check == check and item.statement.names(image) and item.content_id in (None, content_id)
        ]
        good = ("passed", "non-inferior")
        return max(
            fitting,
            key=lambda item: (
                item.origin != UNSIGNED,
                item.finished,
                item.verdict not in good,
                item.origin == SIGNED,
                str(item.digest),
            ),
            default=None,
        )


def find_evidence(
    made_here: Sequence[Path], committed: Path, keys: Sequence[TrustedKey], *, unsigned_allowed: bool
) -> FoundEvidence:
    """The evidence in folders of this machine's checks and in the committed folder.  Raises UnavailableError `content.io`,
    InputError `content.too-many-files`."""
    items: list[CheckEvidence] = []
    ignored: list[str] = []

    def add(file: EvidenceFile, read: Callable[[], CheckEvidence | None]) -> None:
        try:
            found = read()
        except RefusedError as error:
            ignored.append(f"{file.path}: {error.message} [{error.code}]")
        else:
            items.extend([found] if found is not None else [])

    for folder in made_here:
        for file in _files(folder):
            add(file, partial(bare_evidence, file, HERE))
    for file in _files(committed):
        if file.envelope is None and unsigned_allowed:
            add(file, partial(bare_evidence, file, UNSIGNED))
        else:
            add(file, partial(verify_evidence_file, file, keys))
    return FoundEvidence(tuple(items), tuple(ignored))


def _files(folder: Path) -> Iterator[EvidenceFile]:
    if not folder.is_dir():
        return
    with io_faults(folder, "reading"):
        paths = sorted(path for path in folder.rglob("*.json") if path.is_file())
    refuse_too_many(folder, len(paths), FILE_LIMIT)
    for path in paths:
        file = read_evidence_file(path)
        if file is not None:
            yield file
