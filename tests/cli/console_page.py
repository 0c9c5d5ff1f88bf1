"""Runs a page: files that it shows are written, commands of its console blocks are typed, their answers are compared.

A file is a line `` `path`: `` (or `` `path`, words: ``) before a block.  In an answer a line `…` stands for any lines, and `…` within
a line for any text.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"(?:^`(?P<path>[^`\n]+)`(?:, [^:\n]+)?:\n\n)?^```(?P<kind>[a-z]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Typed:
    """One command of a page with what the page says of its answer, and the answer that came (both streams)."""

    command: str
    expected: tuple[str, ...]
    code: int
    answer: tuple[str, ...]

    @property
    def as_told(self) -> bool:
        """Whether the answer is the page's; a line `…` is any number of lines."""
        pattern = "\n".join(
            "(?:.*\n)*.*" if line == "…" else re.escape(line).replace("…", ".*") for line in self.expected
        )
        pattern = pattern.replace("(?:.*\n)*.*\n", "(?:.*\n)*")
        return re.fullmatch(pattern, "\n".join(self.answer)) is not None


def run_page(page: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[Typed]:
    """Types the page's commands one after the other, beginning in `folder`; `cd` is remembered."""
    here = folder
    place = folder / ".here"
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["path"] is not None:
            file = here / block["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block["text"], encoding="utf-8")
        elif block["kind"] == "console":
            for command, expected in _commands(block["text"]):
                done = subprocess.run(
                    ["bash", "-c", f'{command}\ncode=$?\npwd > "$PAGE_PLACE"\nexit $code'],
                    cwd=here,
                    env={**environment, "PAGE_PLACE": str(place)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                )
                here = Path(place.read_text().strip())
                yield Typed(command, expected, done.returncode, tuple(done.stdout.splitlines()))


def _commands(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    command: str | None = None
    expected: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, tuple(expected)
            command, expected = line[2:], []
        else:
            expected.append(line)
    if command is not None:
        yield command, tuple(expected)


def newcomer(folder: Path, programs: Path) -> dict[str, str]:
    """The environment of somebody who has just installed: a home of their own, imagebuild on PATH, no setting."""
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return {**kept, "HOME": str(folder), "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONUTF8": "1"}
