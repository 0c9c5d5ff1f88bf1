"""Running other programs: always with a deadline, never through a shell."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from imagebuild.errors import UnavailableError
from imagebuild.host.clock import monotonic, sleep

TAIL = 256 << 10
"""Bytes of the last output of a started program that are kept beside its first."""
_DRAIN = 5.0
"""Seconds that what a program printed may take to arrive after its end."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Exit code and outputs of a program."""

    code: int
    stdout: bytes
    stderr: bytes


def run(
    command: Sequence[str],
    *,
    deadline: float,
    stdin: bytes = b"",
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Runs a program for at most `deadline` seconds.

    Raises UnavailableError `host.missing-program` or `host.deadline`; an exit code other than 0 is the caller's matter.
    """
    try:
        done = subprocess.run(
            list(command),
            input=stdin,
            capture_output=True,
            timeout=deadline,
            cwd=cwd,
            env=None if environment is None else dict(environment),
            check=False,
        )
    except FileNotFoundError as error:
        raise UnavailableError("host.missing-program", f"the program {command[0]!r} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError("host.deadline", f"{command[0]!r} did not end within {deadline:g} s") from error
    return Finished(done.returncode, done.stdout, done.stderr)


def start(
    command: Sequence[str],
    *,
    limit: int,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    hold_stdin: bool = False,
) -> Process:
    """Starts a program in a process group of its own, and returns at once.

    `limit` is how many bytes of each output stream are kept; the program is never held up by more.  With `hold_stdin` its
    standard input is a pipe that nobody writes to and that closes when this process ends, however it ends; else it is
    empty.  Raises UnavailableError `host.missing-program`, also where it may not be run.
    """
    try:
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE if hold_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(
            "host.missing-program", f"the program {command[0]!r} cannot be started: {error.strerror or error}"
        ) from error
    return Process(popen, limit)


class Process:
    """A program that runs beside us, with everything that it started and that stayed in its process group."""

    def __init__(self, popen: subprocess.Popen[bytes], limit: int) -> None:
        self._popen = popen
        self._limit = limit
        self._lock = threading.Lock()
        self._tail = bytearray()
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._code: int | None = None
        streams = {"stdout": popen.stdout, "stderr": popen.stderr}
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True) for name, stream in streams.items()
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> int | None:
        """The exit code, 128 + N where signal N ended it, once it ended; None while it runs.

        What is left of its group is killed then: before the program is reaped, so that the group's number is still its own.
        """
        with self._lock:
            if self._code is None and self._has_ended():
                self._signal(signal.SIGKILL)
                code = self._popen.wait()
                self._code = 128 - code if code < 0 else code
            else:
                return self._code
        self.release()
        until = monotonic() + _DRAIN
        for reader in self._readers:
            reader.join(max(0.0, until - monotonic()))
        return self._code

    def wait(self, seconds: float) -> int | None:
        """As `poll`, after waiting for the end for that long at most."""
        until = monotonic() + seconds
        pause = 0.001
        while (code := self.poll()) is None:
            left = until - monotonic()
            if left <= 0:
                return None
            sleep(min(pause, left))
            pause = min(pause * 2, 0.05)
        return code

    def release(self) -> None:
        """Closes the input that was held, which a program may take as a request to end."""
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def terminate(self) -> None:
        """TERM for the whole group."""
        if self.poll() is None:
            self._signal(signal.SIGTERM)

    def stop(self, grace: float = 0.0) -> int:
        """Ends the whole group: TERM, then KILL after `grace` seconds; its exit code, which may be of before."""
        if grace > 0:
            self.terminate()
            self.wait(grace)
        while self.poll() is None:
            self._signal(signal.SIGKILL)
            self.wait(1.0)
        assert self._code is not None
        return self._code

    def output(self) -> tuple[bytes, bytes]:
        """The first bytes of standard output and of standard error so far."""
        return bytes(self._kept["stdout"]), bytes(self._kept["stderr"])

    def tail(self, limit: int) -> str:
        """The last bytes of both, as they came."""
        return bytes(self._tail[-limit:]).decode("utf-8", "replace") if limit > 0 else ""

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, number)

    def _read(self, name: str, stream: IO[bytes]) -> None:
        kept = self._kept[name]
        with stream:
            while part := os.read(stream.fileno(), 1 << 16):
                kept += part[: max(0, self._limit - len(kept))]
                self._tail += part
                if len(self._tail) > 2 * TAIL:
                    del self._tail[:-TAIL]
