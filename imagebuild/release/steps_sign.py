"""The steps that state and sign: SBOM and provenance from the lock, then every signature, put beside the image in its
layout, so that nothing is published before it is signed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from imagebuild import __version__
from imagebuild.attest.attaching import SignedStatement, attach_signed, find_signed
from imagebuild.attest.dsse import Envelope, sign_payload
from imagebuild.attest.predicates.image_signature import image_signature
from imagebuild.attest.predicates.types import RELEASE, TYPES, at
from imagebuild.attest.public_key import PublicKey
from imagebuild.attest.statement import Statement
from imagebuild.attest.storage import FoundBundle, fetch_bundles
from imagebuild.attest.subjects import ImageSubject
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_write
from imagebuild.errors import ImagebuildError
from imagebuild.release.evidence import HERE, SIZE_LIMIT, CheckEvidence
from imagebuild.release.state import Release
from imagebuild.release.step import Action, Decision, step_id

_WORDS = {uri: word for word, uri in TYPES.items() if word not in ("smoke", "gsm8k")}


class StatementsStep:
    """SBOM, provenance and VEX, one file each below build/release/TARGET/statements."""

    name = "sbom and provenance"

    def __init__(self, release: Release) -> None:
        self._release = release

    def _files(self) -> dict[Path, Statement]:
        release = self._release
        return {
            release.folder
            / "statements"
            / f"{release.platform_of(item).machine}-{_WORDS[item.predicate_type]}.json": item
            for item in release.statements()
        }

    def decide(self) -> Decision:
        files = self._files()
        id = step_id(
            self.name,
            {"tool": __version__, "payloads": {path.name: str(Digest.of(x.format())) for path, x in files.items()}},
        )
        known = self._release.journal.finished(self.name)
        if known is None:
            return Decision(Action.RUN, "never ran", id)
        if known.id != id:
            return Decision(Action.RUN, "lock, overlays, builder or version changed what they say", id)
        gone = [path.name for path, item in files.items() if not _holds(path, item.format())]
        if gone:
            return Decision(Action.RUN, f"gone or changed: {', '.join(gone)}", id)
        return Decision(Action.DONE, "made before", id)

    def run(self) -> Mapping[str, Any]:
        out = {}
        for path, statement in self._files().items():
            payload = statement.format()
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, payload)
            out[path.name] = str(Digest.of(payload))
        return out


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


class SignStep:
    """Signatures of the index and of every platform's manifest, and every statement, as referrers in the layout.

    Results of checks that ran here are signed with this release's key and committed under manifests/TARGET/evidence, so that
    another machine need not run them again; what others signed stays theirs.
    """

    name = "sign and attest"

    def __init__(self, release: Release) -> None:
        self._release = release

    def own(self) -> list[tuple[ImageSubject, Statement]]:
        """What this release's key signs: subject and statement."""
        request = self._release.request
        by_digest = {subject.digest: subject for subject in request.subjects}
        out = [(subject, image_signature(subject.digest)) for subject in request.subjects]
        out += [(by_digest[d], item) for item in self._release.statements() for d in by_digest if item.names(d)]
        return out

    def _others(self) -> list[tuple[ImageSubject, CheckEvidence]]:
        request = self._release.request
        good = self._release.good_evidence() or {}
        return [
            (subject, item)
            for items in good.values()
            for item in items
            for subject in request.subjects
            if subject.digest in request.images.values() and item.statement.names(subject.digest)
        ]

    def decide(self) -> Decision:
        release, request = self._release, self._release.request
        good = release.good_evidence()
        if good is None:
            return Decision(Action.WAITS, "signs the results of checks that have no good evidence yet")
        key = "none" if request.signer is None else request.signer.public_key.fingerprint
        id = step_id(
            self.name,
            {
                "key": key,
                "statements": [[str(s.digest), str(Digest.of(x.format()))] for s, x in self.own()],
                "evidence": [[str(s.digest), str(x.digest)] for s, x in self._others()],
            },
        )
        if request.signer is None:
            return Decision(Action.RUN, "no key was named, so what is signed already is not known", id)
        known = release.journal.finished(self.name)
        if known is None:
            return Decision(Action.RUN, "never ran", id)
        if known.id != id:
            return Decision(Action.RUN, "another image, key, statement or piece of evidence than the last time", id)
        if not release.built() or not self._all_there():
            return Decision(Action.RUN, "signatures are gone from the layout", id)
        return Decision(Action.DONE, f"signed before with {key}", id)

    def _all_there(self) -> bool:
        release = self._release
        try:
            attached = {
                subject.digest: fetch_bundles(release.place.source, subject.digest)
                for subject in release.request.subjects
            }
        except ImagebuildError:
            return False
        key = release.signer().public_key
        for subject, statement in self.own():
            if _envelope_in(attached[subject.digest], statement.format(), key) is None:
                return False
        return all(
            find_signed(attached[subject.digest], signed) is not None
            for subject, item in self._others()
            for signed in self._signed_by_others(item)
        ) and all(item.origin != HERE for _, item in self._others())

    def _signed_by_others(self, item: CheckEvidence) -> list[SignedStatement]:
        if item.envelope is None:
            return []
        return [SignedStatement.read(item.envelope, key.key) for key in {key.key: key for key in item.keys}.values()]

    def run(self) -> Mapping[str, Any]:
        release = self._release
        signer, created = release.signer(), release.request.now
        for item in {x.digest: x for _, x in self._others() if x.origin == HERE}.values():
            self._commit(item)
        if any(x.origin == HERE for _, x in self._others()):
            release.evidence(anew=True)
        attached = []
        for subject in release.request.subjects:
            there = fetch_bundles(release.place.source, subject.digest)
            signed = []
            for about, statement in self.own():
                if about.digest == subject.digest:
                    payload = statement.format()
                    envelope = _envelope_in(there, payload, signer.public_key) or sign_payload(payload, signer.sign)
                    signed.append(SignedStatement.read(envelope, signer.public_key))
            for about, item in self._others():
                if about.digest == subject.digest:
                    signed += self._signed_by_others(item)
            attached += attach_signed(release.place, subject.descriptor, signed, created)
        return {
            "key": signer.public_key.fingerprint,
            "attached": [[str(a.subject), str(a.referrer), a.predicate_type] for a in attached],
        }

    def _commit(self, item: CheckEvidence) -> None:
        """The statement of a check that ran here, signed and laid among the committed evidence."""
        release = self._release
        signer = release.signer()
        (platform,) = [p.platform for p in release.request.lock.result.platforms if item.statement.names(p.manifest)][
            :1
        ]
        path = release.evidence_folder / f"{item.check}-{platform.machine}.dsse.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = _raw_evidence(item)
        if raw is not None:
            atomic_write(path.with_name(f"{item.check}-{platform.machine}.evidence.json"), raw)
        atomic_write(path, sign_payload(item.statement.format(), signer.sign).format() + b"\n")


