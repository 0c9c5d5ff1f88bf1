"""Making diffs: for refresh, for whole-file replacements (a reviewer sees hunks), and for messages."""

from __future__ import annotations

from collections.abc import Iterator

from imagebuild.errors import clean
from imagebuild.overlay.line_diff import common_lines
from imagebuild.overlay.patch import FilePatch, Hunk, Patch, format_patch
from imagebuild.overlay.patch_apply import split_lines

CONTEXT = 3
"""Lines of context on each side of a change."""


def is_text(data: bytes) -> bool:
    """Whether a diff of it helps people: UTF-8 without NUL."""
    if b"\0" in data:
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def make_hunks(old: bytes, new: bytes) -> tuple[Hunk, ...]:
    """The hunks that turn `old` into `new`; none where they are equal.  The same on every Python."""
    before, after = split_lines(old), split_lines(new)
    hunks = []
    for group in _groups(list(_changes(before, after)), len(before)):
        start_a, start_b = max(0, group[0][0] - CONTEXT), max(0, group[0][2] - CONTEXT)
        end_a = min(len(before), group[-1][1] + CONTEXT)
        lines: list[bytes] = []
        at = start_a
        for a_low, a_high, b_low, b_high in group:
            lines += [b" " + text for text in before[at:a_low]]
            lines += [b"-" + text for text in before[a_low:a_high]]
            lines += [b"+" + text for text in after[b_low:b_high]]
            at = a_high
        lines += [b" " + text for text in before[at:end_a]]
        old_count = sum(1 for text in lines if text[:1] != b"+")
        new_count = sum(1 for text in lines if text[:1] != b"-")
        hunks.append(
            Hunk(
                start_a + 1 if old_count else start_a,
                old_count,
                start_b + 1 if new_count else start_b,
                new_count,
                tuple(lines),
            )
        )
    return tuple(hunks)


def _changes(before: list[bytes], after: list[bytes]) -> Iterator[tuple[int, int, int, int]]:
    """Ranges (old low, old high, new low, new high) that differ, in order."""
    a = b = 0
    for i, j in [*common_lines(before, after), (len(before), len(after))]:
        if i > a or j > b:
            yield a, i, b, j
        a, b = i + 1, j + 1


def _groups(changes: list[tuple[int, int, int, int]], length: int) -> Iterator[list[tuple[int, int, int, int]]]:
    """Changes whose context would touch go into one hunk."""
    group: list[tuple[int, int, int, int]] = []
    for change in changes:
        if group and change[0] - group[-1][1] > 2 * CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def make_file_patch(
    path: str, old: bytes | None, new: bytes | None, *, old_mode: int | None = None, new_mode: int | None = None
) -> FilePatch:
    """The patch of one file; None stands for absent.  The modes are git's (0o100644, 0o100755), for new and deleted
    files and for a change of mode."""
    return FilePatch(
        None if old is None else path,
        None if new is None else path,
        make_hunks(old or b"", new or b""),
        old_mode,
        new_mode,
    )


def make_diff(path: str, old: bytes | None, new: bytes | None) -> bytes:
    """The unified diff between two states of one file (3 lines of context), empty where they are equal."""
    if old == new:
        return b""
    return format_patch(Patch((make_file_patch(path, old, new),)))


def show_diff(path: str, expected: bytes | None, found: bytes | None, lines: int = 60) -> str | None:
    """A diff for a message, from what was expected to what is there: at most `lines` lines, made safe to show.

    None where either side is absent, not text, or above 4 MiB, or where there is no difference.
    """
    if expected is None or found is None or expected == found:
        return None
    if max(len(expected), len(found)) > 4 << 20 or not (is_text(expected) and is_text(found)):
        return None
    text = make_diff(path, expected, found).decode("utf-8", "replace").split("\n")[1:]
    shown = text[:lines]
    if len(text) > lines:
        shown.append(f"… ({len(text) - lines} more lines)")
    return clean("\n".join(line[:300] for line in shown).rstrip("\n"), 20_000)
