"""Statements that follow from a target's lock, for `attest --target`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from imagebuild.cli.session import Session
from imagebuild.errors import InputError, RefusedError

if TYPE_CHECKING:
    from imagebuild.attest.statement import Statement
    from imagebuild.attest.subjects import ImageSubject

MADE = ("provenance", "sbom", "vex")


def statements_of_lock(
    arguments: argparse.Namespace, session: Session, subjects: Sequence[ImageSubject]
) -> list[tuple[ImageSubject, Statement]]:
    """One statement for each platform's manifest.

    Raises InputError `cli.usage`; RefusedError `attest.not-of-lock` where a manifest is not what the lock gives, so that
    no image is ever given another's provenance, and `lock.missing`, `lock.stale`.
    """
    from imagebuild.attest.predicates.types import TYPES
    from imagebuild.attest.statement import Statement
    from imagebuild.cli.targets import contents_of, current_lock, load_target_and_series

    if arguments.target is None or arguments.type not in MADE:
        raise InputError(
            "cli.usage",
            f"there is no predicate of type {arguments.type}",
            expected=f"--predicate FILE, or --target TARGET with --type {', '.join(MADE)}",
        )
    loaded = load_target_and_series(session, arguments.target)
    lock = current_lock(session, loaded)
    made = {item.manifest: str(item.platform) for item in lock.result.platforms}
    inputs = {str(item.platform): item for item in lock.inputs.platforms}
    out = []
    for subject in subjects:
        platform = made.get(subject.digest)
        if platform is None:
            raise RefusedError(
                "attest.not-of-lock",
                f"the {subject.name} manifest is not what the lock of {arguments.target} gives",
                expected=", ".join(f"{digest} ({name})" for digest, name in made.items()),
                found=str(subject.digest),
                hint=f"imagebuild build {arguments.target}",
            )
        predicate: dict[str, Any] | None
        if arguments.type == "provenance":
            from imagebuild.attest.predicates.provenance import LOCAL_BUILDER, build_provenance

            builder = arguments.builder_id or LOCAL_BUILDER
            predicate = build_provenance(lock.inputs, inputs[platform], builder=builder)
        elif arguments.type == "sbom":
            from imagebuild.attest.predicates.sbom import cyclonedx

            contents = contents_of(session, arguments.target)
            predicate = cyclonedx(
                lock.inputs, inputs[platform], loaded.overlays, contents.get, lock.notes.get("dropped", ())
            )
        else:
            from imagebuild.attest.predicates.vex import openvex

            authors = sorted({overlay.author for overlay in loaded.overlays if overlay.author})
            predicate = openvex(lock.inputs, loaded.overlays, subject.digest, ", ".join(authors) or "unknown")
            if predicate is None:
                raise InputError(
                    "attest.bad-predicate",
                    f"no overlay of {arguments.target} lists `fixes`, so there is nothing to state",
                    expected="fixes: [CVE-…] in an overlay.yaml",
                )
        out.append((subject, Statement.about(subject.digest, TYPES[arguments.type], predicate)))
    return out
