"""The job script that sbatch gets: the site's words, then what every task does on its node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import resources

from imagebuild.check.slurm.task import ALLOWANCE, GRACE, KILL_GRACE, Task, bash_settings, plain_path
from imagebuild.errors import InputError
from imagebuild.target.site import Site

INSIDE = "inside.sh"
_HEAD = """\
#!/bin/bash
{directives}
# Names that the settings of a task assign.
# shellcheck disable=SC2154
"""


def program(name: str) -> str:
    """One of the scripts beside this module."""
    return resources.files("imagebuild.check.slurm").joinpath(name).read_text(encoding="utf-8")


def job_script(site: Site, name: str, comment: str, folder: str, tasks: Sequence[Task]) -> str:
    """The whole script.  `folder` is the job's own, on disk that every node sees.

    Memory, time and accelerators are the most that one of the tasks asks for: the tasks of an array are alike to Slurm.
    Raises InputError `check.slurm-path`, `check.slurm-devices`.
    """
    plain_path(folder, "the job folder")
    words = [
        f"--job-name={name}",
        f"--comment={comment}",
        f"--output={folder}/tasks/%a/slurm.log",
        "--open-mode=append",
        "--requeue",
        "--nodes=1",
        "--ntasks=1",
        f"--time={time_limit(site, tasks)}",
    ]
    words += [f"--{option}={value}" for option, value in _placed(site).items() if value is not None]
    count = device_count(site, tasks)
    if count:
        words.append(f"--gres=gpu:{count}")
    words += site.options
    disk = "${TMPDIR:-/tmp}" if site.scratch is None else plain_path(site.scratch, "the site's scratch folder")
    own = [
        f"folder={folder}",
        f"local_disk={disk}",
        f"allowance={ALLOWANCE}",
        "device_folder=${IMAGEBUILD_DEVICES:-/dev}",
    ]
    head = _HEAD.format(directives="\n".join(f"#SBATCH {word}" for word in words))
    return head + "\n".join(own) + "\n" + program("node.sh")


def _placed(site: Site) -> dict[str, str | None]:
    return {"partition": site.partition, "account": site.account, "qos": site.qos}


def time_limit(site: Site, tasks: Sequence[Task]) -> int:
    """Minutes, as sbatch takes them: the longest deadline and what starting takes, within the site's limit."""
    longest = max(task.deadline for task in tasks) + GRACE + ALLOWANCE
    return max(1, math.ceil(min(longest, site.time_limit) / 60))


def device_count(site: Site, tasks: Sequence[Task]) -> int:
    """Accelerators that each task of the array gets."""
    counts = [0]
    for task in tasks:
        if task.job.devices is None:
            continue
        count = task.job.devices.count if task.job.devices.count is not None else site.gpus
        if count is None:
            raise InputError(
                "check.slurm-devices",
                f"site {site.name}: a check wants all accelerators of a node, and their number is not known",
                hint="give the site gpus: NUMBER",
            )
        counts.append(count)
    return max(counts)


def settings(task: Task, values: dict[str, str | int | Sequence[str]], *, watch: bool = False) -> str:
    """The file that a task's node reads.  `values` are those of its container; with `watch` it can be stopped by a file."""
    devices = task.job.devices
    return bash_settings(
        {
            "machine": task.image.platform.machine,
            "deadline": task.deadline,
            "grace": GRACE if watch else KILL_GRACE,
            "watch": int(watch),
            "command": task.job.command,
            "vendor": "" if devices is None else devices.vendor,
            **values,
        }
    )
