"""What a build tells while it runs.  The library emits; whoever listens shows bars, writes lines, or kills us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Listener = Callable[["Event"], None]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.  `name` is stable: `layer.read`, `layer.made`, `blob.stored`, `image.stored`, …; `data` holds
    JSON values.  `progress` events carry `done` and `total` (bytes; total None where unknown) under one `task` text."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)


def silent(event: Event) -> None:
    """Listens to nothing."""


class Emitter:
    """Passes events to a listener; `task` gives a progress callback for one long step."""

    def __init__(self, listener: Listener = silent) -> None:
        self._listener = listener

    def emit(self, name: str, **data: Any) -> None:
        self._listener(Event(name, data))

    def task(self, text: str, total: int | None) -> Callable[[int], None]:
        """A callback that takes the bytes done since its last call."""
        done = 0
        self.emit("progress", task=text, done=0, total=total)

        def advance(more: int) -> None:
            nonlocal done
            done += more
            self.emit("progress", task=text, done=done, total=total)

        return advance
