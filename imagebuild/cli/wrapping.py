"""Lines within a terminal's width.  Digests, references, paths and commands stay whole, so that they can be pasted."""

from __future__ import annotations

import re
from unicodedata import east_asian_width

COMMAND = re.compile(r"(?:(?<=\s)|(?<=`)|^)imagebuild [a-z]")
"""Where a command begins; it is never broken."""
COLUMN = re.compile(r"(?<=\S)  +(?=\S)")
"""Between two columns of a table."""


def fit(text: str, width: int) -> str:
    """The text with lines of at most `width` columns, as far as whole words allow.

    What follows stands under the last column of a table's row, or two further in than its line.  A word that is wider
    than the terminal gets a line of its own.
    """
    return "\n".join(part for line in text.split("\n") for part in _folded(line, width))


def reflow(text: str, width: int) -> str:
    """Paragraphs broken anew for the width; indented lines (examples, lists) stay lines."""
    out: list[str] = []
    for line in text.split("\n"):
        follows = bool(out) and bool(out[-1]) and not out[-1].startswith(" ") and not out[-1].endswith(":")
        if follows and line and not line.startswith((" ", "- ", "* ")):
            out[-1] += " " + line
        else:
            out.append(line)
    return "\n".join(
        part if line.startswith(" ") else part.lstrip() for line in out for part in fit(line, width).split("\n")
    )


def columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def _folded(line: str, width: int) -> list[str]:
    if columns(line) <= width or " " not in line.strip():
        return [line]
    indent = len(line) - len(line.lstrip())
    hang = _hang(line, width, indent)
    out: list[str] = []
    current = ""
    for word in _words(line):
        wanted = current + word if current else word
        if not current.strip() or columns(wanted) <= width:
            current = wanted
            continue
        out.append(current.rstrip())
        bare = word.lstrip()
        # a wide word goes as far in as it can
        current = " " * max(min(hang, width - columns(bare)), min(hang, indent + 2)) + bare
    return [*out, current]


def _hang(line: str, width: int, indent: int) -> int:
    """Where further lines begin: under the row's last column, where that leaves room for text."""
    ends = [found.end() for found in COLUMN.finditer(line) if found.end() <= width * 6 // 10]
    return ends[-1] if ends else indent + 2


def _words(line: str) -> list[str]:
    """Words with the spaces before them; a command is one word, to the end of the line or of its quotation."""
    found = COMMAND.search(line)
    if found is None:
        return re.findall(r"\s*\S+", line)
    at = found.start()
    quoted = at > 0 and line[at - 1] == "`"
    end = line.find("`", at) + 1 if quoted and "`" in line[at:] else len(line)
    before = re.findall(r"\s*\S+", line[:at])
    space = line[len("".join(before)) : at]
    if quoted or not before:
        # the opening quotation mark belongs to the command
        space = before.pop() if before else space
    return [*before, space + line[at:end], *_words(line[end:])]
