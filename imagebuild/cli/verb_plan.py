"""Show what lock and build would do: layers, files with their guard states, requests and bytes.

A target with a current lock is planned from it.  Without one the base's documents are asked for; with --offline they are not,
and what locking would fetch is told from what is here.

Examples:
  imagebuild plan b300-vllm
  imagebuild plan b300-vllm-public --offline
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.oci.tree import ImageTree
    from imagebuild.target.document import Target


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    parser.add_argument("--offline", action="store_true", help="ask no network; say what locking would fetch")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.targets import each_target

    return each_target(session, arguments.targets, "plan", lambda name: _plan(name, arguments.offline, session))


def _plan(name: str, offline: bool, session: Session) -> tuple[int, Mapping[str, Any], str]:
    from imagebuild.build.locked import stale_parts
    from imagebuild.build.plan_offline import outside_image, outside_text, plan_here, tags
    from imagebuild.build.planning import plan_locked, plan_text
    from imagebuild.cli.targets import load_target_and_series
    from imagebuild.target.lock import load_lock

    loaded = load_target_and_series(session, name)
    target = loaded.target
    if not target.needs_image:
        recipe = {**target.requires_env, **target.env}
        lines = [f"{name}: no overlay, so no image is needed; these lines belong into the recipe:"]
        lines += [f"  {key}={value}" for key, value in recipe.items()]
        return (
            0,
            {"kind": "plan", "schemaVersion": 1, "target": name, "image_needed": False, "recipe": recipe},
            "\n".join(lines),
        )
    lock = load_lock(session.workspace.lock_path(name))
    content_id = None
    if lock is not None and not (stale := stale_parts(lock, target, loaded.overlays)):
        plan, content_id = plan_locked(lock), lock.result.content_id
        text = plan_text(plan)
    else:
        if lock is not None:
            session.output.note(f"{name}: the lock is stale ({'; '.join(stale)}): planning from the base")
        plan, text = plan_here(target, loaded.overlays, _tree(target, offline, session))
    outside = {**outside_image(target, loaded.overlays), "tags": tags(target, content_id)}
    shown = [text, *outside_text(outside), *(f"tag of {what}: {tag}" for what, tag in outside["tags"].items())]
    return 0, {"kind": "plan", "schemaVersion": 1, **plan, **outside}, "\n".join(shown)


def _tree(target: Target, offline: bool, session: Session) -> ImageTree | None:
    """The base's documents.  Offline those that were kept, and those of a layout that is here."""
    from imagebuild.build.plan_offline import kept_tree
    from imagebuild.cli.targets import contents_of
    from imagebuild.oci.reference import PathReference
    from imagebuild.oci.tree import read_image_tree

    if offline:
        kept = kept_tree(target, contents_of(session, target.name))
        if kept is not None or not isinstance(target.base, PathReference):
            return kept
        if not (session.workspace.root / target.base.path).exists():
            return None
    assert target.base.digest is not None
    opener = session.opener(session.workspace.root)
    return read_image_tree(opener.source(target.base), target.base.digest, target.platforms)
