"""What is mounted on this machine below a folder of a test's."""

from __future__ import annotations

import subprocess
from pathlib import Path


def mounts_below(folder: Path) -> list[str]:
    """Mount points, in the order in which they were made."""
    found = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    return [path for path in found if path.startswith(f"{folder}/")]


def unmount_below(folder: Path) -> None:
    for path in reversed(mounts_below(folder)):
        subprocess.run(["umount", "--lazy", path], capture_output=True, check=False)
