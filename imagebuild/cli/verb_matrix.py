"""Print what CI runs: target by platform by check, with the labels of the machine that can.

The line is the value of GitHub's `strategy.matrix`.  Builds go to the code host's own machines; smoke and gsm8k go where
sites.yaml says.  A check that no site can run is left out and named on stderr: a release will find it missing.

Examples:
  imagebuild matrix                                  every target, every check
  imagebuild matrix --check smoke --site cluster
  echo "smoke=$(imagebuild matrix --check smoke)" >> "$GITHUB_OUTPUT"
"""

from __future__ import annotations

import argparse
import json

from imagebuild.cli.session import Session

CHECKS = ("build", "smoke", "gsm8k")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="targets (default: every target here)")
    parser.add_argument("--site", metavar="SITE", help="run the checks at this site (default: as sites.yaml says)")
    parser.add_argument(
        "--check", action="append", choices=CHECKS, default=[], help="these checks only; may be repeated"
    )
    parser.add_argument(
        "--hosted", action="append", metavar="LABEL", default=[], help="labels for builds (default: ubuntu-24.04)"
    )


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.target.matrix import HOSTED, JOBS_LIMIT, plan_matrix
    from imagebuild.target.site import choose_site, load_sites

    workspace = session.workspace
    names = list(dict.fromkeys(arguments.targets)) or list(workspace.targets())
    targets = [workspace.target(name) for name in names]
    sites = load_sites(workspace.sites_path) if workspace.sites_path.is_file() or arguments.site else {}
    if arguments.site:
        sites = {arguments.site: choose_site(sites, arguments.site)}
    unlocked = [name for name in names if not workspace.lock_path(name).is_file()]
    matrix = plan_matrix(targets, sites, arguments.check or CHECKS, arguments.hosted or [HOSTED], unlocked)
    for one in matrix.left_out:
        session.output.note(f"left out: {one.target} {one.check} on {one.platform}: {one.reason}")
    if len(matrix.jobs) > JOBS_LIMIT:
        session.output.warn(
            f"{len(matrix.jobs)} jobs, and GitHub runs at most {JOBS_LIMIT} of one matrix: name fewer targets, or one --check"
        )
    document = {
        "kind": "matrix",
        "schemaVersion": 1,
        **matrix.github(),
        "left_out": [one.to_json() for one in matrix.left_out],
    }
    session.output.answer(document, json.dumps(matrix.github(), separators=(",", ":")), whole=True)
    return 0
