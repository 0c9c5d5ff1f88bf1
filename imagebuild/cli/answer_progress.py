"""How far an accuracy run is: a bar with rate and time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from imagebuild.cli.session import Session
from imagebuild.host import clock

if TYPE_CHECKING:
    from imagebuild.check.answers import Answer
    from imagebuild.check.gsm8k import Watch

EVERY = 5.0
"""Seconds between plain lines."""


class AnswerProgress:
    """Watches one arm of `total` questions while the block lasts."""

    def __init__(self, session: Session, arm: str, total: int, *, monotonic: clock.Clock = clock.monotonic) -> None:
        self._session = session
        self._arm = arm
        self._total = total
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._began = self._shown = monotonic()
        self._kept = self._new = 0
        self._bars: Any = None
        self._task: Any = None

    @property
    def watch(self) -> Watch:
        from imagebuild.check.gsm8k import Watch

        return Watch(self.resumed, self.answered)

    def resumed(self, count: int) -> None:
        """The answers that were there already; the rate is that of new ones."""
        with self._lock:
            self._kept = min(count, self._total)
            self._began = self._monotonic()
        if count:
            self._session.output.note(f"{self._arm}: {count} answers of before are kept")
        if self._session.progress.live:
            self._open()

    def answered(self, answer: Answer) -> None:
        with self._lock:
            self._new += 1
            done, moment = self._kept + self._new, self._monotonic()
            if self._new == 1:
                # the evaluation program takes a while to start, which says nothing of the rate
                self._began = max(self._began, moment - answer.seconds)
            rate = self._new / max(moment - self._began, 1e-9)
            if self._bars is not None:
                self._bars.update(self._task, completed=done, rate=f"{rate:.1f}/s")
                return
            if moment - self._shown < EVERY and done < self._total:
                return
            self._shown = moment
            left = max(self._total - done, 0) / rate
        self._session.output.note(f"{self._arm}: {done} of {self._total} answers, {rate:.1f}/s, {left:.0f} s left")

    def waiting(self, seconds: float) -> None:
        """The engine is not up yet."""
        moment = self._monotonic()
        if moment - self._shown >= EVERY:
            self._shown = moment
            self._session.output.note(f"{self._arm}: waiting for the engine, {seconds:.0f} s")

    def refresh(self) -> None:
        """Draws the bar now."""
        if self._bars is not None:
            self._bars.refresh()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bars.add_task(self._arm, total=self._total, completed=self._kept, rate="")
        self._bars.start()

    def __enter__(self) -> AnswerProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
