"""Recompute what an image claims about itself.

With --target the image is held against that target's lock: the base's layers come first, our layers hold exactly the
declared entries, the config is the base's with the declared changes.  Without it, labels are only claims, and what
cannot be checked is shown as not-checked.  With --key or --policy its signatures and what trusted keys attest are
verified: the index and every platform's manifest must be signed.

Examples:
  imagebuild verify oci:build/demo --target demo
  imagebuild verify docker.io/example/engine@sha256:…
  imagebuild verify docker.io/example/engine:v1 --key release.pub
  imagebuild verify docker.io/example/engine:v1 --policy policy.yaml --target demo
  imagebuild verify --release release.dsse.json --key release.pub       the release file by itself, offline
  imagebuild verify docker.io/example/engine:v1 --identity me@example.com --issuer https://accounts.example.com
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from imagebuild.cli.evidence_places import add_place_options
from imagebuild.cli.session import Session
from imagebuild.errors import InputError

if TYPE_CHECKING:
    from imagebuild.build.verification import Verification
    from imagebuild.oci.reference import Reference
    from imagebuild.oci.source import ImageSource
    from imagebuild.oci.tree import ImageTree


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", metavar="REF", nargs="?", help="the image; may be left out with --release")
    parser.add_argument("--target", metavar="TARGET", help="the target whose lock describes it")
    parser.add_argument(
        "--key", metavar="FILE", action="append", default=[], help="a public key, one of which must have signed"
    )
    parser.add_argument(
        "--identity",
        metavar="NAME",
        help="an e-mail address or URI, whose keyless signature counts as one of --key does (with --issuer; extra keyless)",
    )
    parser.add_argument("--issuer", metavar="URL", help="who must have vouched for --identity")
    parser.add_argument(
        "--trusted-root",
        metavar="FILE",
        help="Sigstore trust root for --identity (default: the public instance's, fetched)",
    )
    parser.add_argument("--policy", metavar="FILE", help="policy.yaml: whose signatures count, and what must be shown")
    parser.add_argument(
        "--release", metavar="FILE", help="a signed release.dsse.json that must name the image (with --key or --policy)"
    )
    add_place_options(parser)


def run(arguments: argparse.Namespace, session: Session) -> int:
    _refuse_half_identity(arguments)
    if arguments.reference is None:
        if arguments.release is None or arguments.identity is not None:
            raise InputError("cli.usage", "say which image", expected="REF, or --release FILE with --key or --policy")
        from imagebuild.cli.verify_release import verify_release_alone

        return _answer(verify_release_alone(arguments, session), session)
    reference = session.reference(arguments.reference)
    source = session.opener().source(reference)
    tree = read_tree(reference, source)
    from imagebuild.build.verification import Check, Verification

    signed = bool(arguments.key) or arguments.identity is not None or arguments.policy is not None
    if arguments.release is not None and not signed:
        raise InputError("cli.usage", "--release is verified with keys", expected="--key FILE or --policy FILE")
    if arguments.target is not None:
        found = _against_target(reference, arguments.target, session, source, tree)
    else:
        found = _claims(reference, session, source, tree, signed)
    if signed:
        from imagebuild.cli.verify_evidence import evidence_checks

        more = evidence_checks(arguments, session, reference, source, tree)
    else:
        more = [
            Check(
                "verify.signature", None, "signatures: no key was given, the image is taken as unsigned", required=False
            )
        ]
    return _answer(Verification(found.reference, found.digest, (*found.checks, *more), found.recompressed), session)


def _answer(found: Verification, session: Session) -> int:
    rows = [f"{check.word:<11}  {check.message}" + _sides(check.expected, check.found) for check in found.checks]
    verdict = {True: "passed", False: "failed", None: "not-checked"}[found.passed]
    pinned = str(found.reference).endswith(str(found.digest))
    image = str(found.reference) if pinned else f"{found.reference} {found.digest}"
    session.output.answer(found.to_json(), "\n".join([*rows, f"{verdict}: {image}"]))
    return found.exit_code


def _refuse_half_identity(arguments: argparse.Namespace) -> None:
    """A name means nothing without who vouches for it."""
    if (arguments.identity is None) != (arguments.issuer is None):
        raise InputError("cli.usage", "--identity and --issuer go together", expected="both")
    if arguments.trusted_root is not None and arguments.identity is None:
        raise InputError(
            "cli.usage", "--trusted-root judges the certificate of an --identity", expected="--identity NAME"
        )
    if arguments.identity is not None:
        from imagebuild.attest.keyless import require_library

        require_library()


def _sides(expected: str | None, found: str | None) -> str:
    lines = [
        f"\n{'':13}expected: {expected}" if expected is not None else "",
        f"\n{'':13}found:    {found}" if found is not None else "",
    ]
    return "".join(lines)


def read_tree(reference: Reference, source: ImageSource) -> ImageTree:
    """The image that a reference names."""
    from imagebuild.oci.reference import DigestReference, PathReference, TagReference
    from imagebuild.oci.tree import read_image_tree

    if isinstance(reference, DigestReference):
        return read_image_tree(source, reference.digest)
    if isinstance(reference, TagReference):
        return read_image_tree(source, reference.tag)
    assert isinstance(reference, PathReference)
    return read_image_tree(source, reference.digest if reference.digest is not None else reference.name)


def _against_target(
    reference: Reference, name: str, session: Session, source: ImageSource, tree: ImageTree
) -> Verification:
    from imagebuild.build.base_documents import load_base
    from imagebuild.build.verify_image import ImageVerifier
    from imagebuild.cli.targets import contents_of, current_lock, load_target_and_series

    loaded = load_target_and_series(session, name)
    lock = current_lock(session, loaded)
    opener = session.opener(session.workspace.root)
    base = load_base(lock.inputs, contents_of(session, name), lambda: opener.source(loaded.target.base))
    return ImageVerifier(lock, base).verify(str(reference), source, tree)


def _claims(reference: Reference, session: Session, source: ImageSource, tree: ImageTree, signed: bool) -> Verification:
    """What the image's labels claim.  Where signatures are verified, the claims that nothing proves do not decide."""
    from dataclasses import replace

    from imagebuild.build.verification import Verification
    from imagebuild.build.verify_image import verify_claims
    from imagebuild.content.digest import Digest
    from imagebuild.oci.reference import parse_reference
    from imagebuild.oci.tree import read_image_tree

    opener = session.opener()

    def base_tree(name: str, digest: Digest) -> ImageTree:
        text = name.partition("@")[0]
        return read_image_tree(opener.source(parse_reference(f"{text}@{digest}")), digest)

    found = verify_claims(str(reference), source, tree, base_tree)
    if not signed:
        return found
    checks = tuple(replace(check, required=check.passed is not None) for check in found.checks)
    return Verification(found.reference, found.digest, checks, found.recompressed)
