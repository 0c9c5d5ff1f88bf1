"""Verbs that are killed (SIGKILL, no cleaning up) at a chosen moment of their run."""

from __future__ import annotations

import http.client
import os
import signal
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from imagebuild.cli.main import main
from imagebuild.cli.progress import Progress

EVENTS = "events"
"""Each event that the library tells of, before anybody listens to it."""
FILES = "files"
"""Each call that changes a file system."""
REQUESTS = "requests"
"""Before each HTTP request is sent, and when its answer has come."""
RELEASE_STEPS = "release steps"
"""Each time that a release begins a step, which is when the one before it has been written down."""
STEPS = ("mkdir", "replace", "link", "fsync", "unlink", "fchmod", "rmdir")


class _Countdown:
    """Kills its process at the moment number `left`."""

    def __init__(self, left: int) -> None:
        self.left = left

    def moment(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def release_step(self) -> None:
        real = Progress.__call__

        def call(progress: Progress, event: Any) -> None:
            if event.name == "release.step":
                self.moment()
            real(progress, event)

        setattr(Progress, "__call__", call)  # noqa: B010 (mypy refuses the assignment)

    def before(self, owner: Any, name: str, *, after: bool = False) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            self.moment()
            result = real(*args, **more)
            if after:
                self.moment()
            return result

        setattr(owner, name, call)


def killed_at(moment: int, words: Sequence[str | Path], at: Collection[str] = (EVENTS,)) -> int | None:
    """Runs a verb in a child that dies at the moment-th of the chosen kinds of moments.

    None where it died; its exit code where it ended before that.
    """
    child = os.fork()
    if child == 0:
        code = 70
        try:
            countdown = _Countdown(moment)
            if EVENTS in at:
                countdown.before(Progress, "__call__")
            if RELEASE_STEPS in at:
                countdown.release_step()
            if FILES in at:
                for name in STEPS:
                    countdown.before(os, name)
            if REQUESTS in at:
                countdown.before(http.client.HTTPConnection, "endheaders", after=True)
                countdown.before(http.client.HTTPConnection, "getresponse", after=True)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            code = main([str(word) for word in words])
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
