"""The release predicate: one statement over the index and every platform's manifest that says what was released.

Its JSON Schema stands in docs/reference/release-predicate.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from imagebuild import __version__
from imagebuild.attest.predicates.provenance import pinned_base
from imagebuild.attest.predicates.types import RELEASE
from imagebuild.attest.statement import Statement, Subject
from imagebuild.content.digest import Digest
from imagebuild.host.clock import rfc3339
from imagebuild.overlay.document import Overlay
from imagebuild.target.lock_types import Lock


@dataclass(frozen=True, slots=True)
class ReleaseEvidence:
    """A check's outcome: `digest` of its statement's payload; `signed` whether anybody's key stands behind it."""

    check: str
    verdict: str
    digest: Digest
    signed: bool = True

    def to_json(self) -> dict[str, Any]:
        unsigned = {} if self.signed else {"signed": False}
        return {"check": self.check, "verdict": self.verdict, "digest": {"sha256": self.digest.hex}, **unsigned}


@dataclass(frozen=True, slots=True)
class ReleaseFacts:
    """What a release says beyond its lock.  `counter` grows by one with each release of a target; `created` is in
    seconds since 1970; `waiver` a number with its last day, where there is one."""

    counter: int
    created: int
    repository: str | None = None
    waiver: tuple[int, date | None] | None = None
    evidence: Sequence[ReleaseEvidence] = ()
    source_commit: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.counter < 1:
            raise ValueError("a release counter begins at 1")


def release_predicate(lock: Lock, overlays: Sequence[Overlay], facts: ReleaseFacts) -> dict[str, Any]:
    """The predicate."""
    inputs, wanted = lock.inputs, {item["name"]: item for item in lock.inputs.wanted["overlays"]}
    waiver: dict[str, Any] | None = None
    if facts.waiver is not None:
        number, last = facts.waiver
        waiver = {"number": number, **({"expires": last.isoformat()} if last is not None else {})}
    return {
        "schemaVersion": 1,
        "target": inputs.target,
        "counter": facts.counter,
        "created": rfc3339(facts.created),
        "contentId": str(inputs.content_id),
        "base": {"reference": pinned_base(inputs), "digest": {"sha256": inputs.base_digest.hex}},
        "publish": {"repository": facts.repository},
        "overlays": [
            {
                "name": overlay.name,
                "upstreamStatus": overlay.upstream_status,
                "forwarded": overlay.forwarded,
                "license": overlay.license,
                "patches": [
                    {"sha256": str(change["digest"]).removeprefix("sha256:")}
                    for change in wanted.get(overlay.name, {}).get("changes", ())
                    if change["kind"] == "patch"
                ],
            }
            for overlay in overlays
        ],
        "waiver": waiver,
        "evidence": [item.to_json() for item in facts.evidence],
        "notProven": sorted({path for platform in inputs.platforms for path in platform.not_proven}),
        "tool": {"name": "imagebuild", "version": __version__},
        "source": {"gitCommit": facts.source_commit},
        **facts.more,
    }


def release_statement(lock: Lock, overlays: Sequence[Overlay], facts: ReleaseFacts) -> Statement:
    """The statement whose subjects are the index and every platform's manifest."""
    digests = {lock.result.digest: "index" if lock.inputs.is_index else str(lock.result.platforms[0].platform)}
    for platform in lock.result.platforms:
        digests.setdefault(platform.manifest, str(platform.platform))
    subjects = tuple(Subject(digest, name) for digest, name in digests.items())
    return Statement(subjects, RELEASE, release_predicate(lock, overlays, facts))