def _raw_evidence(item: CheckEvidence) -> bytes | None:
    """evidence.json beside a statement that was made here, where the statement names it by digest."""
    path = Path(item.file).with_name("evidence.json")
    if not path.is_file() or path.stat().st_size > SIZE_LIMIT:
        return None
    raw = path.read_bytes()
    listed = item.statement.value.get("evidence")
    named = [at(one, "digest", "sha256") for one in (listed if isinstance(listed, list) else ())]
    return raw if Digest.of(raw).hex in named else None


def _envelope_in(found: list[FoundBundle], payload: bytes, key: PublicKey) -> Envelope | None:
    """A valid envelope of the key over exactly this payload."""
    for item in found:
        signed = _signed_by(item, key)
        if signed is not None and signed.envelope.payload == payload:
            return signed.envelope
    return None


def said_now(release: Release) -> frozenset[bytes]:
    """The payloads that this release's key signs."""
    return frozenset(made.format() for _, made in SignStep(release).own())


def is_superseded(statement: Statement, now: Collection[bytes]) -> bool:
    """Whether something that this release's key said is not what it says `now`: another builder's provenance of the same
    image, the statement of an earlier release.  It is neither judged nor carried along."""
    kind = statement.predicate_type
    return kind == RELEASE or (kind in _WORDS and statement.format() not in now)


def signed_bundles(release: Release) -> dict[Digest, list[SignedStatement]]:
    """What a push carries along, by subject: everything in the layout that trusted keys say of the image and have not
    superseded.  The release statement follows by itself, last."""
    keys = {item.key for item in release.request.trusted}
    own = release.signer().public_key if release.request.signer is not None else None
    now = said_now(release)
    out: dict[Digest, list[SignedStatement]] = {}
    for subject in release.request.subjects:
        for found in fetch_bundles(release.place.source, subject.digest):
            for key in keys:
                signed = _signed_by(found, key)
                if signed is None or not signed.statement.names(subject.digest):
                    continue
                if key != own or not is_superseded(signed.statement, now):
                    out.setdefault(subject.digest, []).append(signed)
    return out


def _signed_by(found: FoundBundle, key: PublicKey) -> SignedStatement | None:
    if found.bundle is None:
        return None
    try:
        return SignedStatement.read(found.bundle.envelope, key)
    except ImagebuildError:
        return None
