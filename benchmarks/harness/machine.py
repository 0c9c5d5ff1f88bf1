"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.docker_ways import CLIENT

PROGRAMS = {
    "docker": [CLIENT, "--version"],
    "dockerd": ["dockerd", "--version"],
    "buildah": ["buildah", "--version"],
    "skopeo": ["skopeo", "--version"],
    "umoci": ["umoci", "--version"],
    "docker-registry": ["docker-registry", "--version"],
}
LIBRARIES = ("deflate", "isal", "urllib3", "zstandard", "PyYAML", "rich")


def _first_line(command: list[str]) -> str:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    try:
        done = subprocess.run(command, capture_output=True, timeout=30, check=False, env={**os.environ, "PATH": path})
    except OSError:
        return "not installed"
    return (done.stdout or done.stderr).decode("utf-8", "replace").strip().partition("\n")[0]


def crane_version(program: str) -> str:
    """crane does not say its version; Debian's package database beside it does."""
    status = Path(program).parents[2] / "var/lib/dpkg/status"
    if status.is_file():
        found = re.search(r"^Package: crane\n(?:.+\n)*?Version: (.+)$", status.read_text(errors="replace"), re.M)
        if found:
            return f"crane {found[1]} (Debian unstable)"
    return _first_line([program, "version"])


def describe(crane: str) -> dict[str, Any]:
    """JSON value with processor, cores, memory, kernel, file system of the work folder, Python, and all versions."""
    cpu = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    memory = re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
    return {
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": int(memory[1]) * 1024 if memory else None,
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "python": sys.version.split()[0],
        "programs": {name: _first_line(command) for name, command in PROGRAMS.items()}
        | {"crane": crane_version(crane) if crane else "not installed"},
        "imagebuild": metadata.version("imagebuild"),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
    }


def load() -> list[float]:
    """The load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]
