"""Applying hunks: exactly, or, while importing, at a distance that is then written into the patch.

There is no fuzz: every context line counts.  A build applies at the stated lines and nowhere else; an import may search
within 1,000 lines, and only takes a place that is the only one (images.md, Guards).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from imagebuild.errors import RefusedError, clean
from imagebuild.overlay.patch import FilePatch, Hunk, bad_patch

WINDOW = 1000
"""Lines, in both directions, within which an import looks for a hunk."""

_MAX_PLACES = 50
_MAX_REPORTED = 20
_MAX_COMPARED = 5_000_000


def split_lines(data: bytes) -> list[bytes]:
    """The lines with their LF; only the last may lack it.  A CR is part of its line."""
    parts = data.split(b"\n")
    last = parts.pop()
    lines = [part + b"\n" for part in parts]
    if last:
        lines.append(last)
    return lines


class HunkState(str, Enum):
    EXACT = "exact"
    OFFSET = "offset"
    MISSING = "missing"
    AMBIGUOUS = "ambiguous"
    MISORDERED = "out-of-order"
    APPLIED = "already-applied"


@dataclass(frozen=True, slots=True)
class HunkReport:
    """How one hunk fares.  `number` counts from 1, `start` is the stated old line, `offset` how many lines below it the
    hunk was found, `places` the lines (from 1) where it would fit when there are several.  For MISSING, `line` is the
    first differing line of the file with the two sides; None is the end of the file, or of the file's right place."""

    number: int
    start: int
    state: HunkState
    offset: int = 0
    places: tuple[int, ...] = ()
    line: int = 0
    expected: bytes | None = None
    found: bytes | None = None

    def describe(self) -> str:
        """One line for people."""
        head = f"hunk {self.number} (line {self.start})"
        if self.state is HunkState.EXACT:
            return f"{head}: fits"
        if self.state is HunkState.OFFSET:
            return f"{head}: fits at offset {signed(self.offset)}"
        if self.state is HunkState.APPLIED:
            return f"{head}: already applied"
        if self.state is HunkState.AMBIGUOUS:
            shown = ", ".join(str(place) for place in self.places[:5])
            more = ", …" if len(self.places) > 5 else ""
            return f"{head}: fits at several places (lines {shown}{more})"
        if self.state is HunkState.MISORDERED:
            return f"{head}: fits only where it would overlap or come before another hunk"
        return (
            f"{head}: differs in line {self.line}: expected {show_line(self.expected)}, found {show_line(self.found)}"
        )


def signed(number: int) -> str:
    """`+3`, `-6`, `0`."""
    return f"+{number}" if number > 0 else str(number)


def show_line(line: bytes | None) -> str:
    """A line of a file, quoted for a message."""
    if line is None:
        return "the end of the file"
    text = clean(line.decode("utf-8", "replace").replace("\t", "\\t").rstrip("\n").replace("\r", "\\r"), 160)
    return f"{text!r}" + ("" if line.endswith(b"\n") else " without a newline")


@dataclass(frozen=True, slots=True)
class Located:
    """The result of a search: a report for each hunk, and the hunks at their true positions when all were found."""

    reports: tuple[HunkReport, ...]
    hunks: tuple[Hunk, ...] | None

    @property
    def moved(self) -> bool:
        return any(report.offset for report in self.reports)


def _anchors(hunk: Hunk) -> tuple[bool, bool]:
    """Whether the hunk stands at the very beginning, or the very end, of its file.

    Context on one side only says that there were no more lines on the other; git reads it so too.
    """
    lead, trail = hunk.lines[0][:1] == b" ", hunk.lines[-1][:1] == b" "
    opened = any(not text.endswith(b"\n") for text in hunk.lines)
    return (trail and not lead and hunk.old_start <= 1), (lead and not trail) or opened


def _fits(lines: Sequence[bytes], hunk: Hunk, old: list[bytes], position: int) -> bool:
    end = position + len(old)
    if position < 0 or end > len(lines) or lines[position:end] != old:
        return False
    first, last = _anchors(hunk)
    return not (first and position) and not (last and end != len(lines))


def _missing(lines: Sequence[bytes], number: int, hunk: Hunk, position: int) -> HunkReport:
    old = hunk.old
    for step, text in enumerate(old):
        place = position + step
        found = lines[place] if place < len(lines) else None
        if found != text:
            return HunkReport(number, hunk.old_start, HunkState.MISSING, 0, (), place + 1, text, found)
    place = position + len(old)
    found = lines[place] if place < len(lines) else None
    return HunkReport(number, hunk.old_start, HunkState.MISSING, 0, (), place + 1, None, found)


