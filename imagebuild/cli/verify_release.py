"""`verify --release FILE` without an image: a signed release by itself, from the bytes of the file and the keys alone."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session
from imagebuild.errors import InputError, RefusedError, UnavailableError

if TYPE_CHECKING:
    from imagebuild.attest.check import Check
    from imagebuild.attest.evidence import Evidence
    from imagebuild.attest.release_file import VerifiedRelease
    from imagebuild.attest.trust import TrustedKey
    from imagebuild.build.verification import Verification


def verify_release_alone(arguments: argparse.Namespace, session: Session) -> Verification:
    """Who signed the release, what it names, what the lock of --target and the --policy say of that.  What only the image could
    show is *could not find out*, never passed.

    Raises RefusedError as load_release; InputError `cli.usage`.
    """
    from imagebuild.attest.check import Check
    from imagebuild.attest.policy_checks import PolicyQuestion, policy_checks
    from imagebuild.attest.release_file import load_release
    from imagebuild.attest.trust import keys_named, keys_of_policy
    from imagebuild.build.verification import Verification
    from imagebuild.host.clock import now

    path = Path(arguments.release)
    given, policy = keys_named(arguments.key), None
    trusted: tuple[TrustedKey, ...] = ()
    if arguments.policy is not None:
        from imagebuild.target.policy import load_policy

        policy = load_policy(Path(arguments.policy))
        trusted = keys_of_policy(policy.keys, Path(arguments.policy).parent)
    keys = [*given, *trusted]
    if not keys:
        raise InputError("cli.usage", "--release is verified with keys", expected="--key FILE or --policy FILE")
    release = load_release(path, [item.key for item in keys])
    evidence = _evidence(release, keys)
    signers = ", ".join(str(item) for item in keys if item.key in release.keys)
    named = ", ".join(f"{item.digest} ({item.name})" for item in release.statement.subjects)
    target, counter = release.statement.value.get("target"), release.statement.value.get("counter")
    checks = [Check("verify.release", True, f"release {counter} of {target} names {named}", None, signers)]
    if arguments.target is not None:
        checks += _against_lock(arguments.target, session, release)
    if policy is not None:
        only = [item.limited_to(trusted) for item in evidence]
        checks += policy_checks(PolicyQuestion(policy, trusted, only, None, now()))
    return Verification(str(path), evidence[0].subject.digest, tuple(checks))


def _evidence(release: VerifiedRelease, keys: list[TrustedKey]) -> list[Evidence]:
    """The statement as what is known of the image's top; whatever else may be attached was not looked at."""
    from imagebuild.attest.evidence import Evidence, VerifiedStatement
    from imagebuild.attest.policy_checks import RELEASE_ALONE
    from imagebuild.attest.subjects import ImageSubject
    from imagebuild.content.digest import Digest
    from imagebuild.oci import media_types as mt
    from imagebuild.oci.descriptor import Descriptor

    away = UnavailableError(RELEASE_ALONE, "only the release file was looked at: name the image to verify the rest")
    out = []
    for item in release.statement.subjects:
        if item.digest is None:
            raise RefusedError("attest.bad-statement", "the release names a subject without a sha256")
        kind = mt.OCI_INDEX if item.name == "index" else mt.OCI_MANIFEST
        out.append(Evidence(ImageSubject(item.name, Descriptor(kind, item.digest, 0)), (), (), away))
    signers = tuple(item for item in keys if item.key in release.keys)
    top = out[0].subject.digest
    said = VerifiedStatement(top, Digest.of(release.statement.format()), release.statement, signers)
    return [replace(out[0], verified=(said,)), *out[1:]]


def _against_lock(name: str, session: Session, release: VerifiedRelease) -> list[Check]:
    from imagebuild.attest.check import Check
    from imagebuild.cli.targets import current_lock, load_target_and_series

    lock = current_lock(session, load_target_and_series(session, name))
    wanted = {str(lock.result.digest), *(str(item.manifest) for item in lock.result.platforms)}
    named = {str(item.digest) for item in release.statement.subjects}
    said = release.statement.value
    return [
        Check(
            "verify.release",
            wanted == named,
            f"the release names what the lock of {name} gives",
            ", ".join(sorted(wanted)),
            ", ".join(sorted(named)),
        ),
        Check(
            "verify.content-id",
            said.get("contentId") == str(lock.result.content_id),
            f"the release is of the content of {name}'s lock",
            str(lock.result.content_id),
            str(said.get("contentId")),
        ),
    ]
