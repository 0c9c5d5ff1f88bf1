"""Makes the stand-in bases of the targets: `python -m imagebuild.testing.bases [NAME…]` (`make bases`).

Each goes to `build/bases/NAME` of the workspace that the command runs in, out of wheels that the user's pip fetches once; one
pinned reference a base is printed.  `--runnable` puts a copy on a Debian root whose Python really runs (as
`build/bases/NAME-runnable`; made by debootstrap, or a folder or tar that `--root` names); its digest is that machine's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from imagebuild.errors import ImagebuildError
from imagebuild.testing.real_root import debian_root
from imagebuild.testing.target_bases import STAND_INS, names, runnable_base, target_base
from imagebuild.testing.wheel_base import MadeBase


class _Bar:
    """Plain progress lines on stderr: one when a task begins, one when it ends.  Mutable: remembers the task."""

    def __init__(self) -> None:
        self._task = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._task:
            self._task = what
            size = f" ({total >> 20} MiB)" if total >> 20 else ""
            sys.stderr.write(f"{what}{size}\n")


def _one(folder: Path, name: str, arguments: argparse.Namespace) -> MadeBase:
    if not arguments.runnable:
        return target_base(folder, name, _Bar())
    architecture = STAND_INS[name].architecture if name in STAND_INS else "amd64"
    root = Path(arguments.root) if arguments.root else debian_root(architecture=architecture)
    return runnable_base(folder / "build" / "bases" / f"{name}-runnable", name, root, progress=_Bar())


def main(argv: Sequence[str]) -> int:
    """Makes the named bases (default: those of the three targets); the exit code is that of imagebuild's verbs."""
    parser = argparse.ArgumentParser(
        prog="python -m imagebuild.testing.bases", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(STAND_INS)} (default: these), h200-vllm, demo, demo-all"
    )
    parser.add_argument("-C", "--workspace", default=".", metavar="DIR", help="the folder that build/bases/ goes into")
    parser.add_argument(
        "--runnable", action="store_true", help="on a Debian root whose Python runs; needs root, or --root"
    )
    parser.add_argument("--root", metavar="PATH", help="the folder or tar archive of that root")
    arguments = parser.parse_args(argv)
    for name in names(arguments.names):
        try:
            made = _one(Path(arguments.workspace), name, arguments)
        except ImagebuildError as error:
            sys.stderr.write(f"{error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
            return error.exit_code
        sys.stdout.write(f"{made.reference}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
