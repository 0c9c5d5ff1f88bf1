"""Resource limits of containers: engines ask for more than a process without CAP_SYS_RESOURCE may give."""

from __future__ import annotations

import resource
from pathlib import Path

_SYS_RESOURCE = 24
_NAMES = {
    "core": resource.RLIMIT_CORE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
}
UNLIMITED = -1
_MOST = {"nofile": 1 << 20, "nproc": 1 << 15}
"""What podman lowers its own limits to; what it starts cannot raise them again."""


def capabilities(text: str | None = None) -> int:
    """Effective capabilities as bits (capabilities(7)); `text` is a /proc/PID/status, this process's if None."""
    if text is None:
        try:
            text = Path("/proc/self/status").read_text()
        except OSError:
            return 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value.strip(), 16)
    return 0


def may_raise() -> bool:
    """Whether this process may raise hard limits."""
    return bool(capabilities() >> _SYS_RESOURCE & 1)


def job_limits(devices: bool, *, raising: bool | None = None) -> dict[str, tuple[int, int]]:
    """Limits to be set explicitly, name: (soft, hard), -1 for unlimited.

    Where limits cannot be raised these are the ones that this process has, soft ones at the hard value; else nothing, and
    locked memory without limit for a job with devices, which pin it.
    """
    if may_raise() if raising is None else raising:
        return {"memlock": (UNLIMITED, UNLIMITED)} if devices else {}
    out = {}
    for name, number in _NAMES.items():
        _, hard = resource.getrlimit(number)
        most = _MOST.get(name, hard)
        hard = most if hard == resource.RLIM_INFINITY else min(hard, most)
        soft = hard if name in ("nofile", "memlock", "nproc") else resource.getrlimit(number)[0]
        out[name] = (_number(soft), _number(hard))
    return out


def _number(value: int) -> int:
    return UNLIMITED if value == resource.RLIM_INFINITY else value
