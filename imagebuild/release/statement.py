"""The release statement: what this release says, under which counter and time."""

from __future__ import annotations

from typing import Any

from imagebuild.attest.evidence import gather
from imagebuild.attest.predicates.release import ReleaseEvidence, ReleaseFacts, release_statement
from imagebuild.attest.predicates.types import RELEASE
from imagebuild.attest.release_file import FILE_NAME, VerifiedRelease, load_release
from imagebuild.attest.statement import Statement
from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.host.clock import parse_rfc3339
from imagebuild.release.evidence import UNSIGNED
from imagebuild.release.source_commit import source_commit
from imagebuild.release.state import Release

_OF_A_RUN = ("counter", "created", "source")
"""Fields that two runs of one release may fill in differently; the first one's words stand."""


def release_path(release: Release) -> Any:
    """manifests/TARGET/release.dsse.json."""
    return release.request.target.folder / FILE_NAME


def existing_release(release: Release) -> VerifiedRelease | None:
    """The release on record, None where there is none.

    Raises RefusedError `release.unverifiable-manifest` where no trusted key signed it: its counter would be anybody's word.
    """
    path = release_path(release)
    if not path.is_file():
        return None
    try:
        return load_release(path, [item.key for item in release.request.trusted])
    except RefusedError as error:
        raise RefusedError(
            "release.unverifiable-manifest",
            f"{path} is there, and no trusted key signed it: {error.message}",
            expected=", ".join(str(item) for item in release.request.trusted) or "a key",
            found=error.found,
            hint="name the key that signed it in the policy, so that the counter goes on from there; or remove the file",
        ) from error


def planned_release(release: Release) -> Statement:
    """The statement of this release.  The one on record, word for word, where it says the same, or the one that another
    machine put beside the published image; else with the next counter and the time at which this release was begun.
    Raises as `existing_release`."""
    request, there = release.request, existing_release(release)
    facts = _facts(release, 1, 0, None)
    made = release_statement(request.lock, request.overlays, facts)
    counter = 1
    if there is not None:
        if there.statement.subjects == made.subjects and _same(there.statement.value, made.value):
            return there.statement
        counter = max(1, int(there.statement.value["counter"])) + 1
    published = _published(release, made)
    if published is not None and int(published.value["counter"]) >= counter:
        return published
    id = Digest.of(
        canonical_json(
            {"counter": counter, "says": _said(made.value), "images": [str(s.digest) for s in made.subjects]}
        )
    )
    created = release.journal.created(id, request.now, record=not release.planned)
    commit = source_commit(release.tools.workspace.root, _sources(release))
    return release_statement(request.lock, request.overlays, _facts(release, counter, created, commit))


def _published(release: Release, made: Statement) -> Statement | None:
    """What a trusted key says beside the published image, in the same words as `made`; of several the highest counter.  What
    cannot be read is not there: the release then says it once more."""
    place = release.published_place
    if place is None:
        return None
    (found,) = gather(place.source, release.request.subjects[:1], release.request.trusted)
    same = [
        item.statement
        for item in found.of_type(RELEASE)
        if item.statement.subjects == made.subjects
        and isinstance(item.statement.value.get("counter"), int)
        and _same(item.statement.value, made.value)
    ]
    return max(same, key=lambda statement: int(statement.value["counter"]), default=None)


def created_of(statement: Statement) -> int:
    """Seconds since 1970."""
    return parse_rfc3339(str(statement.value["created"])) or 0


def _said(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in _OF_A_RUN}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return _said(one) == _said(other)


def _facts(release: Release, counter: int, created: int, commit: str | None) -> ReleaseFacts:
    request = release.request
    waiver = None if release.waiver is None else (release.waiver["number"], release.waiver["expires"])
    evidence = [
        ReleaseEvidence(check, item.verdict, item.digest, signed=item.origin != UNSIGNED)
        for check, items in (release.good_evidence() or {}).items()
        for item in items
    ]
    repository = None if request.repository is None else str(request.repository)
    return ReleaseFacts(counter, created, repository, waiver, evidence, commit)


def _sources(release: Release) -> list[Any]:
    """What the image is made from: target, lock and content, and every overlay."""
    space, request = release.tools.workspace, release.request
    name = request.name
    return [
        space.target_path(name),
        space.lock_path(name),
        space.content_path(name),
        *(space.overlay_path(overlay.name) for overlay in request.overlays),
    ]
