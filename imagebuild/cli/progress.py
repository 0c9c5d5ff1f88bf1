"""Progress on stderr: live bars on a terminal, a plain line now and then elsewhere, events to a file."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import IO, Any

from imagebuild.build.events import Event
from imagebuild.content.files import io_faults
from imagebuild.host import clock
from imagebuild.host.environment import variable

PLAIN_INTERVAL = 5.0
"""Seconds between plain lines of one task, so that a log of CI stays readable."""


class Progress:
    """Listens to events.  Bars (rich, imported only then) need a terminal on stderr and no `CI`."""

    def __init__(self, *, quiet: bool, verbose: bool, events_file: str | None) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.live = sys.stderr.isatty() and variable("CI") is None and not quiet
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._shown: dict[str, float] = {}
        self._events: IO[str] | None = None
        if events_file is not None:
            with io_faults(events_file, "writing"):
                self._events = open(events_file, "a", encoding="utf-8")  # noqa: SIM115 (lives as long as the run)

    def __call__(self, event: Event) -> None:
        if self._events is not None:
            line = {"time": clock.rfc3339(clock.now()), "event": event.name, **event.data}
            self._events.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._events.flush()
        if event.name == "progress":
            self._progress(event)
        elif self.verbose:
            shown = " ".join(f"{key}={value}" for key, value in event.data.items())
            sys.stderr.write(f"{event.name} {shown}\n")

    def _progress(self, event: Event) -> None:
        task, done, total = event.data["task"], event.data["done"], event.data["total"]
        if self.quiet:
            return
        if self.live:
            self._bar(task, done, total)
            return
        moment = clock.monotonic()
        finished = total is not None and done >= total
        if done == 0 or (not finished and moment - self._shown.get(task, moment - PLAIN_INTERVAL) < PLAIN_INTERVAL):
            self._shown.setdefault(task, moment)
            return
        self._shown[task] = moment
        whole = f" of {total / 1e6:.1f}" if total is not None else ""
        sys.stderr.write(f"{task}: {done / 1e6:.1f}{whole} MB\n")

    def _bar(self, task: str, done: int, total: int | None) -> None:
        if self._bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
            from rich.progress import Progress as Bars

            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bars.start()
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(task, total=total)
        self._bars.update(self._tasks[task], completed=done, total=total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        if self._events is not None:
            self._events.close()
