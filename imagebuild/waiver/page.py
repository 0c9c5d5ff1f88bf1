"""A waiver's page as Markdown, taken apart: title, sections, tables, links, code spans, with line numbers.

Tolerant of how people write: headings of any level and case, English or Chinese, ATX or underlined; fenced code is text.
Only what a rule asks for is understood; nothing here is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuild.content.files import io_faults
from imagebuild.errors import InputError
from imagebuild.waiver.headings import also_means, section_of

SIZE_LIMIT = 1 << 20
"""Bytes of a page; what a search may look over at a time is bounded in each pattern, so that time stays with size."""

URL = re.compile(r"https?://[^\s<>()\[\]`|\"',;,。;)]+")
UPSTREAM_URL = re.compile(r"https?://[^\s<>()\[\]`|\"']{1,300}/(?:pull|issues|merge_requests)/\d+")
SHORT_REFERENCE = re.compile(r"(?<![\w&/])(?:[A-Za-z][\w.-]{0,100}/[\w.-]{1,100})?#\d{1,7}\b")
"""`owner/name#12` and `#12`, as code hosts link them."""
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its number, counted from 1; `fenced` inside a code block."""

    number: int
    text: str
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table below its header: `cells` without outer spaces."""

    line: int
    cells: tuple[str, ...]

    @property
    def text(self) -> str:
        return " | ".join(self.cells)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it, deeper headings with it.  `key` is one of headings.py, or None."""

    key: str | None
    heading: str
    line: int
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    @property
    def filled(self) -> bool:
        """Whether a sentence stands there: rules, marks and headings are no content."""
        words = [w for w in self.text.splitlines() if not w.lstrip().startswith("#") and not set(w) <= set(" |-:*_")]
        return len(re.sub(r"[\W_]+", "", "".join(words))) >= 3

    def rows(self) -> Iterator[Row]:
        """The rows of its tables, headers left out."""
        for index, line in enumerate(self.lines):
            if line.fenced or not is_row(line.text) or is_rule(line.text):
                continue
            after = self.lines[index + 1].text if index + 1 < len(self.lines) else ""
            if not is_rule(after):
                yield Row(line.number, split_row(line.text))

    def paragraphs(self) -> Iterator[Line]:
        """Blocks of text as one line each: paragraphs, bullets with their continuation, rows of tables."""
        start, parts = 0, list[str]()
        for line in (*self.lines, Line(0, "")):
            opens = re.match(r"\s*(?:[-*+]|\d+[.)])\s", line.text) or is_row(line.text) or line.text.startswith("#")
            if parts and (not line.text.strip() or opens):
                yield Line(start, " ".join(parts))
                parts = []
            if line.text.strip() and not line.fenced and not is_rule(line.text):
                start = start if parts else line.number
                parts.append(line.text.strip())


@dataclass(frozen=True, slots=True)
class Page:
    """One page.  `file` is its name for people; `number` that of its file name, `title_number` that of its title."""

    file: str
    name: str
    title: str
    title_line: int
    head: tuple[Line, ...]
    sections: tuple[Section, ...]
    text: str

    @property
    def chinese(self) -> bool:
        return self.name.endswith("_zh.md")

    @property
    def number(self) -> int | None:
        found = re.fullmatch(r"(\d{1,9})(?:_zh)?\.md", self.name, re.ASCII)
        return int(found[1]) if found else None

    @property
    def title_number(self) -> int | None:
        found = re.search(r"(?:#|\bPR\s*#?|\bpull(?: request)?\s*#?)\s*(\d{1,9})\b", self.title, re.IGNORECASE)
        return int(found[1]) if found else None

    def section(self, key: str) -> Section | None:
        """The section of that meaning: the first one, with the lines of later ones of the same meaning behind it.  Where no
        heading means just that, the first one that means it beside something else."""
        same = [one for one in self.sections if one.key == key]
        same = same or [one for one in self.sections if key in also_means(one.heading, one.text)][:1]
        if not same:
            return None
        first = same[0]
        return Section(key, first.heading, first.line, tuple(line for one in same for line in one.lines))

    def lines(self) -> Iterator[Line]:
        yield from self.head
        for one in self.sections:
            yield Line(one.line, one.heading)
            yield from one.lines


