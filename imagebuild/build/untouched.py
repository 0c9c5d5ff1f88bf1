"""Packages of the base that a target promises to leave alone (`untouched` in target.yaml): refused when locking, proved in verify."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from imagebuild.build.layer_data import image_path
from imagebuild.build.verification import Check
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Kind, LayerFacts
from imagebuild.overlay.distributions import Distributions
from imagebuild.overlay.roots import Root
from imagebuild.target.lock_types import LayerItem, RootFact


def refuse_touched(
    names: Collection[str], roots: Sequence[Root], distributions: Distributions, items: Iterable[LayerItem]
) -> None:
    """Raises RefusedError `lock.touched` where an entry of ours lies in a root that is to stay untouched, in its dist-info, or at a
    path that its RECORD lists."""
    for root in roots:
        if root.name not in names:
            continue
        owner = root.distribution
        folders = [root.folder] if owner is None else [root.folder, owner.info]
        found = [
            item.path
            for item in items
            if _below(item.path.lstrip("/"), folders)
            or (owner is not None and owner in distributions.owners(item.path.lstrip("/")))
        ]
        if found:
            raise RefusedError(
                "lock.touched",
                f"{root.name} is to stay untouched, and the overlays change it: " + ", ".join(sorted(found)[:5]),
                expected=f"no entry of ours in {', '.join(map(image_path, folders))}",
                found=f"{len(found)} of them",
                hint="take the change out of the target's overlays, or the root out of `untouched`",
                details={"paths": sorted(found)},
            )


def untouched_checks(
    names: Sequence[str], roots: Sequence[RootFact], layers: Sequence[LayerFacts | None], base: Check, platform: str
) -> list[Check]:
    """One check for each root that is to stay untouched, from the layers above the base as they were read (None: could not be read).
    `base` is the check that the base's own layers are there unchanged: without it nothing is proved."""
    out = []
    for root in roots:
        if root.name not in names:
            continue
        folders = [path.lstrip("/") for path in (root.folder, root.dist_info) if path]
        shown = " or ".join(image_path(folder) for folder in folders)
        what = f"no file of {root.name} is touched: no entry of our layers lies in {shown} ({platform})"
        found = sorted({path for facts in layers if facts is not None for path in _touching(facts, folders)})
        if found:
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            where = ", ".join(map(image_path, found[:5])) + more
            out.append(Check("verify.untouched", False, what, "none", where))
        else:
            known = base.passed if all(facts is not None for facts in layers) else None
            out.append(Check("verify.untouched", known, what))
    return out


def _touching(facts: LayerFacts, folders: Sequence[str]) -> Iterable[str]:
    """Entries in or over one of the folders: what lies below, what hides it, and what stands in the place of a folder above."""
    for path, entry in facts.entries.items():
        if _below(path, folders) or (entry.kind is not Kind.DIRECTORY and _above(path, folders)):
            yield path
    for path in (*facts.whiteouts, *facts.opaques):
        if _below(path, folders) or _above(path, folders):
            yield path


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _above(path: str, folders: Sequence[str]) -> bool:
    return any(folder.startswith(path + "/") for folder in folders)
