"""Newer programs than the machine's, run by chroot from a folder of Debian unstable (`.ci/run` makes it).

Each run has a mount namespace of its own: what is mounted there is gone with the program, however it ends.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools import missing, program, root

PROGRAMS = ("cosign", "crane", "oras", "skopeo", "umoci")
INSIDE = "/mnt"

_ENTER = """set -e
root=$1 folder=$2; shift 2
mount --bind "$folder" "$root/mnt"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class SidPrograms:
    """Runs programs of the folder.  `folder` is seen as `/mnt` inside; loopback is the machine's own."""

    root: Path
    folder: Path

    def inside(self, path: Path) -> str:
        """The name that a path below `folder` has for the program."""
        return f"{INSIDE}/{path.relative_to(self.folder)}"

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, deadline: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": INSIDE, "LC_ALL": "C.UTF-8", **(environment or {})}
        done = subprocess.run(
            [
                *(program("unshare"), "--mount", "--propagation", "private"),
                *("sh", "-c", _ENTER, "sh", str(self.root), str(self.folder), *command),
            ],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(
                f"{' '.join(command)}: exit {done.returncode}\n{done.stderr.decode('utf-8', 'replace')[-3000:]}"
            )
        return done


def sid_root() -> Path:
    """The folder, or the end of the test."""
    root()
    named = os.environ.get("IMAGEBUILD_SID_ROOT", "")
    path = Path(named)
    if not named or not (path / "usr" / "bin" / "cosign").exists():
        missing("IMAGEBUILD_SID_ROOT names no folder with cosign, crane, oras, skopeo and umoci")
    return path
