"""Statements that follow from a target's lock, for `attest --target`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session
from imagebuild.errors import InputError, RefusedError

if TYPE_CHECKING:
    from imagebuild.attest.statement import Statement
    from imagebuild.attest.subjects import ImageSubject


def statements_of_lock(
    arguments: argparse.Namespace, session: Session, subjects: Sequence[ImageSubject]
) -> list[tuple[ImageSubject, Statement]]:
    """One statement for each platform's manifest.

    Raises InputError `cli.usage`; RefusedError `attest.not-of-lock` where a manifest is not what the lock gives, so that
    no image is ever given another's provenance, and `lock.missing`, `lock.stale`.
    """
    from imagebuild.cli.targets import contents_of, current_lock, load_target_and_series
    from imagebuild.release.statements import MADE, lock_statement

    if arguments.target is None or arguments.type not in MADE:
        raise InputError(
            "cli.usage",
            f"there is no predicate of type {arguments.type}",
            expected=f"--predicate FILE, or --target TARGET with --type {', '.join(MADE)}",
        )
    from imagebuild.attest.predicates.provenance import LOCAL_BUILDER

    loaded = load_target_and_series(session, arguments.target)
    lock = current_lock(session, loaded)
    contents = contents_of(session, arguments.target)
    made = {item.manifest: item.platform for item in lock.result.platforms}
    builder = arguments.builder_id or LOCAL_BUILDER
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
        statement = lock_statement(arguments.type, lock, platform, loaded.overlays, contents.get, builder)
        if statement is None:
            raise InputError(
                "attest.bad-predicate",
                f"no overlay of {arguments.target} lists `fixes`, so there is nothing to state",
                expected="fixes: [CVE-…] in an overlay.yaml",
            )
        out.append((subject, statement))
    return out
