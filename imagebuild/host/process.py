"""Running other programs: always with a deadline, never through a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuild.errors import UnavailableError


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
