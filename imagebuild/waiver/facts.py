"""What a target's lock says of its changes: the facts that a waiver states, never retyped (waivers.md, rule 3).

Only the lock, the overlays and the target speak here.  What follows from a change by itself (RECORD, bytecode, the
provenance file, folders) is kept apart under `derived`: it needs no row of its own, and it is not hidden either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuild.attest.predicates.types import RELEASE
from imagebuild.build.asked import asked_paths
from imagebuild.build.locked import refuse_stale
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.document import (
    BlobChange,
    DeleteChange,
    EnvChange,
    Overlay,
    StageChange,
    WheelChange,
    guards_for,
)
from imagebuild.overlay.paths import Glob
from imagebuild.target.document import Target
from imagebuild.target.lock import load_lock
from imagebuild.target.lock_types import Lock, PlatformInputs
from imagebuild.target.workspace import Workspace

FOLLOWS = ("record", "bytecode", "provenance", "sbom", "parent", "removed")
"""Origins of entries that follow from a change without being one."""
SINGLE = ("change", "blob", "stage")
"""Origins `KIND:ROOT/relative`: one path that an overlay names."""


@dataclass(frozen=True, slots=True)
class PatchedItem:
    """One thing that the image has other than its base.

    `kind`: file, deletion, symlink, pin, blob, stage, environment.  `name` is the ROOT/relative path, the distribution of
    a pin, the variable of a default; `before` and `after` are what a reader compares: `sha256:…`, `absent`, a version, a
    value (None: the lock does not say it).  `overlays` are those that touch it, `upstream` their pull requests or
    issues, `note` what is worth saying beside it.
    """

    kind: str
    name: str
    path: str
    before: str | None
    after: str | None
    overlays: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    note: str = ""
    platforms: tuple[Platform, ...] = ()


@dataclass(frozen=True, slots=True)
class DerivedItem:
    """An entry that follows from the changes: its path, and `record`, `bytecode`, `provenance`, `sbom` or another origin."""

    path: str
    origin: str


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Everything that a waiver says of one target.  `image` is the pinned reference that it publishes, None where it
    publishes nothing; `lock_digest` is that of the committed file; `release` names the release file that speaks of this image,
    None where there is none (nobody's signature is verified here)."""

    target: Target
    overlays: tuple[Overlay, ...]
    lock: Lock
    lock_digest: Digest
    items: tuple[PatchedItem, ...]
    derived: tuple[DerivedItem, ...]
    release: str | None = None

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def base_digests(self) -> frozenset[Digest]:
        """What names the unmodified image: the pinned digest, and each platform's manifest."""
        return frozenset({self.lock.inputs.base_digest, *(p.manifest for p in self.lock.inputs.platforms)})

    @property
    def image_digests(self) -> frozenset[Digest]:
        """What names the patched image: index and manifests."""
        return frozenset({self.lock.result.digest, *(p.manifest for p in self.lock.result.platforms)})

    @property
    def image(self) -> str | None:
        if self.target.publish is None:
            return None
        tag = self.target.index_tag(self.lock.result.content_id)
        return f"{self.target.publish.repository}:{tag}@{self.lock.result.digest}"


def is_upstream_link(url: str) -> bool:
    """Whether an address is a pull request, a merge request or an issue (and not a repository or a page)."""
    return any(part in url for part in ("/pull/", "/issues/", "/merge_requests/", "/-/issues/"))


def upstream_of(overlay: Overlay) -> tuple[str, ...]:
    """The pull requests and issues that an overlay names: `forwarded`, `origin.url`, `applied_upstream`."""
    named = (overlay.forwarded, overlay.origin.url if overlay.origin else None, overlay.applied_upstream)
    return tuple(dict.fromkeys(url for url in named if url and url.startswith("http") and is_upstream_link(url)))


def load_facts(workspace: Workspace, name: str, notes: Mapping[str, str] | None = None) -> TargetFacts:
    """The facts of target `name`.  Raises RefusedError `lock.missing`, `lock.stale`, and what loading raises."""
    target = workspace.target(name)
    overlays = workspace.series(target)
    path = workspace.lock_path(name)
    lock = refuse_stale(load_lock(path), target, overlays, path)
    items = collect_items(overlays, lock, notes or {})
    release = _release_of(lock, target.folder)
    shown = None if release is None else workspace.shown(release)
    return TargetFacts(target, overlays, lock, Digest.of(path.read_bytes()), items, collect_derived(lock), shown)


