"""Sign a statement about an image: a predicate of a given type about its index and every platform's manifest.

Examples:
  imagebuild attest docker.io/example/engine:v1 --type sbom --predicate sbom.cdx.json --key release.key
  imagebuild attest oci:build/demo --type https://example.com/review/v1 --predicate review.json --key release.key
  imagebuild attest oci:build/demo --platform linux/arm64 --type smoke --predicate smoke.json --key tester.key
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session
from imagebuild.errors import InputError


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
    parser.add_argument("--predicate", metavar="FILE", required=True, help="the predicate, a JSON object")
    parser.add_argument("--platform", type=Platform.parse, help="about this platform's manifest alone")
    add_signing_options(parser)


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.attest.predicates.validation import parse_predicate
    from imagebuild.attest.statement import Statement, Subject
    from imagebuild.attest.storage import attach_statement
    from imagebuild.attest.subjects import ImageSubject, image_subjects
    from imagebuild.cli.evidence_places import attestations_repository, evidence_place, signer_of
    from imagebuild.cli.signing_answer import answer_signed
    from imagebuild.cli.verb_verify import read_tree
    from imagebuild.content.files import io_faults
    from imagebuild.host.clock import now
    from imagebuild.oci.reference import parse_reference

    reference = parse_reference(arguments.reference)
    with io_faults(arguments.predicate, "reading"):
        raw = Path(arguments.predicate).read_bytes()
    kind, predicate = parse_predicate(arguments.type, raw, arguments.predicate)
    place = evidence_place(reference, session, attestations_repository(arguments, session))
    signer = signer_of(arguments)
    tree = read_tree(reference, session.opener().source(reference))
    subjects = image_subjects(tree)
    wanted = arguments.platform
    if wanted is not None:
        child = next((c for p, c in tree.children.items() if p.agrees(wanted)), None)
        if child is None:
            raise InputError(
                "oci.platform-missing",
                f"{reference} has no manifest for {wanted}",
                expected=str(wanted),
                found=", ".join(map(str, tree.children)),
            )
        subjects = (ImageSubject(str(wanted), child.descriptor),)
    attached = []
    for subject in subjects:
        named: tuple[Subject, ...] = (Subject(subject.digest),)
        if arguments.type == "release":
            named = tuple(Subject(item.digest, item.name) for item in subjects)
        attached.append(attach_statement(place, subject.descriptor, Statement(named, kind, predicate), signer, now()))
        if arguments.type == "release":
            break
    answer_signed(session, reference, tree.top.digest, place.location, signer.public_key, attached)
    return 0
