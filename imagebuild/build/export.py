"""The same change for the pristine image: from a lock to the plan of an exported script (cli.md, `export`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imagebuild.build.asked import asked_paths
from imagebuild.build.base_documents import load_base
from imagebuild.build.building import BaseFiles
from imagebuild.build.contents import Contents
from imagebuild.build.derived import PROVENANCE, RECORD, derived_files
from imagebuild.build.export_text import dockerfile_text, script_text
from imagebuild.build.locked import apply_locked, change_bytes
from imagebuild.content.digest import Digest
from imagebuild.content.text import size_text
from imagebuild.errors import RefusedError
from imagebuild.oci.documents import ImageConfig
from imagebuild.oci.reference import DigestReference
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.patch_make import is_text, make_diff
from imagebuild.target.document import Target
from imagebuild.target.lock_types import LayerItem, Lock, PathFact, PlatformInputs

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
        self, lock: Lock, target: Target, overlays: Sequence[Overlay], contents: Contents, base_files: BaseFiles
    ) -> None:
        self.lock = lock
        self.target = target
        self.overlays = overlays
        self.contents = contents
        self.base_files = base_files
        self.bodies: dict[str, bytes] = {}

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
        files = self._files(platform)
        facts = {fact.path: fact for fact in platform.facts}
        items = {item.path: item for item in platform.changes}
        bytecode = [
            [item.path, item.origin.removeprefix(BYTECODE)]
            for item in items.values()
            if item.origin.startswith(BYTECODE)
        ]
        steps = [
            self._step(item, files, facts.get(item.path))
            for item in sorted(items.values(), key=_order)
            if not item.origin.startswith(BYTECODE)
        ]
        return {
            "roots": [
                [root.name, self._module(root.name), root.folder, root.site or root.folder] for root in platform.roots
            ],
            "environment": [list(pair) for pair in platform.environment],
            "wheels": [],
            "bytecode": bytecode,
            "steps": steps,
        }

    def _module(self, root: str) -> str:
        spec = self.target.roots.get(root)
        return "" if spec is None or spec.python is None else spec.python

    def _files(self, platform: PlatformInputs) -> dict[str, bytes]:
        def read(fact: PathFact) -> bytes:
            return self.base_files.read(platform, fact)

        whole = asked_paths(self.overlays, platform.platform).whole
        applied = apply_locked(platform, self.lock.inputs, self.overlays, self.contents, whole, read)
        return {
            **change_bytes(platform, applied),
            **derived_files(self.lock.inputs, platform, self.contents, read),
        }

    def _step(self, item: LayerItem, files: Mapping[str, bytes], fact: PathFact | None) -> dict[str, Any]:
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
            data = files[item.path]
            step["after"] = str(Digest.of(data))
            step["body"] = self._body(item, data)
        return step

    def _body(self, item: LayerItem, data: bytes) -> list[str]:
        """A patch where the base's file is at hand and a patch is the smaller one, else the whole file."""
        before = None if item.preimage is None else self.contents.get(item.preimage)
        if before is not None and is_text(before) and is_text(data):
            diff = make_diff(item.path.lstrip("/"), before, data)
            if len(diff) < len(data):
                return ["patch", self._keep(diff)]
        return ["whole", self._keep(data)]

    def _keep(self, data: bytes) -> str:
        key = Digest.of(data).hex[:16]
        self.bodies[key] = data
        return key

    def _refuse_large(self) -> None:
        total = sum(map(len, self.bodies.values()))
        if total > BODY_LIMIT:
            raise RefusedError(
                "export.too-large",
                f"{self.target.name}: the changed files do not fit into one script",
                expected=f"at most {size_text(BODY_LIMIT)}",
                found=size_text(total),
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
