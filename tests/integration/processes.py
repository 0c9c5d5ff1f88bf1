"""The processes of this machine, as /proc shows them: each may end while it is looked at."""

from __future__ import annotations

import contextlib
from pathlib import Path


def name_of(pid: int) -> str:
    """The name of a process; empty where it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def has_ended(pid: int) -> bool:
    """Whether it is gone, or only waits for its parent to ask how it ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return True


def processes_with(word: str) -> list[int]:
    """Numbers of the processes whose command line holds a word."""
    out = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes():
                out.append(int(path.parent.name))
    return out


def ancestors(pid: int) -> list[int]:
    """Process ids above `pid`, nearest first."""
    out: list[int] = []
    with contextlib.suppress(OSError):
        while (pid := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) > 1:
            out.append(pid)
    return out


def descendants(pid: int) -> list[int]:
    """Process ids below `pid`, deepest first."""
    out: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                out += [*descendants(int(child)), int(child)]
    return out
