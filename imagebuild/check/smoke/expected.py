"""What a lock says that must be found inside the running image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagebuild.build.derived import PROVENANCE, provenance_files
from imagebuild.content.digest import Digest
from imagebuild.target.lock_types import ArtefactSource, Inputs, LayerItem, PlatformInputs, RootFact


@dataclass(frozen=True, slots=True)
class ExpectedPath:
    """One changed path of the image.  `after` and `before` are digests of its data (None: nothing stands there); `link`
    the target of a symbolic link; `module` the name by which Python must import it ("" where the lock knows none)."""

    path: str
    after: Digest | None
    before: Digest | None
    link: str = ""
    module: str = ""

    def agrees(self, found: Mapping[str, Any]) -> bool:
        """Whether what `launch` read at the path is the patched state."""
        if self.link:
            return found.get("state") == "link" and found.get("link") == self.link
        return _is(self.after, found)

    def is_base(self, found: Mapping[str, Any]) -> bool:
        """Whether it is the base's state; a link of the base is not compared."""
        return found.get("state") == "link" or _is(self.before, found)


def _is(digest: Digest | None, found: Mapping[str, Any]) -> bool:
    if digest is None:
        return found.get("state") == "absent"
    return found.get("state") == "file" and found.get("sha256") == str(digest)


@dataclass(frozen=True, slots=True)
class Expected:
    """What one platform's image must show.  `provenance` are its provenance files by path; `versions` those that
    distributions must report; `replaced` the distributions whose metadata a layer of ours touches."""

    content_id: Digest
    base_digest: Digest
    provenance: Mapping[str, Digest]
    paths: tuple[ExpectedPath, ...]
    roots: tuple[RootFact, ...]
    versions: Mapping[str, str]
    replaced: frozenset[str]

    @property
    def sources(self) -> tuple[ExpectedPath, ...]:
        """The Python sources that are there after the change."""
        return tuple(one for one in self.paths if one.path.endswith(".py") and one.after is not None)


def expected_of(inputs: Inputs, platform: PlatformInputs) -> Expected:
    """What the lock's inputs promise for one platform."""
    before: dict[str, Digest | None] = {}
    items: dict[str, LayerItem] = {}
    for item in (*platform.artefacts, *platform.changes):
        if item.kind == "directory" or item.origin.startswith(PROVENANCE):
            continue
        before.setdefault(item.path, item.preimage)
        items[item.path] = item
    provenance = provenance_files(inputs, platform.changes, platform.artefacts)
    paths = tuple(
        ExpectedPath(
            path,
            item.postimage if item.kind == "file" else None,
            before[path],
            item.link if item.kind == "symlink" else "",
            module_of(path, platform.roots) if item.kind == "file" else "",
        )
        for path, item in sorted(items.items())
    )
    return Expected(
        inputs.content_id,
        inputs.base_digest,
        {path: Digest.of(data) for path, data in provenance.items()},
        paths,
        platform.roots,
        _versions(inputs, platform),
        frozenset(_replaced(platform.sources, items)),
    )


def module_of(path: str, roots: tuple[RootFact, ...]) -> str:
    """The import name of a source below one of the roots: by its place below the site folder, or, where a root's place
    was named by hand, below a package of the root's name.  "" for what no import could name."""
    if not path.endswith(".py"):
        return ""
    for root in sorted(roots, key=lambda one: len(one.folder), reverse=True):
        if not path.startswith(root.folder.rstrip("/") + "/"):
            continue
        if root.site and path.startswith(root.site.rstrip("/") + "/"):
            below = path[len(root.site.rstrip("/")) + 1 :]
        elif root.folder == root.site:
            below = path[len(root.folder) + 1 :]
        else:
            below = f"{root.name}/{path[len(root.folder.rstrip('/')) + 1 :]}"
        parts = below.removesuffix(".py").split("/")
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else ""
    return ""


def _versions(inputs: Inputs, platform: PlatformInputs) -> dict[str, str]:
    """`identity` of the target, wheels that the image brings, and for the other changed distributions their dist-info."""
    out: dict[str, str] = {}
    for root in platform.roots:
        name, _, version = root.dist_info.rpartition("/")[2].removesuffix(".dist-info").partition("-")
        if root.distribution and name and version and root.dist_info.endswith(".dist-info"):
            out[root.distribution] = version
    out.update({source.name: source.version for source in platform.sources if source.kind == "wheel"})
    out.update(inputs.wanted.get("identity", {}))
    return out


def _replaced(sources: tuple[ArtefactSource, ...], items: Mapping[str, LayerItem]) -> list[str]:
    touched = [path.split("/")[-2] for path in items if path.endswith((".dist-info/METADATA", ".egg-info/PKG-INFO"))]
    names = [name.removesuffix(".dist-info").removesuffix(".egg-info").partition("-")[0] for name in touched]
    return [one.name for one in sources if one.kind == "wheel"] + names
