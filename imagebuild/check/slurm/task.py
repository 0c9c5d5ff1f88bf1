"""One task of a job array: a job in an image, as the manifest and the node's script have it."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from imagebuild.check.runner import CheckedImage, Job
from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.errors import InputError

ALLOWANCE = 3600
"""Seconds that getting the image to the node and starting a container may take, beside a task's deadline."""
GRACE = 20
"""Seconds that a server has between TERM and KILL."""
KILL_GRACE = 2
"""The same of a command that passed its deadline."""
_PLAIN = re.compile(r"[A-Za-z0-9/_.+@=-]+\Z")
_INSIDE = re.compile(
    r"(?:PATH|HOME|USER|LOGNAME|LANG|ENV|BASH_.*|LD_.*|SLURM_.*|ENROOT_.*|IMAGEBUILD_IN|IMAGEBUILD_OUT)\Z"
)
"""Variables that a program between Slurm and the container would take to heart: they are set in the container only."""


@dataclass(frozen=True, slots=True)
class Task:
    """A job and its image; `job` has the site's environment and mounts already."""

    image: CheckedImage
    job: Job

    def to_json(self) -> dict[str, Any]:
        """What the task is, so that equal tasks are equal text.  Values of variables and inputs stand by their digest:
        the text is kept where others may read it."""
        job = self.job
        return {
            "image": self.image.reference,
            "digest": str(self.image.digest),
            "platform": str(self.image.platform),
            "name": job.name,
            "command": list(job.command),
            "deadlineMilliseconds": round(job.deadline * 1000),
            "environment": {name: str(Digest.of(value.encode())) for name, value in job.environment.items()},
            "unset": list(job.unset),
            "inputs": {name: str(Digest.of(data)) for name, data in job.inputs.items()},
            "mounts": [[str(one.source), one.target, one.read_only] for one in job.mounts],
            "devices": None if job.devices is None else [job.devices.vendor, job.devices.count],
            "network": job.network,
            "sharedMemory": job.shared_memory,
        }

    @property
    def deadline(self) -> int:
        return max(1, math.ceil(self.job.deadline))

    @property
    def outside(self) -> dict[str, str]:
        """Variables that srun exports, for a container that is told to let them win."""
        return {name: value for name, value in self.job.environment.items() if _INSIDE.match(name) is None}


def list_key(site: dict[str, Any], tasks: Sequence[Task]) -> Digest:
    """The digest of a list of tasks at a site: by it a run that was interrupted is found again."""
    return Digest.of(canonical_json({"site": site, "tasks": [task.to_json() for task in tasks]}))


def mount_list(pairs: Sequence[tuple[str, str, bool]]) -> str:
    """`SRC:DST[:ro],…` as pyxis reads it.  Raises InputError `check.slurm-path` for a path that it could not."""
    out = []
    for source, target, read_only in pairs:
        for path in (source, target):
            if "," in path or ":" in path:
                raise InputError(
                    "check.slurm-path",
                    f"pyxis cannot mount {path!r}",
                    expected="a path without comma and colon",
                )
        out.append(f"{source}:{target}" + (":ro" if read_only else ""))
    return ",".join(out)


def plain_path(path: str, what: str) -> str:
    """A path that stands in a job script as it is.  Raises InputError `check.slurm-path`."""
    if _PLAIN.match(path) is None:
        raise InputError(
            "check.slurm-path",
            f"{what}: Slurm's job script cannot hold the path {path!r}",
            expected="letters, digits and /_.+@=-",
            found=path,
        )
    return path


def bash_settings(values: dict[str, str | int | Sequence[str]]) -> str:
    """Assignments for bash, every value quoted; a sequence becomes an array."""
    lines = []
    for name, value in values.items():
        if isinstance(value, (str, int)):
            lines.append(f"{name}={shlex.quote(str(value))}")
        else:
            lines.append(f"{name}=({' '.join(shlex.quote(one) for one in value)})")
    return "\n".join(lines) + "\n"


def inside_environment(task: Task, exported: Sequence[str]) -> str:
    """What the container's shell sets before the command: variables that did not come with `exported`, and those to be
    taken away (an empty value is not the same)."""
    lines = [
        f"export {name}={shlex.quote(value)}" for name, value in task.job.environment.items() if name not in exported
    ]
    lines += [f"unset {name}" for name in task.job.unset]
    return "".join(line + "\n" for line in lines)
