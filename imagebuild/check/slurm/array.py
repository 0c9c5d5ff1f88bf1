"""Many tasks as one job array: handed in once, waited for, taken up again by another process after a kill."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imagebuild.check.runner import End, Outcome
from imagebuild.check.runners.files import collect_folder, write_inputs
from imagebuild.check.runners.place import remove_tree
from imagebuild.check.slurm.client import SlurmClient, TaskState, unreachable
from imagebuild.check.slurm.container import Container
from imagebuild.check.slurm.folder import JobFolder, Submission
from imagebuild.check.slurm.outcome import Ending, ending
from imagebuild.check.slurm.script import job_script, settings
from imagebuild.check.slurm.task import Task, list_key
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.host.clock import Clock, Sleep, monotonic, sleep
from imagebuild.target.site import Site

_FIRST, _LONGEST = 0.25, 15.0
"""Seconds between two looks at the queue: short at first, then longer."""
_SILENCE = 900.0
"""Seconds for which a controller may give no answer."""
_SETTLE = 30.0
"""Seconds that a file written on a node may take to be seen here (attributes are cached on network file systems)."""
_TAIL = 2000


class Batch:
    """A list of tasks at a site, in its folder."""

    def __init__(
        self,
        site: Site,
        folder: Path,
        container: Container,
        client: SlurmClient,
        *,
        clock: Clock = monotonic,
        pause: Sleep = sleep,
    ) -> None:
        self._site = site
        self._root = folder
        self._container = container
        self._client = client
        self._clock = clock
        self._pause = pause

    def run(self, tasks: Sequence[Task], *, keep: bool = False) -> tuple[Outcome, ...]:
        """Every task's outcome, in order.

        Tasks that a process before this one handed in are waited for, and those that ended meanwhile are not run again;
        when all outcomes are known the folder goes, with `keep` only by `forget`.  Raises RefusedError `check.slurm-refused`, `check.slurm-busy`,
        UnavailableError `check.slurm-unreachable` (the folder stays, so that the same call goes on), and what reading the
        images raises.
        """
        job = self.folder_of(tasks)
        with job.locked():
            if not job.made:
                prepare_folder(self._site, self._container, job, tasks)
            self._submit(job, tasks)
            endings = self._wait(job, len(tasks))
            outcomes = tuple(task_outcome(self._site, job, index, *endings[index]) for index in range(len(tasks)))
            if not keep:
                remove_tree(job.path)
            return outcomes

    def forget(self, tasks: Sequence[Task]) -> None:
        """Removes what `keep` kept."""
        job = self.folder_of(tasks)
        with job.locked():
            if job.path.exists():
                remove_tree(job.path)

    def folder_of(self, tasks: Sequence[Task]) -> JobFolder:
        site = self._site
        key = list_key({"name": site.name, "container": site.container, "partition": site.partition}, tasks).hex
        return JobFolder(self._root / f"tasks-{key[:32]}", key)

    def _submit(self, job: JobFolder, tasks: Sequence[Task]) -> None:
        """Hands in what is neither over nor on its way."""
        on_the_way: set[int] = set()
        for one in job.submissions():
            found = self._find(job, one)
            if found is not None and found.number is not None:
                states = self._states(found.number)
                on_the_way |= {index for index in found.tasks if index in states}
        left = [index for index in range(len(tasks)) if index not in on_the_way and job.status(index) is None]
        if left:
            one = job.intend(left)
            job.submitted(one, self._client.submit(job.script, left, one.name))

    def _find(self, job: JobFolder, one: Submission) -> Submission | None:
        """The submission with its number; None where it never came to be: the process died before it was made."""
        if one.number is not None:
            return one
        numbers = self._client.named(one.name)
        return job.submitted(one, numbers[-1]) if numbers else None

    def _states(self, number: str) -> dict[int, TaskState]:
        """Slurm's word on each task, asked again while it cannot be asked."""
        since = self._clock()
        wait = _FIRST
        while (found := self._client.states(number)) is None:
            if self._clock() - since > _SILENCE:
                raise unreachable(f"no answer about job {number} in {_SILENCE:g} s")
            self._pause(wait)
            wait = min(wait * 2, _LONGEST)
        return dict(found)

    def _wait(self, job: JobFolder, count: int) -> dict[int, tuple[Ending, TaskState | None]]:
        done: dict[int, tuple[Ending, TaskState | None]] = {}
        numbers = {index: one.number for one in job.submissions() for index in one.tasks if one.number is not None}
        missing: dict[int, float] = {}
        queued = self._clock()
        wait = _FIRST
        while True:
            known = {number: self._states(number) for number in sorted(set(numbers.values()))}
            for index in range(count):
                if index in done:
                    continue
                number = numbers.get(index)
                state = known[number].get(index) if number is not None else None
                found = ending(job.status(index), state, begun=job.started(index))
                if (
                    found is None
                    and state is not None
                    and state.pending
                    and self._clock() - queued > self._site.queue_limit
                ):
                    found = Ending(
                        End.NOT_STARTED, None, "it waited in the queue for longer than the site's queue_limit", True
                    )
                if found is None:
                    continue
                if job.status(index) is None and not found.cancel and (state is None or not state.live):
                    # its last words may be on their way through a network file system
                    settled = self._clock() - missing.setdefault(index, self._clock()) >= _SETTLE
                    if not settled and _may_settle(state):
                        continue
                if found.cancel and number is not None:
                    self._client.cancel(number, index)
                done[index] = (found, state)
                wait = _FIRST
            if len(done) == count:
                return done
            self._pause(wait)
            wait = min(wait * 1.5, _LONGEST)


