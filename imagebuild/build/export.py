"""The same change for the pristine image: from a lock to the plan of an exported script (cli.md, `export`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.base_documents import load_base
from imagebuild.build.building import BaseFiles, platform_files
from imagebuild.build.contents import Contents
from imagebuild.build.derived import PROVENANCE, RECORD
from imagebuild.build.export_text import dockerfile_text, script_text
from imagebuild.build.image import PlatformFiles
from imagebuild.build.layer_data import BytesData
from imagebuild.content.digest import Digest
from imagebuild.content.text import size_text
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Data
from imagebuild.oci.documents import ImageConfig
from imagebuild.oci.reference import DigestReference
from imagebuild.overlay.changes import WheelChange
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.patch_make import is_text, make_diff
from imagebuild.overlay.wheel_archive import sha256_of
from imagebuild.overlay.wheel_install import MemberData
from imagebuild.target.document import Target
from imagebuild.target.lock_types import ArtefactSource, LayerItem, Lock, PathFact, PlatformInputs

BODY_LIMIT = 4 << 20
"""Bytes of patches and whole files that one script may carry."""
BYTECODE = "bytecode:"


@dataclass(frozen=True, slots=True)
class Export:
    """What a script or Dockerfile is written from: `platforms` and `bodies` as build.exported.plan describes them, `summary`
    what people read at its head, `users` and `environments` by platform."""

    target: str
    content_id: Digest
    base: str
    summary: tuple[str, ...]
    platforms: Mapping[str, Any]
    bodies: Mapping[str, bytes] = field(repr=False)
    users: frozenset[str]
    environments: frozenset[tuple[tuple[str, str], ...]]
    in_registry: bool

    @property
    def paths(self) -> int:
        """Paths that are changed, over all platforms; removed bytecode is not counted."""
        return len({step["path"] for plan in self.platforms.values() for step in plan["steps"]})

    def script(self) -> bytes:
        """One file for the Python of the container."""
        return script_text(
            target=self.target,
            content_id=str(self.content_id),
            base=self.base,
            summary=self.summary,
            platforms=self.platforms,
            bodies=self.bodies,
        )

    def dockerfile(self) -> bytes:
        """One Dockerfile.  Raises RefusedError `export.platforms-differ` where no single one says it."""
        if len(self.users) > 1 or len(self.environments) > 1:
            raise RefusedError(
                "export.platforms-differ",
                f"{self.target}: the base's user or the environment to set is another one on each platform",
                hint=f"imagebuild export {self.target} --as dockerfile --platform PLATFORM",
            )
        return dockerfile_text(
            self.script(),
            base=self.base if self.in_registry else None,
            user=next(iter(self.users)),
            environment=next(iter(self.environments)),
            summary=self.summary,
        )


class Exporter:
    """Makes the export of one current lock.  Reads the base only for what content folder and cache lack."""

    def __init__(
        self,
        lock: Lock,
        target: Target,
        overlays: Sequence[Overlay],
        contents: Contents,
        base_files: BaseFiles,
        store: ArtefactStore,
    ) -> None:
        self.lock = lock
        self.target = target
        self.overlays = overlays
        self.contents = contents
        self.base_files = base_files
        self.store = store
        self.bodies: dict[str, bytes] = {}
        self._digests: dict[Path, Digest] = {}

    def export(self, platforms: Iterable[PlatformInputs]) -> Export:
        """Raises RefusedError `export.unguarded` for the deletion of a whole folder, `export.too-large`, and as a build."""
        inputs = self.lock.inputs
        base = load_base(inputs, self.contents, self.base_files.source)
        plans, users, environments = {}, set(), set()
        for platform in platforms:
            name = str(platform.platform)
            plans[name] = self._plan(platform)
            users.add(_user(base.configs[name]))
            environments.add(platform.environment)
        self._refuse_large()
        return Export(
            inputs.target,
            inputs.content_id,
            f"{inputs.base}@{inputs.base_digest}",
            tuple(self._summary(plans)),
            plans,
            self.bodies,
            frozenset(users),
            frozenset(environments),
            isinstance(self.target.base, DigestReference),
        )

    def _plan(self, platform: PlatformInputs) -> dict[str, Any]:
        inputs = self.lock.inputs
        files = platform_files(inputs, platform, self.overlays, self.contents, self.base_files, self.store)
        facts = {fact.path: fact for fact in platform.facts}
        wheels = [source for source in platform.sources if source.kind == "wheel"]
        shown = [self._wheel(source, platform) for source in wheels]
        items = merged_items(platform)
        return {
            "roots": [
                [root.name, self._module(root.name), root.folder, root.site or root.folder] for root in platform.roots
            ],
            "environment": [list(pair) for pair in platform.environment],
            "wheels": shown,
            "bytecode": [
                [item.path, item.origin.removeprefix(BYTECODE)] for item in items if item.origin.startswith(BYTECODE)
            ],
            "steps": [
                self._step(item, files, facts.get(item.path), [source.sha256 for source in wheels])
                for item in items
                if not item.origin.startswith(BYTECODE)
            ],
        }

    def _wheel(self, source: ArtefactSource, platform: PlatformInputs) -> dict[str, Any]:
        shown: dict[str, Any] = {"requirement": f"{source.name}=={source.version}", "sha256": str(source.sha256)}
        for overlay in self.overlays:
            for change in overlay.changes:
                if isinstance(change, WheelChange) and change.sha256.get(platform.platform) == source.sha256:
                    address = change.address(platform.platform)
                    return shown if address is None else {**shown, "url": address}
        return shown

    def _module(self, root: str) -> str:
        spec = self.target.roots.get(root)
        return "" if spec is None or spec.python is None else spec.python

    def _step(
        self, item: LayerItem, files: PlatformFiles, fact: PathFact | None, wheels: Sequence[Digest]
    ) -> dict[str, Any]:
        if item.kind == "whiteout":
            return whiteout_step(item, fact)
        step: dict[str, Any] = {"path": item.path, "kind": item.kind}
        if item.preimage is not None:
            step["before"] = str(item.preimage)
        if item.kind == "symlink":
            return {**step, "link": item.link}
        step.update(mode=item.mode, uid=item.uid, gid=item.gid, mtime=item.mtime)
        if item.xattrs:
            step["xattrs"] = dict(item.xattrs)
        if item.kind == "file":
            changed = files.changes.get(item.path)
            data: Data = files.artefacts[item.path] if changed is None else BytesData(changed)
            step["after"] = str(data.sha256)
            step["body"] = self._body(item, data, wheels)
        return step

    def _body(self, item: LayerItem, data: Data, wheels: Sequence[Digest]) -> list[Any]:
        """A member of a wheel as it is; a patch where the base's file is at hand and a patch is the smaller one; else the whole
        file."""
        if isinstance(data, MemberData):
            path = data.archive.path
            if path not in self._digests:
                self._digests[path] = sha256_of(path)
            return [wheels.index(self._digests[path]), data.name]
        if data.size > BODY_LIMIT:
            raise self._too_large(item.path, data.size)
        with data.open() as stream:
            after = stream.read()
        before = None if item.preimage is None else self.contents.get(item.preimage)
        if before is not None and is_text(before) and is_text(after):
            diff = make_diff(item.path.lstrip("/"), before, after)
            if len(diff) < len(after):
                return ["patch", self._keep(diff)]
        return ["whole", self._keep(after)]

    def _keep(self, data: bytes) -> str:
        key = Digest.of(data).hex[:16]
        self.bodies[key] = data
        return key

    def _refuse_large(self) -> None:
        total = sum(map(len, self.bodies.values()))
        if total > BODY_LIMIT:
            raise self._too_large("the changed files together", total)

    def _too_large(self, what: str, size: int) -> RefusedError:
        return RefusedError(
            "export.too-large",
            f"{self.target.name}: {what} would not fit into one script",
            expected=f"at most {size_text(BODY_LIMIT)}",
            found=size_text(size),
            hint=f"ship the image: imagebuild build {self.target.name} --push",
        )

    def _summary(self, plans: Mapping[str, Any]) -> Iterable[str]:
        inputs = self.lock.inputs
        yield f"Changes {inputs.base}@{inputs.base_digest}"
        yield f"in place into what imagebuild built as {inputs.target}, file for file."
        yield ""
        yield f"content id: {inputs.content_id}"
        for overlay in self.overlays:
            yield f"overlay: {overlay.name}: {overlay.description.strip().splitlines()[0]}"
        for platform, plan in plans.items():
            yield f"{platform}: {len(plan['steps'])} paths, bytecode of changed sources is removed"
        yield ""
        yield "Run it with the engine's Python in the pristine container, before the engine starts.  It stops with 1, and has"
        yield "written nothing, where a file is neither as that base nor as the image has it."


def merged_items(platform: PlatformInputs) -> list[LayerItem]:
    """What both layers together do to each path, as one step from what the base has, in the order of writing."""
    brought = {item.path: item for item in platform.artefacts}
    out = dict(brought)
    for item in platform.changes:
        below = brought.get(item.path)
        if below is not None and item.kind == "whiteout" and below.preimage is None:
            del out[item.path]
        else:
            out[item.path] = item if below is None else replace(item, preimage=below.preimage)
    return sorted(out.values(), key=_order)


def whiteout_step(item: LayerItem, fact: PathFact | None) -> dict[str, Any]:
    """The step of a deletion, by the digest or the link text that the lock knows.  Raises RefusedError `export.unguarded` where it
    knows neither."""
    step: dict[str, Any] = {"path": item.path, "kind": item.kind}
    if item.preimage is not None:
        step["before"] = str(item.preimage)
    elif fact is not None and fact.kind == "symlink":
        step["before_link"] = fact.link
    else:
        raise RefusedError(
            "export.unguarded",
            f"{item.path} is deleted with everything in it, and no guard says what that is",
            hint="delete its files instead, by a glob with a count; or ship the image",
            details={"path": item.path},
        )
    return step


def _user(config: ImageConfig) -> str:
    found = config.section.get("User")
    return found if isinstance(found, str) and found not in ("root", "0", "0:0", "root:root") else ""


def _order(item: LayerItem) -> tuple[int, bytes]:
    """Folders first (upper ones before lower), deletions, files and links, then RECORDs, and the note of what was done last."""
    late = 4 if item.origin.startswith(PROVENANCE) else 3 if item.origin.startswith(RECORD) else 2
    rank = {"directory": 0, "whiteout": 1}.get(item.kind, late)
    return rank, item.path.encode("utf-8", "surrogateescape")
