"""What the scripted registry does wrong, and what it was asked."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request as it came: `path` without query, header names in lower case, `received` bytes of its body, `status`
    that was answered (0: the connection was cut instead)."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str] = field(repr=False)
    received: int
    status: int

    @property
    def line(self) -> str:
        """`METHOD PATH`, with the query where there is one."""
        return f"{self.method} {self.path}" + (f"?{self.query}" if self.query else "")


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong, for requests whose `METHOD PATH?QUERY` line `pattern` is found in.

    The first `skip` such requests go well, then `times` go wrong.  `status` (with `headers` and `body`) answers in the
    registry's place: before it acts, or with `after` when it has acted, as when only the answer is lost.  Without
    `status`, `headers` are added to the right answer ("" removes one) and `change` alters its body while the
    headers but Content-Length keep what they said of it.  `cut_request` takes so many bytes of the request's body, keeps them, and closes the
    connection; `cut_response` sends so many bytes of the answer's body and closes it.  `delay` is added to the
    double's `delayed` counter and to its clock; no time passes.  `act` is called first.
    """

    pattern: str
    times: int = 1
    skip: int = 0
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    after: bool = False
    change: Callable[[bytes], bytes] | None = None
    cut_request: int | None = None
    cut_response: int | None = None
    delay: float = 0.0
    act: Callable[[], None] | None = None

    def matches(self, line: str) -> bool:
        return re.search(self.pattern, line) is not None


class Gathering:
    """Holds requests until `count` of them are there at the same time, so that a test of parallel requests needs no
    clock; where they do not come together the waiting ends and `broken` is set."""

    def __init__(self, pattern: str, count: int, patience: float = 10.0) -> None:
        self._pattern = re.compile(pattern)
        self._barrier = threading.Barrier(count)
        self._patience = patience
        self._left = count
        self._lock = threading.Lock()
        self.broken = False

    def join(self, line: str) -> None:
        with self._lock:
            if self._left == 0 or not self._pattern.search(line):
                return
            self._left -= 1
        try:
            self._barrier.wait(self._patience)
        except threading.BrokenBarrierError:
            self.broken = True


class Script:
    """The faults still to come, taken one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.faults: list[Fault] = []

    def take(self, line: str) -> Fault | None:
        """The first fault that is due for this request."""
        with self._lock:
            for fault in self.faults:
                if not fault.matches(line):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if fault.times > 0:
                    fault.times -= 1
                    return fault
        return None