def check_hunks(lines: Sequence[bytes], hunks: Sequence[Hunk]) -> tuple[HunkReport, ...]:
    """Whether each hunk stands exactly where it says."""
    reports = []
    for number, hunk in enumerate(hunks, 1):
        if _fits(lines, hunk, hunk.old, hunk.position):
            reports.append(HunkReport(number, hunk.old_start, HunkState.EXACT))
        else:
            reports.append(_missing(lines, number, hunk, hunk.position))
    return tuple(reports)


def already_applied(data: bytes, hunks: Sequence[Hunk]) -> bool:
    """Whether undoing every hunk would work exactly: the change is there.  Only a report; nothing is ever undone."""
    if not hunks:
        return False
    undo = [hunk.reversed() for hunk in hunks]
    return all(report.state is HunkState.EXACT for report in check_hunks(split_lines(data), undo))


def apply_patch(preimage: bytes, hunks: Sequence[Hunk], path: str = "the file") -> bytes:
    """The file after the hunks, each at exactly its stated lines, with no fuzz.

    Raises RefusedError `overlay.patch-mismatch` (hunk, line, both sides; every failing hunk in `details`),
    `overlay.already-applied` where the reverse fits everywhere, and InputError `overlay.patch-bad-hunk` where the hunks
    contradict each other.  An exact fit is never taken for "already applied".
    """
    shift = end = 0
    for number, hunk in enumerate(hunks, 1):
        if hunk.position < end:
            raise bad_patch(f"{path}: hunk {number} overlaps or comes before the one above it", hunk.line)
        if hunk.new_position != hunk.position + shift:
            raise bad_patch(
                f"{path}: hunk {number} says that it becomes line {hunk.new_start}, the hunks above it make that "
                f"{hunk.moved(hunk.position, hunk.position + shift).new_start}",
                hunk.line,
                "a patch that was edited by hand is set right by `imagebuild overlay import` or `overlay refresh`",
            )
        end = hunk.position + hunk.old_count
        shift += hunk.new_count - hunk.old_count
    lines = split_lines(preimage)
    reports = check_hunks(lines, hunks)
    if any(report.state is not HunkState.EXACT for report in reports):
        raise mismatch(path, reports, already_applied(preimage, hunks))
    return _joined(lines, hunks, path)


def _joined(lines: list[bytes], hunks: Sequence[Hunk], path: str) -> bytes:
    out: list[bytes] = []
    at = 0
    for hunk in hunks:
        out += lines[at : hunk.position]
        out += hunk.new
        at = hunk.position + hunk.old_count
    out += lines[at:]
    for number, text in enumerate(out[:-1], 1):
        if not text.endswith(b"\n"):
            raise RefusedError(
                "overlay.patch-mismatch",
                f"{path}: the patch puts text behind line {number}, which has no newline at its end",
                hint="make the diff against this very file",
            )
    return b"".join(out)


def mismatch(path: str, reports: Sequence[HunkReport], applied: bool) -> RefusedError:
    """The refusal for hunks that do not fit."""
    failed = [report for report in reports if report.state not in (HunkState.EXACT, HunkState.OFFSET)]
    details = {
        "path": path,
        "hunks": [
            {"hunk": r.number, "line": r.line or r.start, "state": r.state.value, "report": r.describe()}
            for r in failed[:_MAX_REPORTED]
        ],
        "failed": len(failed),
    }
    if applied:
        return RefusedError(
            "overlay.already-applied",
            f"{path}: the patch is already in this file",
            hint="drop the patch from the overlay, or the overlay from the target's series",
            details=details,
        )
    first = failed[0]
    more = f" ({len(failed)} of {len(reports)} hunks do not fit)" if len(reports) > 1 else ""
    crlf = _line_ends_differ(first)
    return RefusedError(
        "overlay.patch-mismatch",
        f"{path}: {first.describe()}{more}",
        expected=show_line(first.expected) if first.state is HunkState.MISSING else None,
        found=show_line(first.found) if first.state is HunkState.MISSING else None,
        hint="the patch and the file differ in line ends (CRLF and LF); make the diff against this very file"
        if crlf
        else "make the diff against this very file (`imagebuild overlay edit` puts it into a work folder)",
        details=details,
    )


def _line_ends_differ(report: HunkReport) -> bool:
    one, other = report.expected, report.found
    return one is not None and other is not None and one != other and one.rstrip(b"\r\n") == other.rstrip(b"\r\n")


