"""Whose a container is, written on it, so that what a killed process left behind is known as such by the next one."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Mapping
from pathlib import Path

from imagebuild import LABEL_PREFIX
from imagebuild.host.clock import now

OWNER = LABEL_PREFIX + "check.owner"
"""Label: `BOOT:PIDNS:PID:START` of the process that made a container."""
UNTIL = LABEL_PREFIX + "check.until"
"""Label: seconds since 1970 after which its job is over in any case."""
MARGIN = 3600
"""Seconds that bringing files and cleaning up may take beside a job's deadline."""


HELD = 7 * 86_400
"""Seconds for which a process that cannot be seen from here may hold an image."""


def labels(deadline: float) -> dict[str, str]:
    """What a container of this process carries."""
    return {OWNER: owner_of(os.getpid()), UNTIL: str(now() + int(deadline) + MARGIN)}


def job_name(name: str) -> str:
    """A name for a container that nobody else has: `imagebuild-NAME-HEX`."""
    return f"imagebuild-{_plain(name).strip('-') or 'check'}-{secrets.token_hex(6)}"


def image_tag(name: str) -> str:
    """A tag of this process's own for an image that it holds in an engine: `NAME.BOOT.PIDNS.PID.START.UNTIL`.  `name` has
    no dot and at most 32 characters."""
    return ".".join((name, *owner_of(os.getpid()).split(":"), str(now() + HELD)))


def is_stale_tag(tag: str) -> bool:
    """`is_stale` of a tag that `image_tag` made; any other never is."""
    parts = tag.split(".")
    return len(parts) == 6 and is_stale({OWNER: ":".join(parts[1:5]), UNTIL: parts[5]})


def owner_of(pid: int) -> str:
    """This very run of a process: its number and start under this boot and in this PID namespace."""
    return ":".join((*_world(), str(pid), _start(pid) or "gone"))


def is_stale(found: Mapping[str, str]) -> bool:
    """Whether a container with these labels is nobody's any more: its maker is dead, where that can be told from here, or
    its time is over.  One without our labels never is."""
    owner, until = found.get(OWNER, ""), found.get(UNTIL, "")
    if not owner or not until.isdecimal():
        return False
    if int(until) < now():
        return True
    parts = owner.split(":")
    if len(parts) != 4 or not parts[2].isdecimal() or tuple(parts[:2]) != _world():
        return False
    return _start(int(parts[2])) != parts[3]


def _world() -> tuple[str, str]:
    boot = _text("/proc/sys/kernel/random/boot_id") or _plain(platform.node())
    try:
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        namespace = "unknown"
    return boot.strip(), namespace


def _plain(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:36]


def _start(pid: int) -> str | None:
    """Clock ticks from boot to the process's start (proc(5), stat 22); None where there is none, or only its corpse."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return None if len(fields) < 20 or fields[0] in "ZX" else fields[19]


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
