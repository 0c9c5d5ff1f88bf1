"""What a release is asked for, and what it works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.attest.keys import Signer
from imagebuild.attest.predicates.provenance import LOCAL_BUILDER
from imagebuild.attest.subjects import ImageSubject
from imagebuild.attest.trust import TrustedKey, keys_of_policy
from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.contents import Contents
from imagebuild.build.events import Emitter
from imagebuild.build.opening import Opener
from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.errors import InputError
from imagebuild.layer.facts_store import FactsStore
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import Repository, TagReference
from imagebuild.overlay.document import Overlay
from imagebuild.target.document import Target
from imagebuild.target.lock_types import Lock
from imagebuild.target.policy import Policy, load_policy
from imagebuild.target.workspace import Workspace

RunCheck = Callable[[], str]
"""Runs a check of the target on its built image and leaves its statement below build/; gives the verdict with its reason
in words, for the message where no statement came of it."""
CHECKS = ("smoke", "gsm8k")


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy file: `digest` is that of its bytes, `keys` those that it lists."""

    path: Path
    policy: Policy
    keys: tuple[TrustedKey, ...]
    digest: Digest


def read_policy(path: Path) -> LoadedPolicy:
    """Raises what load_policy and keys_of_policy raise."""
    policy = load_policy(path)
    with io_faults(path, "reading"):
        digest = Digest.of(path.read_bytes())
    return LoadedPolicy(path, policy, keys_of_policy(policy.keys, path.parent), digest)


@dataclass(frozen=True, slots=True)
class Tools:
    """What steps work with; `checks` run smoke and gsm8k by name, those that can run here."""

    workspace: Workspace
    opener: Opener
    contents: Contents
    facts: FactsStore
    artefacts: ArtefactStore
    emitter: Emitter
    checks: Mapping[str, RunCheck] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """One release.  `lock` is current; `signer` is None only for a plan; `repository` is where it is published (None:
    nowhere), `attestations` where signatures go in a registry (None: beside the image); `now` in seconds since 1970;
    `public_key` names the file with the signer's public key for whoever verifies."""

    target: Target
    overlays: tuple[Overlay, ...]
    lock: Lock
    lock_digest: Digest
    signer: Signer | None
    policy: LoadedPolicy | None
    repository: Repository | None
    push: bool
    now: int
    force: bool = False
    builder: str = LOCAL_BUILDER
    attestations: Repository | None = None
    public_key: str = "KEY.pub"

    def __post_init__(self) -> None:
        if self.push and (self.repository is None or self.target.publish is None):
            raise InputError(
                "build.no-publish",
                f"{self.target.name} does not say under which tags it is published",
                hint="write `publish: {repository: …, tag: …}` into target.yaml; --to names another repository",
            )

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def content_id(self) -> Digest:
        return self.lock.result.content_id

    @property
    def digest(self) -> Digest:
        return self.lock.result.digest

    @property
    def subjects(self) -> tuple[ImageSubject, ...]:
        """The index (where there is one) first, then each platform's manifest."""
        result = self.lock.result
        types = {str(p.platform): p.manifest_type for p in self.lock.inputs.platforms}
        images = [
            ImageSubject(
                str(p.platform), Descriptor(types[str(p.platform)], p.manifest, p.manifest_size, platform=p.platform)
            )
            for p in result.platforms
        ]
        if not self.lock.inputs.is_index:
            return tuple(images)
        return (ImageSubject("index", Descriptor(result.media_type, result.digest, result.size)), *images)

    @property
    def images(self) -> dict[str, Digest]:
        """Digest of each platform's manifest, by platform."""
        return {str(p.platform): p.manifest for p in self.lock.result.platforms}

    @property
    def trusted(self) -> tuple[TrustedKey, ...]:
        """The policy's keys, and the one that this release signs with."""
        listed = self.policy.keys if self.policy is not None else ()
        if self.signer is None or any(item.key == self.signer.public_key for item in listed):
            return listed
        return (*listed, TrustedKey("this release's key", self.signer.public_key))

    @property
    def unsigned_allowed(self) -> bool:
        return self.policy is not None and self.policy.policy.unsigned_evidence == "allow"

    def asks_for(self, check: str) -> str | None:
        """Who asks for a check, in words; None where nobody does."""
        checks = self.target.checks
        if checks is not None and getattr(checks, check) is not None:
            return "target.yaml"
        if self.policy is not None and any(need.predicate == check for need in self.policy.policy.require):
            return "the policy"
        return None

    def good_verdicts(self, check: str) -> tuple[str, ...]:
        """The verdicts that let a release pass."""
        needs = self.policy.policy.require if self.policy is not None else ()
        listed = {verdict for need in needs if need.predicate == check for verdict in need.verdicts}
        return tuple(sorted(listed)) or ("passed", "non-inferior")

    def oldest(self, check: str) -> int:
        """Evidence that was finished before (seconds since 1970) is too old for the policy; 0 where any age is good."""
        needs = self.policy.policy.require if self.policy is not None else ()
        ages = [need.max_age for need in needs if need.predicate == check and need.max_age is not None]
        return self.now - min(ages) if ages else 0

    @property
    def tags(self) -> list[tuple[TagReference, Digest, Platform | None]]:
        """Every tag with what it names, the index's last: whoever finds that one finds the others."""
        publish, repository = self.target.publish, self.repository
        if publish is None or repository is None:
            return []
        out: list[tuple[TagReference, Digest, Platform | None]] = []
        for item in self.lock.result.platforms:
            tag = self.target.arch_tag(self.content_id, item.platform)
            if tag is not None:
                out.append((TagReference(repository, tag), item.manifest, item.platform))
        index = self.target.index_tag(self.content_id)
        assert index is not None
        return [*out, (TagReference(repository, index), self.digest, None)]