def locate_hunks(lines: Sequence[bytes], hunks: Sequence[Hunk], window: int = WINDOW) -> Located:
    """Finds each hunk within `window` lines of its stated place, in order and without overlap.

    Where every hunk fits exactly, that is the answer.  Otherwise each must have one place only, counting those that the
    order of the hunks leaves open.  A hunk with context on one side only stays at the file's beginning or end.
    """
    exact = check_hunks(lines, hunks)
    if all(report.state is HunkState.EXACT for report in exact):
        return Located(exact, _placed(hunks, [hunk.position for hunk in hunks]))
    search = _Search(lines, window)
    places = [search.places(hunk) for hunk in hunks]
    anywhere = [bool(found) for found in places]
    _keep_ordered(places, hunks)
    reports = []
    failed = 0
    for number, (hunk, found) in enumerate(zip(hunks, places, strict=True), 1):
        if len(found) == 1:
            offset = found[0] - hunk.position
            state = HunkState.OFFSET if offset else HunkState.EXACT
            reports.append(HunkReport(number, hunk.old_start, state, offset))
        elif found:
            shown = tuple(place + 1 for place in found)
            reports.append(HunkReport(number, hunk.old_start, HunkState.AMBIGUOUS, places=shown))
        elif anywhere[number - 1]:
            reports.append(HunkReport(number, hunk.old_start, HunkState.MISORDERED))
        else:
            failed += 1
            reports.append(search.failure(number, hunk, closely=failed <= _MAX_REPORTED))
    if any(report.state not in (HunkState.EXACT, HunkState.OFFSET) for report in reports):
        return Located(tuple(reports), None)
    return Located(tuple(reports), _placed(hunks, [found[0] for found in places]))


def _placed(hunks: Sequence[Hunk], positions: Sequence[int]) -> tuple[Hunk, ...]:
    shift = 0
    out = []
    for hunk, position in zip(hunks, positions, strict=True):
        out.append(hunk.moved(position, position + shift))
        shift += hunk.new_count - hunk.old_count
    return tuple(out)


def _keep_ordered(places: list[list[int]], hunks: Sequence[Hunk]) -> None:
    """Drops the places that no arrangement in order and without overlap can use.

    A hunk that was found nowhere leaves the others alone; one whose every place is taken away is out of order.
    """
    end = 0
    for found, hunk in zip(places, hunks, strict=True):
        found[:] = [place for place in found if place >= end]
        if found:
            end = found[0] + hunk.old_count
    limit: int | None = None
    for found, hunk in zip(reversed(places), reversed(hunks), strict=True):
        found[:] = [place for place in found if limit is None or place + hunk.old_count <= limit]
        if found:
            limit = found[-1]


class _Search:
    """Finds runs of lines; the rarest line of a run leads to the few places worth comparing."""

    def __init__(self, lines: Sequence[bytes], window: int) -> None:
        self.lines = lines
        self.window = window
        self.where: dict[bytes, list[int]] = {}
        for number, text in enumerate(lines):
            self.where.setdefault(text, []).append(number)
        self.compared = 0

    def near(self, text: bytes, position: int) -> list[int]:
        """Where the line stands within the window around `position`."""
        found = self.where.get(text, [])
        return found[bisect_left(found, position - self.window) : bisect_right(found, position + self.window)]

    def places(self, hunk: Hunk) -> list[int]:
        """Positions, at most 50, in rising order."""
        old = hunk.old
        if not old:
            low = max(0, hunk.position - self.window)
            high = min(len(self.lines), hunk.position + self.window, low + _MAX_PLACES)
            return list(range(low, high + 1))
        step = min(range(len(old)), key=lambda number: len(self.where.get(old[number], ())))
        found: list[int] = []
        for place in self.near(old[step], hunk.position + step):
            self.compared += len(old)
            if self.compared > _MAX_COMPARED:
                raise RefusedError(
                    "overlay.patch-too-repetitive",
                    "the hunks fit, or nearly fit, at too many places to look for them",
                    hint="make the diff against this very file, so that every hunk stands where it says",
                )
            if _fits(self.lines, hunk, old, place - step):
                found.append(place - step)
                if len(found) == _MAX_PLACES:
                    break
        return found

    def failure(self, number: int, hunk: Hunk, closely: bool) -> HunkReport:
        """Why a hunk that fits nowhere does not; `closely` looks for its likeliest place first."""
        undo = hunk.reversed()
        if undo.old_count and len(self.places(undo)) == 1:
            return HunkReport(number, hunk.old_start, HunkState.APPLIED)
        return _missing(self.lines, number, hunk, self.nearest(hunk) if closely else hunk.position)

    def nearest(self, hunk: Hunk) -> int:
        """The position near the stated one where most of the hunk's lines are, for a report that helps."""
        votes: Counter[int] = Counter()
        for step, text in enumerate(hunk.old):
            for place in self.near(text, hunk.position + step)[:200]:
                if place >= step:
                    votes[place - step] += 1
        return max(votes, key=lambda at: (votes[at], -abs(at - hunk.position), -at), default=hunk.position)


def place_file(data: bytes, file: FilePatch, window: int = WINDOW) -> Located:
    """`locate_hunks` for the hunks of one file."""
    return locate_hunks(split_lines(data), file.hunks, window)
