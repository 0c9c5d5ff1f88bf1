"""Statements that follow from a target's lock: the same lock gives the same payloads, whenever they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imagebuild.attest.predicates.provenance import LOCAL_BUILDER, build_provenance
from imagebuild.attest.predicates.sbom import Read, cyclonedx
from imagebuild.attest.predicates.types import TYPES
from imagebuild.attest.predicates.vex import openvex
from imagebuild.attest.statement import Statement
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.document import Overlay
from imagebuild.target.lock_types import Lock

MADE = ("provenance", "sbom", "vex")


def lock_statement(
    word: str,
    lock: Lock,
    platform: Platform,
    overlays: Sequence[Overlay],
    read: Read,
    builder: str = LOCAL_BUILDER,
) -> Statement | None:
    """The statement of a kind (a word of MADE) about one platform's manifest; None for a vex where no overlay fixes
    anything.  `read` gives bytes of the base by digest."""
    inputs = next(item for item in lock.inputs.platforms if item.platform == platform)
    image = next(item.manifest for item in lock.result.platforms if item.platform == platform)
    predicate: dict[str, Any] | None
    if word == "provenance":
        predicate = build_provenance(lock.inputs, inputs, builder=builder)
    elif word == "sbom":
        predicate = cyclonedx(lock.inputs, inputs, overlays, read, lock.notes.get("dropped", ()))
    elif word == "vex":
        authors = sorted({overlay.author for overlay in overlays if overlay.author})
        predicate = openvex(lock.inputs, overlays, image, ", ".join(authors) or "unknown")
    else:
        raise InputError("attest.bad-predicate", f"{word} is not made from a lock", expected=", ".join(MADE))
    return None if predicate is None else Statement.about(image, TYPES[word], predicate)
