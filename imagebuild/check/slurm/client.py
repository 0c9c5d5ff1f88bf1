"""Slurm's own programs: jobs handed in, asked after, cancelled.  What they say is read, never trusted to be there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.host import environment, process

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")
_DEADLINE = 120.0
_PASSED_ON = re.compile(
    r"(?:PATH|HOME|USER|LOGNAME|LANG|TMPDIR|KRB5CCNAME|XDG_RUNTIME_DIR|SLURM_CONF|SLURM_CONF_SERVER|SLURM_JWT|ENROOT_.*"
    r"|IMAGEBUILD_DEVICES)\Z"
)
"""Variables that sbatch sees.  It would send all of them to the job, secrets too, and SBATCH_* change its options."""
_COLUMNS = {"ArrayJobID": 20, "ArrayTaskID": 20, "State": 20, "RestartCnt": 12, "NodeList": 80, "Reason": 200}
_NUMBER = re.compile(r"[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class TaskState:
    """What Slurm says of one task: the job's state in its words, how often it was started again, where, and why not."""

    state: str
    restarts: int = 0
    node: str = ""
    reason: str = ""

    @property
    def pending(self) -> bool:
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")

    @property
    def live(self) -> bool:
        """Whether it may still come to an end that it did not come to yet."""
        return self.pending or self.state in ("RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")  # fmt: skip


class SlurmClient:
    """The cluster that this machine's Slurm programs speak to (SLURM_CONF where it is set)."""

    def available(self) -> str | None:
        """None where jobs can be handed in, else the reason why not."""
        try:
            for name in PROGRAMS:
                self._run(name, "--version")
            ping = self._run("scontrol", "ping")
        except UnavailableError as error:
            return error.message
        if ping.code != 0:
            return f"Slurm's controller does not answer: {_words(ping)}"
        return None

    def submit(self, script: Path, tasks: Sequence[int], name: str) -> str:
        """Hands an array in; its number.  Raises RefusedError `check.slurm-refused` where Slurm says no, UnavailableError
        `check.slurm-unreachable` where it cannot be asked."""
        done = self._run(
            "sbatch", "--parsable", f"--job-name={name}", f"--array={','.join(map(str, tasks))}", str(script),
            cwd=script.parent,
        )  # fmt: skip
        number = done.stdout.decode("ascii", "replace").strip().partition(";")[0]
        if done.code == 0 and _NUMBER.match(number):
            return number
        if _out_of_reach(done):
            raise unreachable(_words(done))
        raise RefusedError(
            "check.slurm-refused",
            f"sbatch refuses the job: {_words(done)}",
            hint="look at partition, account, qos, gpus, time_limit and options of the site",
        )

    def named(self, name: str) -> tuple[str, ...]:
        """Numbers of the jobs with that name which Slurm still knows.  Raises UnavailableError `check.slurm-unreachable`."""
        user = str(os.getuid())
        done = self._run(
            "squeue", "--noheader", "--states=all", f"--user={user}", f"--name={name}", "--Format=ArrayJobID:20"
        )
        if done.code != 0:
            raise unreachable(_words(done))
        return tuple(sorted({word for word in done.stdout.decode("ascii", "replace").split() if _NUMBER.match(word)}))

    def states(self, number: str) -> Mapping[int, TaskState] | None:
        """Each task's state; nothing of those that Slurm knows no more.  None where it could not be asked."""
        columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
        done = self._run("squeue", "--noheader", "--array", "--states=all", f"--jobs={number}", f"--Format={columns}")
        if done.code == 0:
            found = _parse_queue(done.stdout.decode("utf-8", "replace"))
            if found:
                return found
        elif "Invalid job id" not in _words(done):
            return None
        return self._accounted(number)

    def _accounted(self, number: str) -> Mapping[int, TaskState]:
        """The same out of the accounting, where a site has one."""
        try:
            done = self._run(
                "sacct", "--noheader", "--parsable2", "--allocations", "--array", f"--jobs={number}",
                "--format=JobID,State,NodeList",
            )  # fmt: skip
        except UnavailableError:
            return {}
        out = {}
        for line in done.stdout.decode("utf-8", "replace").splitlines() if done.code == 0 else ():
            job, _, rest = line.partition("|")
            state, _, node = rest.partition("|")
            task = job.rpartition("_")[2]
            if "_" in job and _NUMBER.match(task) and state.split():
                out[int(task)] = TaskState(state.split()[0], node=node)
        return out

    def cancel(self, number: str, task: int | None = None) -> None:
        """Ends a task, or the whole array.  One that is over already is no fault."""
        self._run("scancel", number if task is None else f"{number}_{task}")

    def node_address(self, node: str) -> str:
        """The name or address by which a node is reached, the node's own name where Slurm does not say."""
        done = self._run("scontrol", "--oneliner", "show", "node", node)
        found = re.search(r"\bNodeAddr=(\S+)", done.stdout.decode("utf-8", "replace"))
        return found[1] if done.code == 0 and found else node

    def _run(self, name: str, *words: str, cwd: Path | None = None) -> process.Finished:
        passed = {key: value for key, value in environment.variables().items() if _PASSED_ON.match(key)}
        return process.run((name, *words), deadline=_DEADLINE, cwd=cwd, environment=passed)


def unreachable(words: str) -> UnavailableError:
    return UnavailableError(
        "check.slurm-unreachable",
        f"Slurm could not be asked: {words}",
        hint="the same command, given again, takes up the jobs that are on their way",
    )


def _parse_queue(text: str) -> dict[int, TaskState]:
    out: dict[int, TaskState] = {}
    for line in text.splitlines():
        values: list[str] = []
        at = 0
        for width in _COLUMNS.values():
            values.append(line[at : at + width].strip())
            at += width
        _, task, state, restarts, node, reason = values
        if _NUMBER.match(task) and state:
            out[int(task)] = TaskState(state.split()[0], int(restarts) if _NUMBER.match(restarts) else 0, node, reason)
    return out


def _words(done: process.Finished) -> str:
    return (done.stderr + done.stdout).decode("utf-8", "replace").strip()[-500:] or f"exit code {done.code}"


def _out_of_reach(done: process.Finished) -> bool:
    words = _words(done).lower()
    return any(one in words for one in ("unable to contact", "socket timed out", "connection refused", "timed out"))