def _release_of(lock: Lock, folder: Path) -> Path | None:
    """The target's release file, where the statement in it names the lock's image."""
    from imagebuild.attest.dsse import Envelope, VerifiedPayload
    from imagebuild.attest.release_file import FILE_NAME
    from imagebuild.attest.statement import read_statement

    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        envelope = Envelope.parse(path.read_bytes(), str(path))
        statement = read_statement(VerifiedPayload(envelope.payload, frozenset()))
    except (OSError, ImagebuildError):
        return None
    return path if statement.predicate_type == RELEASE and statement.names(lock.result.digest) else None


def collect_items(overlays: Sequence[Overlay], lock: Lock, notes: Mapping[str, str]) -> tuple[PatchedItem, ...]:
    """Every change of the lock, equal ones of several platforms as one, in the order environment, pins, paths."""
    seen: dict[tuple[object, ...], list[Platform]] = {}
    first: dict[tuple[object, ...], PatchedItem] = {}
    for platform in lock.inputs.platforms:
        for item in _platform_items(overlays, platform, notes):
            key: tuple[object, ...] = (item.kind, item.name, item.before, item.after)
            seen.setdefault(key, []).append(platform.platform)
            first.setdefault(key, item)
    every = len(lock.inputs.platforms)
    out = []
    for key, item in first.items():
        platforms = () if len(seen[key]) == every else tuple(seen[key])
        out.append(
            PatchedItem(
                item.kind,
                item.name,
                item.path,
                item.before,
                item.after,
                item.overlays,
                item.upstream,
                item.note,
                platforms,
            )
        )
    order = {"environment": 0, "pin": 1}
    return tuple(sorted(out, key=lambda x: (order.get(x.kind, 2), x.name, [str(p) for p in x.platforms])))


def collect_derived(lock: Lock) -> tuple[DerivedItem, ...]:
    """What follows from the changes, over all platforms; folders and what a pin brings are not listed one by one."""
    found = {
        DerivedItem(item.path, origin)
        for platform in lock.inputs.platforms
        for item in (*platform.artefacts, *platform.changes)
        if (origin := item.origin.partition(":")[0]) in ("record", "bytecode", "provenance", "sbom")
        and not (origin == "bytecode" and item in platform.artefacts)
    }
    return tuple(sorted(found, key=lambda item: (item.origin, item.path)))


def _word(digest: Digest | None) -> str:
    return "absent" if digest is None else str(digest)


def _platform_items(
    overlays: Sequence[Overlay], platform: PlatformInputs, notes: Mapping[str, str]
) -> list[PatchedItem]:
    out = []

    def add(kind: str, name: str, path: str, before: str | None, after: str | None, by: Sequence[Overlay]) -> None:
        links = tuple(dict.fromkeys(url for overlay in by for url in upstream_of(overlay)))
        names = tuple(overlay.name for overlay in by)
        out.append(PatchedItem(kind, name, path, before, after, names, links, notes.get(name, "")))

    for name, value in platform.environment:
        by = [o for o in overlays if any(isinstance(c, EnvChange) and name in c.env for c in o.changes)]
        add("environment", name, "", None, value, by)
    for source in platform.sources:
        if source.kind == "wheel":
            by = [
                o
                for o in overlays
                if any(isinstance(c, WheelChange) and _same_name(c.name, source.name) for c in o.changes)
            ]
            add("pin", f"{source.name}=={source.version}", source.name, None, str(source.sha256), by)
    for item in (*platform.artefacts, *platform.changes):
        origin, _, name = item.origin.partition(":")
        if origin in FOLLOWS or origin == "wheel":
            continue
        # an origin that is not known here is shown under its path of the image: nothing is left out in silence
        name = name if origin in SINGLE else item.path
        kind = {"whiteout": "deletion", "symlink": "symlink"}.get(item.kind, origin if origin != "change" else "file")
        after = "absent" if item.kind == "whiteout" else item.link if item.kind == "symlink" else _word(item.postimage)
        by = [o for o in overlays if _touches(o, name, platform.platform)] or (
            list(overlays) if len(overlays) == 1 else []
        )
        add(kind, name, item.path, _word(item.preimage), after, by)
    return out


def _same_name(one: str, other: str) -> bool:
    return one.lower().replace("_", "-") == other.lower().replace("_", "-")


def _touches(overlay: Overlay, name: str, platform: Platform) -> bool:
    asked = asked_paths([overlay], platform)
    if name in asked.named or name in guards_for(overlay, platform):
        return True
    return any(
        (isinstance(change, BlobChange) and change.path == name)
        or (isinstance(change, StageChange) and name in change.out.values())
        or (isinstance(change, DeleteChange) and change.glob is not None and Glob(change.glob).matches(name))
        for change in overlay.changes
    )
