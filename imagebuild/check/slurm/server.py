"""A job that serves, on a node of the cluster."""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace
from pathlib import Path

from imagebuild.check.runner import End, Outcome, Server
from imagebuild.check.runners.place import remove_tree
from imagebuild.check.slurm.array import prepare_folder, task_outcome
from imagebuild.check.slurm.client import SlurmClient, TaskState
from imagebuild.check.slurm.container import Container
from imagebuild.check.slurm.folder import JobFolder
from imagebuild.check.slurm.outcome import Ending, ending
from imagebuild.check.slurm.task import GRACE, Task
from imagebuild.content.files import atomic_write
from imagebuild.errors import UnavailableError
from imagebuild.host.clock import Clock, Sleep, monotonic, sleep
from imagebuild.target.site import Site

_PAUSE = 0.25
_ASK = 5.0
"""Seconds between two questions to Slurm while a server runs."""
_NOTICED = 20.0
"""Seconds until a node may have noticed a file that was written here."""


def start_server(
    site: Site,
    root: Path,
    container: Container,
    client: SlurmClient,
    task: Task,
    port: int,
    *,
    clock: Clock = monotonic,
    pause: Sleep = sleep,
) -> Server:
    """Hands the job in and waits until its command began, so that its node is known.

    A job that ends before that gives a server that has ended.  Raises UnavailableError `check.slurm-queue` where the
    site's queue_limit passes first, and what handing in raises.
    """
    key = secrets.token_hex(16)
    job = JobFolder(root / f"server-{key}", key)
    try:
        prepare_folder(site, container, job, [task], watch=True)
        one = job.intend([0])
        one = job.submitted(one, client.submit(job.script, [0], one.name))
    except BaseException:
        remove_tree(job.path)
        raise
    assert one.number is not None
    server = SlurmServer(site, client, job, one.number, port, clock, pause)
    try:
        until = clock() + site.queue_limit
        while not job.started(0) and server.ended() is None:
            if clock() > until:
                raise UnavailableError(
                    "check.slurm-queue",
                    f"job {one.number} waited in the queue of site {site.name} for longer than its queue_limit",
                )
            pause(_PAUSE)
    except BaseException:
        server.stop()
        raise
    return server


class SlurmServer:
    """`address` is the node by Slurm's word for it, and the port."""

    def __init__(
        self, site: Site, client: SlurmClient, job: JobFolder, number: str, port: int, clock: Clock, pause: Sleep
    ) -> None:
        self._site = site
        self._client = client
        self._job = job
        self._number = number
        self._port = port
        self._clock = clock
        self._pause = pause
        self._asked = float("-inf")
        self._lock = threading.RLock()
        self._outcome: Outcome | None = None
        self._address: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        if self._address is None:
            node = self._job.text(0, "node").decode("utf-8", "replace").strip()
            self._address = (self._client.node_address(node) if node else self._site.name, self._port)
        return self._address

    def ended(self) -> Outcome | None:
        with self._lock:
            if self._outcome is None and self._worth_asking():
                state = self._state()
                found = ending(self._job.status(0), state, begun=self._job.started(0)) if state is not None else None
                if found is not None:
                    self._finish(found, state)
            return self._outcome

    def _worth_asking(self) -> bool:
        """Callers look often; Slurm's controller is asked now and then, and when the job wrote down its end."""
        if self._job.status(0) is None and self._clock() - self._asked < _ASK:
            return False
        self._asked = self._clock()
        return True

    def log_tail(self, limit: int = 20_000) -> str:
        if self._outcome is not None:
            both = self._outcome.stdout + self._outcome.stderr
        else:
            both = self._job.text(0, "stdout") + self._job.text(0, "stderr")
        return both[-limit:].decode("utf-8", "replace") if limit > 0 else ""

    def stop(self) -> Outcome:
        """TERM to the command, and the whole job cancelled where it does not end by that."""
        with self._lock:
            before = self.ended()
            if before is not None:
                return before
            # a file rather than a signal of Slurm's, which reaches some processes twice and others not at all
            atomic_write(self._job.task(0) / "run" / "stop", b"")
            until = self._clock() + GRACE + _NOTICED
            while self._clock() < until and self._job.status(0) is None:
                self._pause(_PAUSE)
            status = self._job.status(0)
            if status is None:
                self._client.cancel(self._number)
            # a job that wrote down its end still clears up on its node
            while (state := self._state()) is not None and state.live and self._clock() < until + GRACE:
                self._pause(_PAUSE)
            if state is None or state.live:
                self._client.cancel(self._number)
            if status is not None and status.code is not None:
                found = Ending(End.EXITED, status.code, "stopped on request")
            else:
                found = Ending(End.EXITED, 137, "stopped on request")
            outcome = self._finish(found, state)
            # with a signal of ours it ended, which is no fault of the job's
            self._outcome = replace(outcome, detail="stopped on request")
            return self._outcome

    def _state(self) -> TaskState | None:
        """None where Slurm could not be asked, which says nothing."""
        states = self._client.states(self._number)
        if states is None:
            return None
        return states.get(0, TaskState("COMPLETED"))

    def _finish(self, found: Ending, state: TaskState | None) -> Outcome:
        if found.cancel:
            self._client.cancel(self._number)
        self._outcome = task_outcome(self._site, self._job, 0, found, state)
        remove_tree(self._job.path)
        return self._outcome
