"""Bring a target from its lock to a signed, published release, or import evidence for one.

`imagebuild release TARGET` does everything in order and can be interrupted: finished steps are not repeated, and the same
command again ends with the same release.  `imagebuild release run TARGET` is the same.

Examples:
  imagebuild release demo --key release.key
  imagebuild release b300-vllm --push --policy policy.yaml --key release.key
  imagebuild release b300-vllm --push --key release.key --dry-run
  imagebuild release import-evidence ./from-the-cluster --target b300-vllm --policy policy.yaml
"""

from __future__ import annotations

import argparse

from imagebuild.cli.actions import configure_actions, run_action
from imagebuild.cli.session import Session

ACTIONS = {
    "run": "lock, build, reproduce, checks, signatures, waiver, push, tags, manifest (what `release TARGET` does)",
    "import-evidence": "take over evidence of checks that ran elsewhere",
    "sign-evidence": "sign what checks left on this machine, so that it can be imported elsewhere",
}


def arrange(words: list[str]) -> list[str]:
    """`release TARGET …` is `release run TARGET …`."""
    if words and words[0] not in ACTIONS and words[0] not in ("-h", "--help"):
        return ["run", *words]
    return words


def configure(parser: argparse.ArgumentParser) -> None:
    configure_actions(parser, "release", ACTIONS)


def run(arguments: argparse.Namespace, session: Session) -> int:
    return run_action("release", arguments, session)
