"""A job as a process of this machine: run to its end, or served until it is stopped."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from imagebuild.check.runner import End, Outcome, Server
from imagebuild.check.runners.files import Collected
from imagebuild.errors import clean
from imagebuild.host.clock import monotonic
from imagebuild.host.process import Process

_FOREIGN = re.compile(rb"[^\n]*\bexec [^\n]*: exec format error[^\n]*\n\Z", re.IGNORECASE)
"""What runc and crun say, as a line or within a JSON line."""
GRACE = 20.0
"""Seconds that a server has between TERM and KILL."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit code, whether we ended it and because of what, and the seconds since its start."""

    code: int
    end: End
    seconds: float


Finish = Callable[[Ended, Process], Outcome]
"""Makes the outcome of a process that has ended, and removes what the job needed."""


def run_to_end(process: Process, deadline: float, finish: Finish, stop: Callable[[], None] | None = None) -> Outcome:
    """Waits for the end, at most `deadline` seconds.  However this is left, process and job are gone: `stop` ends what the
    process does not take along (a container)."""
    begin = monotonic()
    try:
        code = process.wait(deadline)
    except BaseException:
        _stop(process, stop, 0.0)
        finish(Ended(process.stop(), End.DEADLINE, monotonic() - begin), process)
        raise
    seconds = monotonic() - begin
    if code is None:
        _stop(process, stop, 0.0)
        return finish(Ended(process.stop(), End.DEADLINE, seconds), process)
    return finish(Ended(code, End.EXITED, seconds), process)


def _stop(process: Process, stop: Callable[[], None] | None, grace: float) -> None:
    if stop is not None:
        stop()
        process.wait(grace or 5.0)
    process.stop(grace)


def outcome_of(
    ended: Ended,
    output: tuple[bytes, bytes],
    left: Collected,
    machine: Mapping[str, Any],
    *,
    out_of_memory: bool = False,
) -> Outcome:
    """What became of a command that ran: stopped at its deadline it has no exit code of its own.  `output` is standard
    output and standard error."""
    late = ended.end is End.DEADLINE
    detail = "stopped at its deadline" if late else ("out of memory" if out_of_memory else "")
    told = {**machine, **left.machine()}
    return Outcome(ended.end, None if late else ended.code, *output, left.files, ended.seconds, detail, told)


def never_ran(outcome: Outcome) -> Outcome:
    """The outcome, or that the command never started: a program of another architecture is found out when it is executed
    only, and runc then has no other place left for its words than where the command's own would be."""
    if outcome.end is End.EXITED and outcome.code == 1 and not outcome.stdout and _FOREIGN.match(outcome.stderr):
        said = clean(outcome.stderr.decode("utf-8", "replace").strip(), 1000)
        return replace(outcome, end=End.NOT_STARTED, code=None, stderr=b"", detail=said)
    return outcome


class Live:
    """The servers of a runner, so that closing it leaves none of them."""

    def __init__(self) -> None:
        self._servers: list[Server] = []

    def add(self, server: Server) -> Server:
        self._servers.append(server)
        return server

    def close(self) -> None:
        while self._servers:
            self._servers.pop().stop()


class EndedServer:
    """A server that never came to be: `outcome` says why."""

    def __init__(self, outcome: Outcome, port: int) -> None:
        self.address = (LOOPBACK, port)
        self._outcome = outcome

    def ended(self) -> Outcome | None:
        return self._outcome

    def log_tail(self, limit: int = 20_000) -> str:
        return ""

    def stop(self) -> Outcome:
        return self._outcome


class ProcessServer:
    """A server that is a process here.  `finish` is called once, when it is over; at its deadline it is stopped by a
    thread of its own, so that a caller who forgets it leaves nothing running."""

    def __init__(
        self,
        process: Process,
        port: int,
        deadline: float,
        finish: Finish,
        stop: Callable[[], None] | None = None,
        *,
        grace: float = GRACE,
    ) -> None:
        self.address = (LOOPBACK, port)
        self._process = process
        self._finish = finish
        self._stop_job = stop
        self._grace = grace
        self._begin = monotonic()
        self._lock = threading.RLock()
        self._outcome: Outcome | None = None
        self._timer = threading.Timer(deadline, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        with self._lock:
            if self._outcome is None and self._process.poll() is None:
                _stop(self._process, self._stop_job, 0.0)
                self._end(self._process.stop(), End.DEADLINE)

    def ended(self) -> Outcome | None:
        with self._lock:
            if self._outcome is None:
                code = self._process.poll()
                if code is not None:
                    self._end(code, End.EXITED)
            return self._outcome

    def log_tail(self, limit: int = 20_000) -> str:
        return self._process.tail(limit)

    def stop(self) -> Outcome:
        with self._lock:
            before = self.ended()
            if before is not None:
                return before
            _stop(self._process, self._stop_job, self._grace)
            outcome = self._end(self._process.stop(), End.EXITED)
            # with a signal of ours it ended, which is no fault of the job's
            self._outcome = replace(outcome, detail=outcome.detail or "stopped on request")
            return self._outcome

    def _end(self, code: int, end: End) -> Outcome:
        self._timer.cancel()
        self._outcome = self._finish(Ended(code, end, monotonic() - self._begin), self._process)
        return self._outcome
