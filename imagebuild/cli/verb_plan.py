"""Show what lock and build would do: layers, files with their guard states, requests and bytes.

Example:
  imagebuild plan b300-vllm
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="+", metavar="TARGET")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.targets import each_target

    return each_target(session, arguments.targets, "plan", lambda name: _plan(name, session))


def _plan(name: str, session: Session) -> tuple[int, Mapping[str, Any], str]:
    from imagebuild.build.locked import stale_parts
    from imagebuild.build.planning import plan_locked, plan_text, plan_unlocked
    from imagebuild.cli.targets import load_target_and_series
    from imagebuild.oci.tree import read_image_tree
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
    if lock is not None and not (stale := stale_parts(lock, target, loaded.overlays)):
        plan = plan_locked(lock)
    else:
        if lock is not None:
            session.output.note(f"{name}: the lock is stale ({'; '.join(stale)}): planning from the base")
        opener = session.opener(session.workspace.root)
        assert target.base.digest is not None
        plan = plan_unlocked(target, read_image_tree(opener.source(target.base), target.base.digest, target.platforms))
    return 0, {"kind": "plan", "schemaVersion": 1, **plan}, plan_text(plan)
