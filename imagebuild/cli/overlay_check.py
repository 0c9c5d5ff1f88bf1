"""Apply overlays again, offline, to what the locks keep of their bases.

Every guard is checked; nothing is fetched and nothing is written.

Example:
  imagebuild overlay check my-fix
"""

from __future__ import annotations

import argparse
from typing import Any

from imagebuild.cli.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="only targets that list this overlay")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.errors import ImagebuildError, worst_exit_code

    workspace = session.workspace
    overlays = [arguments.name] if arguments.name else list(workspace.overlays())
    for name in overlays:
        workspace.overlay(name)
    checks: list[dict[str, Any]] = []
    codes = [0]
    used: set[str] = set()
    for name in workspace.targets():
        target = workspace.target(name)
        if not set(target.overlays) & set(overlays):
            continue
        used |= set(target.overlays)
        try:
            checks += _check(name, session)
        except ImagebuildError as error:
            codes.append(error.exit_code)
            session.output.error_lines(error)
            checks.append({"target": name, "passed": False, "code": error.code, "message": error.message})
    for name in sorted(set(overlays) - used):
        checks.append({"overlay": name, "passed": None, "message": "no target lists it: only its files were read"})
    code = worst_exit_code(codes)
    lines = [
        f"{ {True: 'passed', False: 'failed', None: 'not-checked'}[item['passed']]:<11}  {item.get('target') or item.get('overlay')}"
        f" {item.get('platform', '')} {item.get('message', '')}".rstrip()
        for item in checks
    ]
    document = {"kind": "overlay-check", "schemaVersion": 1, "passed": code == 0, "checks": checks}
    session.output.answer(document, "\n".join(lines))
    return code


def _check(name: str, session: Session) -> list[dict[str, Any]]:
    from imagebuild.build.asked import asked_paths
    from imagebuild.build.locked import apply_locked, change_bytes
    from imagebuild.build.series_artefacts import bring_at_hand
    from imagebuild.cli.targets import artefacts_of, contents_of, current_lock, load_target_and_series
    from imagebuild.errors import UnavailableError
    from imagebuild.target.lock_types import PathFact

    loaded = load_target_and_series(session, name)
    lock = current_lock(session, loaded)
    contents = contents_of(session, name)
    store = artefacts_of(session, None)

    def offline(fact: PathFact) -> bytes:
        raise UnavailableError(
            "overlay.preimage-unavailable",
            f"{fact.path} of the base is not kept here",
            hint=f"imagebuild lock {name}, where the base can be reached",
        )

    out = []
    for platform in lock.inputs.platforms:
        asked = asked_paths(loaded.overlays, platform.platform)
        applied = apply_locked(
            platform, lock.inputs, loaded.overlays, contents, asked.whole, offline, bring_at_hand(store, asked.whole)
        )
        files = change_bytes(platform, applied)
        out.append(
            {
                "target": name,
                "platform": str(platform.platform),
                "passed": True,
                "message": f"{len(files)} files, every guard holds",
            }
        )
    return out
