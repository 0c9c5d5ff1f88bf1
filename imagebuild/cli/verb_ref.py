"""Print the line by which a consumer names the image.

Examples:
  imagebuild ref b300-vllm                       one pinned reference
  imagebuild ref b300-vllm --as enroot3          for enroot import of 3.x, which cannot parse TAG@DIGEST
  imagebuild ref docker.io/vllm/vllm-openai:v0.33.0@sha256:… --as podman
"""

from __future__ import annotations

import argparse

from imagebuild.cli.session import Session
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import (
    HUB,
    DaemonReference,
    DigestReference,
    PathReference,
    Reference,
    TagReference,
    parse_reference,
)

FORMS = ("image", "docker", "podman", "enroot3", "enroot4", "pyxis", "squash-name", "recipe")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="REF|TARGET", help="a pinned reference, or a target with a lock")
    parser.add_argument("--as", dest="form", choices=FORMS, default="image", help="who wants it (default: image)")
    parser.add_argument("--platform", type=Platform.parse, help="name this platform's manifest instead of the index")


def format_reference(reference: DigestReference, form: str) -> str:
    """The line that `form` wants.

    docker takes a tag beside the digest and ignores it; podman refuses both together; enroot writes the registry before
    `#` (none for Docker Hub) and takes a digest in the tag's place in 3.x, after `@` in 4.x; pyxis hands its text to enroot 3.
    """
    host, path, digest = reference.repository.host, reference.repository.path, reference.digest
    enroot_host = "" if host == HUB else f"{host}#"
    if form in ("image", "podman"):
        return f"{host}/{path}@{digest}"
    if form in ("docker", "recipe"):
        return str(reference)
    if form == "enroot3":
        return f"docker://{enroot_host}{path}:{digest}"
    if form == "enroot4":
        return f"docker://{enroot_host}{path}@{digest}"
    if form == "pyxis":
        return f"{enroot_host}{path}:{digest}"
    assert form == "squash-name"
    return f"{path.rpartition('/')[2]}-sha256-{digest.hex}.sqsh"


def pinned(reference: Reference, form: str) -> DigestReference:
    """A registry reference with a digest; raises InputError `ref.unpinned` or `ref.form`."""
    if isinstance(reference, DigestReference):
        return reference
    if isinstance(reference, TagReference):
        raise InputError(
            "ref.unpinned",
            f"{reference} is a movable name",
            expected="HOST/REPO[:TAG]@sha256:…",
            found=str(reference),
            hint="build it (imagebuild build TARGET prints the pinned reference), or append the digest",
        )
    assert isinstance(reference, PathReference | DaemonReference)
    raise InputError(
        "ref.form",
        f"{reference} is in no registry, so there is no line for {form}",
        expected="a registry reference, or a target with `publish`",
        found=str(reference),
    )


def _of_target(name: str, session: Session, platform: Platform | None) -> Reference:
    from imagebuild.build.building import select_platforms
    from imagebuild.build.locked import refuse_stale
    from imagebuild.target.lock import load_lock

    workspace = session.workspace
    target = workspace.target(name)
    path = workspace.lock_path(name)
    lock = refuse_stale(load_lock(path), target, workspace.series(target), path)
    result = select_platforms(lock, [platform] if platform else [])
    if target.publish is not None:
        content = lock.result.content_id
        tag = target.index_tag(content) if platform is None else target.arch_tag(content, platform)
        return DigestReference(target.publish.repository, result.digest, tag)
    return PathReference("oci", workspace.shown(workspace.root / "build" / name), None, result.digest)


def run(arguments: argparse.Namespace, session: Session) -> int:
    subject: str = arguments.subject
    is_reference = any(char in subject for char in "/:@#")
    reference = parse_reference(subject) if is_reference else _of_target(subject, session, arguments.platform)
    if is_reference and arguments.platform is not None:
        raise InputError("cli.usage", "--platform goes with a target: a digest names one thing only")
    if isinstance(reference, PathReference) and arguments.form == "image" and reference.digest is not None:
        line = str(reference)
    else:
        line = format_reference(pinned(reference, arguments.form), arguments.form)
    session.output.answer(
        {"kind": "reference", "schemaVersion": 1, "subject": subject, "as": arguments.form, "line": line}, line
    )
    return 0
