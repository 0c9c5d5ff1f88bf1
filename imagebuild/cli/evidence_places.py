"""Where the signatures of a named image are kept, and the options by which signing verbs say so."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session
from imagebuild.errors import InputError

if TYPE_CHECKING:
    from imagebuild.attest.keys import Signer
    from imagebuild.attest.storage import EvidencePlace
    from imagebuild.oci.reference import Reference, Repository
    from imagebuild.registry.client import RegistryClient


def add_place_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attestations", metavar="REPO", help="the repository that holds signatures (default: the image's own place)"
    )


def add_key_option(parser: argparse.ArgumentParser, *, required: bool) -> None:
    from imagebuild.cli.options import PrivateKey

    parser.add_argument(
        "--key",
        action=PrivateKey,
        metavar="KEY",
        required=required,
        help="private key: a file, file://PATH or env://NAME",
    )


def add_signing_options(parser: argparse.ArgumentParser) -> None:
    """Options of verbs that sign about an image, with a key or without."""
    add_key_option(parser, required=False)
    parser.add_argument(
        "--keyless",
        action="store_true",
        help="with an identity token instead of a key (extra keyless; public for ever)",
    )
    parser.add_argument("--passphrase-file", metavar="FILE", help="its first line opens the key")
    parser.add_argument("--target", metavar="TARGET", help="the target that it is an image of")
    add_place_options(parser)


def signer_of(arguments: argparse.Namespace) -> Signer:
    from imagebuild.attest.keys import passphrase_from
    from imagebuild.attest.signers import open_signer

    return open_signer(arguments.key, passphrase_from(_path(arguments.passphrase_file)))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def attestations_repository(arguments: argparse.Namespace, session: Session) -> Repository | None:
    """`--attestations`, else the target's `attestations.repository`; None for the image's own place."""
    from imagebuild.oci.reference import parse_repository

    if arguments.attestations is not None:
        return parse_repository(arguments.attestations)
    if arguments.target is not None:
        return session.workspace.target(arguments.target).attestations_repository
    return None


def client_of(session: Session) -> RegistryClient:
    from imagebuild.registry.open import open_client

    return open_client(session.opener().registry_options())


def repository_of(reference: Reference) -> Repository | None:
    """The repository that an image is in; None for what is on disk."""
    from imagebuild.oci.reference import DigestReference, TagReference

    return reference.repository if isinstance(reference, TagReference | DigestReference) else None


def evidence_place(reference: Reference, session: Session, repository: Repository | None) -> EvidencePlace:
    """Where what is said of the image at `reference` is kept; `repository` overrides its own place.

    Raises InputError `attest.not-attachable` where the image is in an archive or an engine.
    """
    from imagebuild.attest.storage import layout_place, registry_place
    from imagebuild.oci.reference import PathReference

    chosen = repository or repository_of(reference)
    if chosen is not None:
        return registry_place(client_of(session), chosen)
    if isinstance(reference, PathReference) and reference.transport == "oci":
        return layout_place(session.opener().path(reference))
    raise InputError(
        "attest.not-attachable",
        f"nothing can be attached to {reference}",
        expected="an image in a registry or an oci: layout",
        hint="name a repository with --attestations",
    )
