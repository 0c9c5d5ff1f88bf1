"""Running programs with a clock on them."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Protocol

from harness.job import Job
from harness.registry import Registry, Traffic

DEADLINE = 1200.0
"""Seconds that one program may take."""


class Failed(Exception):
    """A program ended with another exit code than 0."""


@dataclass(frozen=True, slots=True)
class Step:
    """One program: what it is called in the results, its command, and variables besides a bare environment."""

    label: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """Wall time in seconds from just before the program starts until it has ended, and what it printed."""

    wall: float
    output: str


def run(step: Step) -> Ran:
    """Raises Failed with the end of what it printed."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin",
        "HOME": os.environ.get("HOME", "/root"),
        "LC_ALL": "C.UTF-8",
        **step.env,
    }
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = time.perf_counter()
        child = subprocess.Popen(
            list(step.command), env=env, cwd=step.cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        killer = threading.Timer(DEADLINE, child.kill)
        killer.start()
        child.wait()
        wall = time.perf_counter() - begun
        killer.cancel()
        out.seek(0)
        text = out.read().decode("utf-8", "replace")
        if child.returncode != 0:
            err.seek(0)
            said = (text + err.read().decode("utf-8", "replace"))[-3000:]
            raise Failed(f"{' '.join(step.command)}: exit {child.returncode}\n{said}")
    return Ran(wall, text)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run's result goes and which base it is made of: the host as the program sees it, and names there."""

    host: str
    repository: str
    base: str = "engine/base"
    base_tag: str = "v1"
    base_digest: str = ""
    tag: str = "patched"

    @property
    def base_name(self) -> str:
        return f"{self.host}/{self.base}:{self.base_tag}"

    @property
    def result(self) -> str:
        return f"{self.host}/{self.repository}:{self.tag}"


class Way(Protocol):
    """One way of doing the job.

    `key` is its name for --ways, `title` in the table; `kind` is what it starts from; `base` the stack it builds on;
    `delayed` whether the registry is reached through the delaying proxy; `checked` whether there is a result to look at.
    """

    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def base(self) -> str: ...

    @property
    def delayed(self) -> bool: ...

    @property
    def checked(self) -> bool: ...

    def missing(self) -> str | None:
        """Why it cannot be measured here, None where it can."""
        ...

    def job(self, repeat: int) -> Job: ...

    def before(self, place: Place, repeat: int, forget: Callable[[], None]) -> None:
        """Brings everything into the state that the run starts from; `forget` empties the registry of all results."""
        ...

    def steps(self, place: Place, repeat: int) -> Sequence[Step]: ...

    def close(self) -> None:
        """Stops what was started and removes what was stored."""
        ...


@dataclass(slots=True)
class Result:
    """All runs of one way."""

    walls: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    same_tree: bool | None = None
    faults: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def wall(self) -> float:
        return median(self.walls)

    def middle(self, name: str) -> int:
        return int(median(getattr(item, name) for item in self.traffic))


def measure_once(way: Way, place: Place, repeat: int, result: Result, registry: Registry, base: Sequence[str]) -> None:
    """One run, added to `result`."""
    mark = registry.mark()
    parts: dict[str, float] = {}
    outputs = []
    for step in way.steps(place, repeat):
        ran = run(step)
        parts[step.label] = parts.get(step.label, 0.0) + ran.wall
        outputs.append(ran.output)
    result.walls.append(sum(parts.values()))
    result.parts.append(parts)
    result.traffic.append(registry.traffic(mark, base))
    result.outputs = outputs
