"""The part of `verify` that looks at signatures and at what trusted keys say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.attest.check import Check
    from imagebuild.attest.evidence import Evidence
    from imagebuild.attest.trust import TrustedKey
    from imagebuild.oci.reference import Reference
    from imagebuild.oci.source import ImageSource
    from imagebuild.oci.tree import ImageTree


def evidence_checks(
    arguments: argparse.Namespace, session: Session, reference: Reference, source: ImageSource, tree: ImageTree
) -> list[Check]:
    """Checks for `--key`, `--identity` and `--policy`, one of which is given, and `--release`."""
    from imagebuild.attest.evidence import gather, signature_checks
    from imagebuild.attest.policy_checks import PolicyQuestion, policy_checks
    from imagebuild.attest.subjects import image_subjects
    from imagebuild.attest.trust import Identity, keys_named, keys_of_policy
    from imagebuild.cli.evidence_places import attestations_repository, client_of, repository_of
    from imagebuild.host.clock import now

    subjects = image_subjects(tree)
    chosen = attestations_repository(arguments, session)
    if chosen is not None:
        from imagebuild.registry.source import RegistrySource

        source = RegistrySource(client_of(session), chosen)
    out: list[Check] = []
    given = keys_named(arguments.key)
    policy = None
    if arguments.policy is not None:
        from imagebuild.target.policy import load_policy

        policy = load_policy(Path(arguments.policy))
    trusted = () if policy is None else keys_of_policy(policy.keys, Path(arguments.policy).parent)
    certificates = None
    if arguments.identity is not None:
        from imagebuild.attest.keyless import KeylessVerifier

        root = None if arguments.trusted_root is None else Path(arguments.trusted_root)
        certificates = KeylessVerifier(Identity(arguments.identity, arguments.issuer), root)
        if root is not None:
            certificates.open()
    evidence = gather(source, subjects, [*given, *trusted], certificates)
    if arguments.release is not None:
        out += _release(Path(arguments.release), [*given, *trusted], evidence)
    if given or certificates is not None:
        out += signature_checks(evidence, given, identity=certificates.identity if certificates is not None else None)
    if policy is not None:
        repository = repository_of(reference)
        labels = {child.descriptor.digest: child.config.labels for child in tree.children.values()}
        only = [item.limited_to(trusted) for item in evidence]
        out += policy_checks(
            PolicyQuestion(policy, trusted, only, None if repository is None else str(repository), now(), labels)
        )
    return out


def _release(path: Path, keys: Sequence[TrustedKey], evidence: list[Evidence]) -> list[Check]:
    """Checks of a release file; what it says then counts as if it were attached to the image's top."""
    from dataclasses import replace

    from imagebuild.attest.check import Check
    from imagebuild.attest.evidence import VerifiedStatement
    from imagebuild.attest.release_file import load_release, release_checks
    from imagebuild.content.digest import Digest
    from imagebuild.errors import RefusedError

    try:
        release = load_release(path, [item.key for item in keys])
    except RefusedError as error:
        return [Check("verify.release", False, f"{path}: {error.message}", error.expected, error.found)]
    checks = release_checks(release, [item.subject for item in evidence])
    top = evidence[0]
    if checks[0].passed:
        said = VerifiedStatement(
            top.subject.digest,
            Digest.of(release.statement.format()),
            release.statement,
            tuple(item for item in keys if item.key in release.keys),
        )
        evidence[0] = replace(top, verified=(*top.verified, said))
    return checks
