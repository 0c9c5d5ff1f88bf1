"""Commands of a shell script as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

UNKNOWN = "\0"
"""Stands in a word for what only a run would tell."""


@dataclass(slots=True)
class HereDocument:
    """The text behind `<<`; `literal` where the delimiter is quoted, so that nothing in it is expanded.  Mutable:
    the text comes after the line."""

    line: int
    text: str
    literal: bool


@dataclass(slots=True)
class Redirect:
    """`operator` without its number; `target` the word behind it, or the here-document.  Mutable, as what it
    belongs to."""

    operator: str
    target: str
    document: HereDocument | None = None
    stream: str = ""


@dataclass(slots=True)
class Command:
    """One simple command: its words after quotes and known variables are replaced (UNKNOWN for the rest), its
    redirections, the commands inside its substitutions, the line that it begins in, and the command that is piped
    into it. Mutable while it is read."""

    line: int
    words: list[str] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    inner: list[Command] = field(default_factory=list)
    function: str = ""
    source: Command | None = None


def walk(commands: list[Command]) -> Iterator[Command]:
    """Every command, those inside substitutions before the one that they are in."""
    for command in commands:
        yield from walk(command.inner)
        yield command
