"""The three standard streams, made fit for use: none is missing, none dies of a character, and nobody has to listen."""

from __future__ import annotations

import io
import os
import sys


def settle_streams() -> None:
    """Called once, before anything opens a file.

    A closed descriptor 0, 1 or 2 becomes the null device: the next file that is opened would take its number, and every
    child process would write there.  A character that the locale's encoding lacks is escaped.  Once nobody reads stderr
    any more the rest of it is dropped: progress that is not heard ends no work.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
    sys.stderr = _Unheard(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=True,
        write_through=True,
    )


def silence(descriptor: int) -> None:
    """What is still buffered for the descriptor, and all that follows, goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


class _Unheard(io.TextIOWrapper):
    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            silence(2)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            silence(2)
