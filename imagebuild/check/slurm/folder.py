"""A job array's folder on disk that every node sees, and what it tells of tasks that ran.

`manifest.json` (the tasks), `job.sh`, `submissions/N.json` (tasks handed in together; `N.number` is Slurm's number for
them) and for each task `tasks/I/`: `settings`, `in`, `out`, `run` (what the container writes of itself), `stdout`,
`stderr`, `slurm.log`, and `status.json`, which the task itself writes at its end.  Everything that is read again appears
whole or not at all, so that another process can go on from any moment.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.check.runner import OUTPUT_LIMIT
from imagebuild.content.canonical import document_json
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import RefusedError

_STATUS_LIMIT = 64 << 10


@dataclass(frozen=True, slots=True)
class Submission:
    """Tasks that are handed in together under a job name of their own; `number` is Slurm's, None while it is not known."""

    serial: int
    name: str
    tasks: tuple[int, ...]
    number: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What a task wrote at its end.  `end` is `exited`, `deadline`, `not-started`, `lost` or `stopped` (by a signal to
    its step); `seconds` those of the command, start of the container included."""

    end: str
    code: int | None
    detail: str
    seconds: float
    node: str
    job: str
    restarts: int


class JobFolder:
    """The folder of one list of tasks."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For this process alone; the lock goes with the process.  Raises RefusedError `check.slurm-busy`."""
        lock = self.path.with_name(self.path.name + ".lock")
        while True:
            with io_faults(self.path, "making"):
                lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(handle)
                raise RefusedError(
                    "check.slurm-busy",
                    f"another process waits for the same tasks in {self.path}",
                    hint="wait for it, or end it and give the command again",
                ) from error
            if _is_at(handle, lock):
                break
            os.close(handle)  # who held it removed the file when it was done
        try:
            yield
        finally:
            if not self.path.exists():
                lock.unlink(missing_ok=True)
            os.close(handle)

    @property
    def made(self) -> bool:
        """Whether everything that tasks need is there."""
        return (self.path / "manifest.json").is_file()

    @property
    def script(self) -> Path:
        return self.path / "job.sh"

    def task(self, index: int) -> Path:
        return self.path / "tasks" / str(index)

    def write_manifest(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        """The list of tasks; written last, it makes the folder whole."""
        value = {"kind": "slurm-tasks", "schemaVersion": 1, "key": self.key, "tasks": list(tasks)}
        atomic_write(self.path / "manifest.json", document_json(value), 0o600)

    def submissions(self) -> tuple[Submission, ...]:
        out = []
        folder = self.path / "submissions"
        for path in folder.glob("*.json") if folder.is_dir() else ():
            value = json.loads(path.read_bytes())
            number = path.with_suffix(".number")
            found = number.read_text().strip() if number.is_file() else None
            out.append(Submission(int(path.stem), value["name"], tuple(value["tasks"]), found))
        return tuple(sorted(out, key=lambda one: one.serial))

    def intend(self, tasks: Sequence[int]) -> Submission:
        """Writes down that these tasks are about to be handed in, under which name."""
        serial = len(self.submissions())
        one = Submission(serial, f"imagebuild-{self.key[:16]}-{serial}", tuple(tasks))
        value = {"kind": "slurm-submission", "schemaVersion": 1, "name": one.name, "tasks": list(one.tasks)}
        atomic_write(self.path / "submissions" / f"{serial}.json", document_json(value), 0o600)
        return one

    def submitted(self, one: Submission, number: str) -> Submission:
        atomic_write(self.path / "submissions" / f"{one.serial}.number", f"{number}\n".encode(), 0o600)
        return Submission(one.serial, one.name, one.tasks, number)

    def status(self, index: int) -> Status | None:
        """What the task wrote at its end; None before that, and for what is no such text."""
        try:
            with open(self.task(index) / "status.json", "rb") as stream:
                value = json.loads(stream.read(_STATUS_LIMIT))
            return Status(
                str(value["end"]),
                value["code"] if isinstance(value["code"], int) else None,
                str(value["detail"]),
                int(value["milliseconds"]) / 1000,
                str(value["node"]),
                str(value["job"]),
                int(value["restarts"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def started(self, index: int) -> bool:
        """Whether the command began, in its container."""
        return (self.task(index) / "run" / "started").exists()

    def text(self, index: int, name: str) -> bytes:
        """The first bytes of what a task printed: `stdout`, `stderr`, `slurm.log`, `import.log`."""
        try:
            with open(self.task(index) / name, "rb") as stream:
                return stream.read(OUTPUT_LIMIT)
        except OSError:
            return b""


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False
