"""Sign an image: its index and every platform's manifest, with a key or, with --keyless, an identity.

The signatures are Sigstore bundles, stored as referrers beside the image (or in --attestations); cosign 3 verifies them
with `cosign verify --key`.  What the same key has signed already is left as it is.

Examples:
  imagebuild sign docker.io/example/engine:v1 --key release.key --passphrase-file secret.txt
  imagebuild sign oci:build/demo --key env://SIGNING_KEY
  imagebuild sign docker.io/example/engine:v1 --key release.key --legacy
"""

from __future__ import annotations

import argparse

from imagebuild.cli.session import Session
from imagebuild.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    from imagebuild.cli.evidence_places import add_signing_options

    parser.add_argument("reference", metavar="REF", help="the image")
    add_signing_options(parser)
    parser.add_argument(
        "--legacy", action="store_true", help="write the older sha256-….sig tag too, which many verifiers still read"
    )


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.attest.predicates.image_signature import image_signature
    from imagebuild.attest.subjects import image_subjects
    from imagebuild.cli.evidence_places import (
        attestations_repository,
        client_of,
        evidence_place,
        repository_of,
    )
    from imagebuild.cli.signing_answer import answer_signed
    from imagebuild.cli.statement_signing import signatory_of
    from imagebuild.cli.verb_verify import read_tree

    reference = session.reference(arguments.reference)
    chosen = attestations_repository(arguments, session)
    repository = chosen or repository_of(reference)
    if arguments.legacy and repository is None:
        raise InputError(
            "attest.not-attachable", f"--legacy writes a tag, and {reference} is in no registry", found=str(reference)
        )
    place = evidence_place(reference, session, chosen)
    signatory = signatory_of(arguments)
    if arguments.legacy and signatory.key is None:
        raise InputError("cli.usage", "--legacy is for keys: the older form has no place for what --keyless signs with")
    tree = read_tree(reference, session.opener().source(reference))
    subjects = image_subjects(tree)
    attached = signatory.attach(place, [(subject, image_signature(subject.digest)) for subject in subjects])
    legacy = []
    if arguments.legacy and repository is not None and signatory.key is not None:
        from imagebuild.attest.simple_signature import signature_tag
        from imagebuild.attest.simple_signing import push_simple_signature

        for subject in subjects:
            push_simple_signature(client_of(session), repository, subject.digest, signatory.key)
            legacy.append(f"{repository}:{signature_tag(subject.digest)}")
    answer_signed(session, reference, tree.top.digest, place.location, signatory, attached, legacy)
    return 0
