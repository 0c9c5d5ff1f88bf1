"""An image in a layout, and the short ways to attach and to judge that the tests of evidence share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.attest.bundle import Bundle
from imagebuild.attest.check import Check
from imagebuild.attest.dsse import sign_payload
from imagebuild.attest.evidence import gather, signature_checks
from imagebuild.attest.keys import KeySigner, Signer
from imagebuild.attest.policy_checks import PolicyQuestion, policy_checks
from imagebuild.attest.predicates.image_signature import image_signature
from imagebuild.attest.statement import Statement
from imagebuild.attest.storage import Attached, EvidencePlace, attach_statement, bundle_artifact, layout_place
from imagebuild.attest.subjects import ImageSubject, image_subjects
from imagebuild.attest.trust import TrustedKey
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform
from imagebuild.oci.tree import read_image_tree
from imagebuild.target.policy import Policy, PolicyKey
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, make_index, write_layout

NOW = 1_790_000_000


@dataclass
class Stored:
    """An index of two platforms in a layout."""

    place: EvidencePlace
    subjects: tuple[ImageSubject, ...]

    def attach(self, subject: int, statement: Statement, signer: Signer) -> Attached:
        return attach_statement(self.place, self.subjects[subject].descriptor, statement, signer, NOW)

    def attach_raw(self, subject: int, statement: Statement, signer: Signer, **changes: Any) -> None:
        """Attaches what is not about the subject, or a bundle with changed parts, as an attacker would."""
        bundle = Bundle(sign_payload(statement.format(), signer.sign), signer.public_key.hint)
        document, blobs = bundle_artifact(
            bundle, self.subjects[subject].descriptor, changes.get("said", statement.predicate_type), NOW
        )
        self.place.attach(document, blobs)

    def sign_all(self, signer: Signer) -> None:
        for number, subject in enumerate(self.subjects):
            self.attach(number, image_signature(subject.digest), signer)

    def signatures(self, *signers: KeySigner, threshold: int = 1) -> list[Check]:
        keys = [TrustedKey(f"k{number}", signer.public_key) for number, signer in enumerate(signers)]
        return signature_checks(gather(self.place.source, self.subjects, keys), keys, threshold)

    def judge(
        self,
        keys: Mapping[str, tuple[KeySigner, str]],
        *,
        now: int = NOW,
        repository: str | None = "docker.io/me/engine",
        labels: Mapping[str, str] | None = None,
        days: Mapping[str, Mapping[str, Any]] | None = None,
        **policy: Any,
    ) -> list[Check]:
        listed = {
            name: PolicyKey(name, role, pem=signer.public_key.pem.decode(), **(days or {}).get(name, {}))
            for name, (signer, role) in keys.items()
        }
        trusted = tuple(
            TrustedKey(k.name, keys[k.name][0].public_key, k.role, k.valid_from, k.valid_until) for k in listed.values()
        )
        evidence = gather(self.place.source, self.subjects, trusted)
        worn = {subject.digest: labels or {} for subject in self.subjects}
        return policy_checks(PolicyQuestion(Policy(listed, **policy), trusted, evidence, repository, now, worn))


def stored(folder: Path) -> Stored:
    def spec(architecture: str) -> ImageSpec:
        return ImageSpec((LayerSpec((File("x", architecture.encode()),)),), platform=Platform("linux", architecture))

    path = write_layout(folder / "layout", make_index(IndexSpec((spec("amd64"), spec("arm64")))))
    return Stored(layout_place(path), image_subjects(read_image_tree(LayoutSource(path), None)))


def passed(checks: Sequence[Check], code: str) -> list[bool | None]:
    return [check.passed for check in checks if check.code == code]