def prepare_folder(
    site: Site, container: Container, job: JobFolder, tasks: Sequence[Task], *, watch: bool = False
) -> None:
    """Writes everything that the tasks need; what a process before this one left half made goes first."""
    if job.path.exists():
        remove_tree(job.path)
    with io_faults(job.path, "writing"):
        job.path.mkdir(mode=0o700, parents=True)
    name = f"imagebuild-{job.key[:16]}"
    atomic_write(job.script, job_script(site, name, job.key, str(job.path), tasks).encode(), 0o700)
    for index, task in enumerate(tasks):
        folder = job.task(index)
        write_inputs(folder, task.job.inputs)
        values = container.prepare(task, folder, f"inside-{secrets.token_hex(8)}.sh")
        atomic_write(folder / "settings", settings(task, values, watch=watch).encode(), 0o600)
    job.write_manifest([task.to_json() for task in tasks])


def _may_settle(state: TaskState | None) -> bool:
    return state is None or state.state in ("COMPLETED", "FAILED")


def task_outcome(site: Site, job: JobFolder, index: int, found: Ending, state: TaskState | None) -> Outcome:
    """What became of a task, with what it left in its folder."""
    status = job.status(index)
    files = collect_folder(job.task(index) / "out")
    machine: dict[str, Any] = {"runner": "slurm", "container": site.container, "site": site.name, **files.machine()}
    if status is not None:
        machine.update(node=status.node, job=status.job, restarts=status.restarts)
    elif state is not None:
        machine.update(node=state.node, restarts=state.restarts)
    if state is not None:
        machine["state"] = state.state
    stderr = job.text(index, "stderr")
    detail = found.detail
    if found.end is not End.EXITED:
        words = [job.text(index, name) for name in ("import.log", "slurm.log", "srun.log")] + [stderr]
        tail = b"\n".join(word.strip() for word in words if word.strip())[-_TAIL:].decode("utf-8", "replace")
        detail = f"{detail}: {tail}" if tail else detail
    return Outcome(
        found.end,
        found.code if found.end is End.EXITED else None,
        job.text(index, "stdout"),
        stderr,
        files.files,
        0.0 if status is None else status.seconds,
        detail,
        machine,
    )
