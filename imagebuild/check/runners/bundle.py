"""config.json of an OCI bundle for one job (runtime-spec 1.0.2, config.md and config-linux.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.check.runner import IN, OUT, Job
from imagebuild.check.runners.devices import Node, groups_of
from imagebuild.check.runners.libraries import INSIDE
from imagebuild.check.runners.place import job_environment
from imagebuild.content.strict_yaml import no_entries
from imagebuild.errors import InputError
from imagebuild.oci.documents import ImageConfig

CAPABILITIES = {
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7,
    "CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_SYS_CHROOT": 18, "CAP_SETFCAP": 31,
}  # fmt: skip
"""What engines give a container that asks for nothing (capabilities(7)), but for raw sockets, auditing and the making of
device nodes, which no filter would hold back here."""
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MASKED = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware")  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_SMALL_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class User:
    """Who a container's process is: numbers, and the home folder."""

    uid: int = 0
    gid: int = 0
    home: str = "/root"


@dataclass(frozen=True, slots=True)
class Machine:
    """What of this machine a container gets, and what this process may give it.

    `in_user` says that everything happens in a user namespace, in which only root is known; `capabilities` are this
    process's own, as bits; `binds` are files by their path inside.
    """

    in_user: bool = False
    capabilities: int = -1
    limits: Mapping[str, tuple[int, int]] = field(default_factory=no_entries)
    nodes: Sequence[Node] = ()
    libraries: Mapping[str, Path] = field(default_factory=no_entries)
    programs: Mapping[str, Path] = field(default_factory=no_entries)
    binds: Mapping[str, Path] = field(default_factory=no_entries)


def bundle_config(
    job: Job, image: ImageConfig, user: User, given: Path, left: Path, machine: Machine
) -> dict[str, Any]:
    """The bundle's document; its root file system is `rootfs` beside it.  `given` and `left` are the job's folders here."""
    environment = job_environment([PATH, f"HOME={user.home}", *image.environment], job)
    if machine.libraries:
        known = [part for part in environment.get("LD_LIBRARY_PATH", "").split(":") if part]
        if INSIDE not in known:
            environment["LD_LIBRARY_PATH"] = ":".join([*known, INSIDE])
    who: dict[str, Any] = {"uid": user.uid, "gid": user.gid}
    groups = [] if machine.in_user else groups_of(machine.nodes)
    if groups:
        who["additionalGids"] = groups
    held = [name for name, bit in CAPABILITIES.items() if machine.in_user or machine.capabilities >> bit & 1]
    granted = held if user.uid == 0 else []
    return {
        "ociVersion": "1.0.2",
        "hostname": "imagebuild",
        "process": {
            "terminal": False,
            "user": who,
            "args": list(job.command),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": image.working_dir,
            "capabilities": {"bounding": held, "effective": granted, "permitted": granted},
            "rlimits": [
                {"type": f"RLIMIT_{name.upper()}", "soft": _limit(soft), "hard": _limit(hard)}
                for name, (soft, hard) in sorted(machine.limits.items())
            ],
        },
        "root": {"path": "rootfs", "readonly": False},
        "mounts": _mounts(job, given, left, machine),
        "linux": {
            "namespaces": [{"type": kind} for kind in _namespaces(job)],
            "resources": {"devices": _rules(machine.nodes)},
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READ_ONLY),
        },
    }


def _namespaces(job: Job) -> list[str]:
    return ["pid", "ipc", "uts", "mount", *([] if job.network else ["network"])]


def _limit(value: int) -> int:
    """Unlimited is the largest number (setrlimit(2), RLIM_INFINITY)."""
    return (1 << 64) - 1 if value < 0 else value


def _mounts(job: Job, given: Path, left: Path, machine: Machine) -> list[dict[str, Any]]:
    owned = [] if machine.in_user else ["gid=5"]
    out = [
        _mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount("/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", *owned),
        _mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", f"size={job.shared_memory}"),  # noqa: S108
        _mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
    ]
    if machine.in_user and job.network:
        # sysfs shows the network namespace's owner, which a user namespace is not
        out.append(_bind("/sys", Path("/sys"), "ro"))
    else:
        out.append(_mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"))
    out += [_bind(node.path, Path(node.path), "rw") for node in machine.nodes]
    out += [_bind(f"{INSIDE}/{name}", path, "ro") for name, path in sorted(machine.libraries.items())]
    out += [_bind(f"/usr/bin/{name}", path, "ro") for name, path in sorted(machine.programs.items())]
    out += [_bind(inside, path, "ro") for inside, path in sorted(machine.binds.items())]
    out += [_bind(IN, given, "ro"), _bind(OUT, left, "rw")]
    out += [_bind(mount.target, mount.source, "ro" if mount.read_only else "rw") for mount in job.mounts]
    return out


def _mount(inside: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": inside, "type": kind, "source": source, "options": list(options)}


def _bind(inside: str, source: Path, mode: str) -> dict[str, Any]:
    return _mount(inside, "bind", str(source), "rbind", "rprivate", mode)


def _rules(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """No device but those of the job; runtimes add the harmless ones (null, zero, …) themselves."""
    return [
        {"allow": False, "access": "rwm"},
        *(
            {"allow": True, "type": "b" if n.block else "c", "major": n.major, "minor": n.minor, "access": "rw"}
            for n in nodes
        ),
    ]


def user_of(section: Mapping[str, Any], root: Path) -> User:
    """Who the image's `User` is, by its own /etc/passwd and /etc/group (image-spec config.md, User).

    Raises InputError `check.no-such-user` where they know no such name.
    """
    said = section.get("User")
    name, _, group = (said if isinstance(said, str) else "").partition(":")
    rows = _rows(root, "passwd")
    row = next((r for r in rows if name and (r[0] == name or r[2] == name)), None)
    if row is None and not name:
        row = next((r for r in rows if r[2] == "0"), None)
    if row is None and name and not name.isdecimal():
        raise _nobody(name, "passwd")
    uid = int(row[2]) if row else int(name or 0)
    gid = int(row[3]) if row and len(row) > 3 and row[3].isdecimal() else 0
    if group:
        found = next((r for r in _rows(root, "group") if r[0] == group or r[2] == group), None)
        if found is None and not group.isdecimal():
            raise _nobody(group, "group")
        gid = int(found[2]) if found else int(group)
    home = row[5] if row and len(row) > 5 and row[5].startswith("/") else ("/root" if uid == 0 else "/")
    return User(uid, gid, home)


def _nobody(name: str, file: str) -> InputError:
    return InputError("check.no-such-user", f"the image runs as {name[:80]!r}, whom its /etc/{file} does not know")


def _rows(root: Path, name: str) -> list[list[str]]:
    """Lines of a file of accounts whose third field is a number; nothing for a file that leads out of the image."""
    path = root / "etc" / name
    try:
        inside = os.path.realpath(path)
        if not inside.startswith(os.path.realpath(root) + "/"):
            return []
        with open(inside, encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_SMALL_LIMIT).splitlines()
    except OSError:
        return []
    rows = [line.split(":") for line in lines]
    return [row for row in rows if len(row) > 2 and row[2].isdecimal()]
