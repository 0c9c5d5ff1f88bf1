"""Accelerators as engines and runtimes ask for them.

NVIDIA: the container toolkit (DeviceRequests of Docker) or names of the Container Device Interface (`nvidia.com/gpu=…`).
AMD: the nodes /dev/kfd and /dev/dri, and membership of the groups that own them, by number, since the image's own group
names stand for other numbers.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from imagebuild.check.runner import Devices
from imagebuild.errors import InputError

VENDORS = ("nvidia", "amd")
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_NVIDIA_NODE = re.compile(r"nvidia([0-9]+)\Z")
_NVIDIA_OTHERS = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True, slots=True)
class Node:
    """A device node of this machine: `path`, numbers, owners and permission bits."""

    path: str
    block: bool
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


def check_devices(devices: Devices | None) -> Devices | None:
    """Raises InputError `check.bad-job` for a vendor that is not known or a count below 1."""
    if devices is not None and (devices.vendor not in VENDORS or (devices.count is not None and devices.count < 1)):
        raise InputError(
            "check.bad-job",
            f"a job asks for {devices.count} devices of {devices.vendor[:40]!r}",
            expected="at least one, of " + " or ".join(VENDORS),
        )
    return devices


def cdi_names(devices: Devices) -> list[str]:
    """`nvidia.com/gpu=all`, or as many by number."""
    if devices.count is None:
        return [f"{devices.vendor}.com/gpu=all"]
    return [f"{devices.vendor}.com/gpu={number}" for number in range(devices.count)]


def has_cdi(vendor: str, folders: Iterable[str] = CDI_FOLDERS) -> bool:
    """Whether a CDI specification of that vendor lies on this machine (CDI, Specification directories)."""
    for folder in folders:
        for path in sorted(Path(folder).glob("*.*")):
            try:
                if path.suffix in (".json", ".yaml", ".yml") and f"{vendor}.com/gpu" in path.read_text():
                    return True
            except (OSError, UnicodeDecodeError):
                continue
    return False


def machine_nodes(devices: Devices, dev: Path = Path("/dev")) -> list[Node]:
    """The device nodes of this machine that a job with `devices` opens; [] where there are none."""
    if devices.vendor == "amd":
        found = [dev / "kfd", *sorted((dev / "dri").glob("renderD*"), key=_numbered)]
        nodes = [node for node in map(node_at, found) if node is not None]
        renders = [node for node in nodes if "renderD" in node.path]
        others = [node for node in nodes if "renderD" not in node.path]
        return [*others, *renders[: devices.count]] if others else []
    cards = sorted((path for path in _listed(dev) if _NVIDIA_NODE.match(path.name)), key=_numbered)
    if not cards:
        return []
    caps = [path for name in ("nvidia-caps", "nvidia-caps-imex-channels") for path in _listed(dev / name)]
    return [
        node
        for path in (*cards[: devices.count], *(dev / name for name in _NVIDIA_OTHERS), *caps)
        if (node := node_at(path)) is not None
    ]


def node_at(path: Path) -> Node | None:
    try:
        at = os.stat(path)
    except OSError:
        return None
    if not (stat.S_ISCHR(at.st_mode) or stat.S_ISBLK(at.st_mode)):
        return None
    return Node(
        str(path),
        stat.S_ISBLK(at.st_mode),
        os.major(at.st_rdev),
        os.minor(at.st_rdev),
        stat.S_IMODE(at.st_mode),
        at.st_uid,
        at.st_gid,
    )


def groups_of(nodes: Iterable[Node]) -> list[int]:
    """The groups that own the nodes, root's left out, sorted."""
    return sorted({node.gid for node in nodes} - {0})


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _numbered(path: Path) -> int:
    digits = re.search(r"[0-9]+\Z", path.name)
    return int(digits[0]) if digits else -1
