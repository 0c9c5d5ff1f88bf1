"""Sign a statement about an image: a predicate of a given type about its index and every platform's manifest.

With --target and without --predicate the statement is made from the target's lock: provenance, sbom, or vex (where
overlays list `fixes`), for each platform's manifest, which must be the lock's.

Examples:
  imagebuild attest oci:build/demo --type provenance --target demo --key release.key
  imagebuild attest docker.io/example/engine:v1 --type sbom --predicate sbom.cdx.json --key release.key
  imagebuild attest oci:build/demo --type https://example.com/review/v1 --predicate review.json --key release.key
  imagebuild attest oci:build/demo --platform linux/arm64 --type smoke --predicate smoke.json --key tester.key
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from imagebuild.cli.session import Session
from imagebuild.errors import InputError

if TYPE_CHECKING:
    from imagebuild.attest.statement import Statement
    from imagebuild.attest.subjects import ImageSubject
    from imagebuild.content.digest import Digest
    from imagebuild.oci.platform import Platform
    from imagebuild.oci.reference import Reference
    from imagebuild.oci.tree import ImageTree


def configure(parser: argparse.ArgumentParser) -> None:
    from imagebuild.cli.evidence_places import add_signing_options
    from imagebuild.oci.platform import Platform

    parser.add_argument("reference", metavar="REF", help="the image")
    parser.add_argument(
        "--type",
        metavar="TYPE",
        required=True,
        help="provenance, sbom, smoke, gsm8k, vex, release, or the URI of another predicate type",
    )
    parser.add_argument("--predicate", metavar="FILE", help="the predicate, a JSON object (default: from the lock)")
    parser.add_argument("--platform", type=Platform.parse, help="about this platform's manifest alone")
    parser.add_argument("--builder-id", metavar="URI", help="builder.id of a provenance made from the lock")
    add_signing_options(parser)


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.evidence_places import attestations_repository, evidence_place
    from imagebuild.cli.signing_answer import answer_signed
    from imagebuild.cli.statement_signing import signatory_of
    from imagebuild.cli.verb_verify import read_tree

    reference = session.reference(arguments.reference)
    given = None if arguments.predicate is None else _given(arguments)
    place = evidence_place(reference, session, attestations_repository(arguments, session))
    signatory = signatory_of(arguments)
    tree = read_tree(reference, session.opener().source(reference))
    subjects = _chosen(tree, arguments.platform, reference)
    if given is not None:
        statements = _statements(arguments.type, *given, subjects)
    else:
        from imagebuild.cli.lock_statements import statements_of_lock

        statements = statements_of_lock(arguments, session, [s for s in subjects if s.digest != _index(tree)])
    attached = signatory.attach(place, statements)
    answer_signed(session, reference, tree.top.digest, place.location, signatory, attached)
    return 0


def _index(tree: ImageTree) -> Digest | None:
    return None if tree.index is None else tree.top.digest


def _given(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    from imagebuild.attest.predicates.validation import parse_predicate
    from imagebuild.cli.named_file import read_named

    return parse_predicate(arguments.type, read_named(arguments.predicate, "--predicate"), arguments.predicate)


def _chosen(tree: ImageTree, wanted: Platform | None, reference: Reference) -> Sequence[ImageSubject]:
    from imagebuild.attest.subjects import ImageSubject, image_subjects

    if wanted is None:
        return image_subjects(tree)
    child = next((c for p, c in tree.children.items() if p.agrees(wanted)), None)
    if child is None:
        raise InputError(
            "oci.platform-missing",
            f"{reference} has no manifest for {wanted}",
            expected=str(wanted),
            found=", ".join(map(str, tree.children)),
        )
    return (ImageSubject(str(wanted), child.descriptor),)


def _statements(
    word: str, kind: str, predicate: dict[str, Any], subjects: Sequence[ImageSubject]
) -> list[tuple[ImageSubject, Statement]]:
    """A release is one statement about all of them, attached to the top; everything else one for each."""
    from imagebuild.attest.statement import Statement, Subject

    if word == "release":
        named = tuple(Subject(item.digest, item.name) for item in subjects)
        return [(subjects[0], Statement(named, kind, predicate))]
    return [(item, Statement.about(item.digest, kind, predicate)) for item in subjects]
