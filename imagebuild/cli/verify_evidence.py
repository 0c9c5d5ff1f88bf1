"""The part of `verify` that looks at signatures and at what trusted keys say."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.attest.check import Check
    from imagebuild.oci.reference import Reference
    from imagebuild.oci.source import ImageSource
    from imagebuild.oci.tree import ImageTree


def evidence_checks(
    arguments: argparse.Namespace, session: Session, reference: Reference, source: ImageSource, tree: ImageTree
) -> list[Check]:
    """Checks for `--key` and `--policy`; none where neither is given."""
    from imagebuild.attest.evidence import gather, signature_checks
    from imagebuild.attest.policy_checks import PolicyQuestion, policy_checks
    from imagebuild.attest.subjects import image_subjects
    from imagebuild.attest.trust import keys_named, keys_of_policy
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
    evidence = gather(source, subjects, [*given, *trusted])
    if given:
        out += signature_checks(evidence, given)
    if policy is not None:
        repository = repository_of(reference)
        labels = {child.descriptor.digest: child.config.labels for child in tree.children.values()}
        only = [item.limited_to(trusted) for item in evidence]
        out += policy_checks(
            PolicyQuestion(policy, trusted, only, None if repository is None else str(repository), now(), labels)
        )
    return out
