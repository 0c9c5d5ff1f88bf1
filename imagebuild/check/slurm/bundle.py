"""A task's OCI bundle, up to what only its node knows (runtime-spec; Slurm's containers page).

Slurm takes the folder `rootfs` beside config.json whatever that says, replaces `process.args` and adds its variables after
ours.  So that tasks share one unpacked image and none sees what another wrote, `rootfs` is only a frame: over each of its
folders lies an overlay, the lower half of which is the image's, the upper one on the node's own disk.

Slurm brings no devices.  Some places are filled in on the node: `@DEVICES@` and `@RULES@` by the accelerators that the job
was given, `@VISIBLE@` by their variable, `@SCRATCH@` by a folder on the node's own disk, `@USER@` by what overlays of
somebody who is not root need.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from imagebuild.check.runners.bundle import CAPABILITIES, PATH, User
from imagebuild.check.slurm.task import Task
from imagebuild.content.files import io_faults
from imagebuild.errors import InputError
from imagebuild.oci.documents import ImageConfig

DEVICES, RULES, VISIBLE, SCRATCH, USER = "@DEVICES@", "@RULES@", "@VISIBLE@", "@SCRATCH@", "@USER@"
_OF_THE_KERNEL = ("dev", "proc", "sys")
_PLAIN = re.compile(r"[A-Za-z0-9_.@+-]+\Z")
_MASKED = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware")  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def make_frame(rootfs: Path, frame: Path) -> list[str]:
    """Makes the folder that Slurm takes for the root: top folders empty, links and files of the image's root as they are.
    Gives the names of the folders over which an overlay lies.  Raises InputError `check.slurm-path`."""
    layered = []
    with io_faults(frame, "writing"):
        frame.mkdir(mode=0o755)
        for one in sorted(rootfs.iterdir()):
            copy = frame / one.name
            if one.is_symlink() or not one.is_dir():
                shutil.copy2(one, copy, follow_symlinks=False)
            elif one.name not in _OF_THE_KERNEL:
                if _PLAIN.match(one.name) is None:
                    raise InputError(
                        "check.slurm-path", f"the image has a folder of a name that a bundle cannot hold: /{one.name}"
                    )
                copy.mkdir()
                layered.append(one.name)
        for name in (*_OF_THE_KERNEL, "tmp"):
            (frame / name).mkdir(exist_ok=True)
        if "tmp" not in layered:
            (frame / "tmp").chmod(0o1777)
    return layered


def bundle_template(
    task: Task, config: ImageConfig, user: User, rootfs: Path, layered: list[str], own: list[tuple[str, str, bool]]
) -> bytes:
    """The config.json.  `rootfs` is the unpacked image, `layered` what `make_frame` gave, `own` the mounts of the job's
    files (source, target, read-only)."""
    job = task.job
    mounts: list[dict[str, Any]] = [
        _mount("/proc", "proc", "proc"),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount("/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
        _mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", f"size={job.shared_memory}"),  # noqa: S108 (in the container)
        _mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
    ]
    for name in layered:
        halves = f"lowerdir={rootfs}/{name}", f"upperdir={SCRATCH}/upper/{name}", f"workdir={SCRATCH}/work/{name}"
        mounts.append(_mount(f"/{name}", "overlay", "overlay", *halves, USER))
    given = own + [(str(one.source), one.target, one.read_only) for one in job.mounts]
    mounts += [_mount(target, "bind", source, "rbind", "ro" if fixed else "rw") for source, target, fixed in given]
    namespaces = ["pid", "ipc", "uts", "mount"] + ([] if job.network else ["network"])
    held = list(CAPABILITIES)
    granted = held if user.uid == 0 else []
    value = {
        "ociVersion": "1.0.2",
        "hostname": "imagebuild",
        "process": {
            "terminal": False,
            "user": {"uid": user.uid, "gid": user.gid},
            "args": ["/bin/sh"],
            "env": [PATH, f"HOME={user.home}", *config.environment, VISIBLE],
            "cwd": config.working_dir,
            "capabilities": {"bounding": held, "effective": granted, "permitted": granted},
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "mounts": mounts,
        "linux": {
            "devices": [DEVICES],
            "resources": {"devices": [{"allow": False, "access": "rwm"}, RULES]},
            "namespaces": [{"type": name} for name in namespaces],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READ_ONLY),
        },
    }
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _mount(target: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": list(options)}
