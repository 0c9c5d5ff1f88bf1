"""Write, render and check waivers: what is patched, why, and until when.

Examples:
  imagebuild waiver new 4878 --target b300-vllm
  imagebuild waiver render 4878
  imagebuild waiver check 4878
  imagebuild waiver check docs/waiver/2508.md
  imagebuild waiver changelog 4878
"""

from __future__ import annotations

import argparse

from imagebuild.cli.actions import configure_actions, run_action
from imagebuild.cli.session import Session

ACTIONS = {
    "new": "start the file that people write, from what the lock and the overlays say",
    "render": "write the English and the Chinese page",
    "check": "judge a waiver, or a page that somebody wrote by hand",
    "changelog": "append a waiver's entry to the repository's changelog",
}


def configure(parser: argparse.ArgumentParser) -> None:
    configure_actions(parser, "waiver", ACTIONS)


def run(arguments: argparse.Namespace, session: Session) -> int:
    return run_action("waiver", arguments, session)