def load_page(path: Path, shown: str) -> Page:
    """Raises InputError `waiver.no-page` where no readable text is."""
    if not path.is_file():
        raise InputError("waiver.no-page", f"{shown} is not a file", found=shown)
    with io_faults(path, "reading"), path.open("rb") as stream:
        data = stream.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise InputError(
            "waiver.no-page", f"{shown} is larger than a page can be", expected=f"at most {SIZE_LIMIT} bytes"
        )
    try:
        return parse_page(data.decode("utf-8-sig"), shown)
    except UnicodeDecodeError as error:
        raise InputError("waiver.no-page", f"{shown} is not UTF-8 text") from error


def parse_page(text: str, file: str) -> Page:
    """Takes a page apart; any text is a page."""
    lines = list(_lines(text))
    headings = [found for line in lines if not line.fenced and (found := _HEADING.match(line.text))]
    title_heading = next((found for found in headings if len(found[1]) == 1), None)
    shallow = {section_of(found[2]) for found in headings if len(found[1]) <= 2 and found is not title_heading}
    title, title_line = "", 1
    head: list[Line] = []
    sections: list[tuple[str, int, list[Line]]] = []
    for line in lines:
        heading = None if line.fenced else _HEADING.match(line.text)
        if heading and not title and len(heading[1]) == 1:
            title, title_line = heading[2], line.number
            head.append(line)
        elif heading and (len(heading[1]) <= 2 or section_of(heading[2]) not in shallow | {None}):
            # a deeper heading opens a section only where no heading of the page's own level means the same
            sections.append((heading[2], line.number, []))
        elif sections:
            sections[-1][2].append(line)
        else:
            head.append(line)
    made = tuple(Section(section_of(h), h, number, tuple(body)) for h, number, body in sections)
    return Page(file, file.rpartition("/")[2], title, title_line, tuple(head), made, text)


def _lines(text: str) -> Iterator[Line]:
    """Lines with fences seen and comments left out; an underlined heading is given as the same heading in `#` form."""
    raw = text.replace("\r\n", "\n").split("\n")
    fence = ""
    skip = hidden = False
    for number, line in enumerate(raw, 1):
        if skip:
            skip = False
            continue
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            yield Line(number, line, True)
            continue
        line, hidden = _visible(line, hidden)
        mark = _FENCE.match(line)
        if mark:
            fence = mark[1]
            yield Line(number, line, True)
            continue
        below = raw[number] if number < len(raw) else ""
        if line.strip() and not is_row(line) and re.fullmatch(r" {0,3}(=+|-{3,})[ \t]*", below):
            before = raw[number - 2] if number > 1 else ""
            if not before.strip():
                skip = True
                yield Line(number, ("# " if below.strip()[0] == "=" else "## ") + line.strip())
                continue
        yield Line(number, line)


def _visible(line: str, hidden: bool) -> tuple[str, bool]:
    """A line without HTML comments, and whether one goes on behind it: what nobody sees on the page answers nothing.  What
    stands in a code span is no comment."""
    out: list[str] = []
    place = 0
    while True:
        if hidden:
            end = line.find("-->", place)
            if end < 0:
                return "".join(out), True
            place, hidden = end + 3, False
        start = line.find("<!--", place)
        if start < 0 or line.count("`", 0, start) % 2:
            return "".join([*out, line[place:]]), False
        out.append(line[place:start])
        place, hidden = start + 4, True


def is_row(text: str) -> bool:
    return text.lstrip().startswith("|")


def is_rule(text: str) -> bool:
    """The line under a table's header."""
    return is_row(text) and "-" in text and set(text.strip()) <= set("|-: ")


def split_row(text: str) -> tuple[str, ...]:
    inner = text.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return tuple(part.replace("\\|", "|").strip() for part in re.split(r"(?<!\\)\|", inner))


def code_spans(text: str) -> tuple[str, ...]:
    """What stands in code spans, in order, each within its line (CommonMark 6.1: a span ends at the next run of as many
    backticks).  Linear in the text, whatever stands there."""
    out = []
    for line in text.split("\n"):
        runs = [found.span() for found in re.finditer("`+", line)]
        ends: list[int | None] = [None] * len(runs)
        latest: dict[int, int] = {}
        for index in range(len(runs) - 1, -1, -1):
            length = runs[index][1] - runs[index][0]
            ends[index] = latest.get(length)
            latest[length] = index
        index = 0
        while index < len(runs):
            end = ends[index]
            if end is None:
                index += 1
                continue
            out.append(line[runs[index][1] : runs[end][0]].strip())
            index = end + 1
    return tuple(out)


def names_upstream(text: str) -> bool:
    """Whether a text names a pull request or an issue."""
    return bool(UPSTREAM_URL.search(text) or SHORT_REFERENCE.search(re.sub(URL, "", text)))
