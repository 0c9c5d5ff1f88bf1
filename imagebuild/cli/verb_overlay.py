"""Import, pin, edit, refresh, list, show and check guarded overlays; build their stages.

Examples:
  git diff main -- vllm | imagebuild overlay import my-fix --target b300-vllm --from-diff -
  imagebuild overlay edit my-fix vllm/envs.py --target b300-vllm
  imagebuild overlay refresh my-fix --target b300-vllm
  imagebuild overlay check
"""

from __future__ import annotations

import argparse

from imagebuild.cli.actions import configure_actions, run_action
from imagebuild.cli.session import Session

ACTIONS = {
    "import": "make a guarded overlay of a diff, a tree of files or a patch script",
    "pin": "write a wheel into an overlay, with its digest for each platform",
    "edit": "put files of the base, as the overlay leaves them, into a work folder",
    "refresh": "record what was changed there as the overlay's patch",
    "stage": "build an overlay's stages, prove them, and store their outputs by digest",
    "list": "every overlay, and the targets that use it",
    "show": "one overlay: its changes, guards and provenance",
    "check": "apply overlays again, offline, to what the locks keep of their bases",
}


def configure(parser: argparse.ArgumentParser) -> None:
    configure_actions(parser, "overlay", ACTIONS)


def run(arguments: argparse.Namespace, session: Session) -> int:
    return run_action("overlay", arguments, session)
