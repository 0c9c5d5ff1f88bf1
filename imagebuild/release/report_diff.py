"""One changed file as a table of two sides, hunk by hunk."""

from __future__ import annotations

from collections.abc import Iterator

from imagebuild.content.text import size_text
from imagebuild.overlay.patch import Hunk
from imagebuild.release.report_files import ChangedFile
from imagebuild.release.report_markup import Child, Markup, code, element, joined, scrolled

ROW_LIMIT = 4000
"""Lines of one file that the page shows; the rest is counted."""

Row = tuple[tuple[int, str] | None, tuple[int, str] | None]
"""Number and text of a line before and after; both for context, equal then."""


def file_part(file: ChangedFile, anchor: str) -> Markup:
    """The file with its digests and its difference, under `anchor`."""
    what = "deleted" if file.is_deleted else "new" if file.is_new else "changed"
    where = [f" on {', '.join(map(str, file.platforms))}"] if file.platforms else []
    digests = element(
        "p",
        code(str(file.item.preimage)) if file.item.preimage is not None else "absent",
        " → ",
        _after(file),
        class_="digests",
    )
    title = element("h3", code(file.name), f" ({what}{where[0] if where else ''})", id=anchor)
    return element("article", title, digests, _body(file), aria_labelledby=anchor, class_="file")


def _after(file: ChangedFile) -> Child:
    if file.is_deleted:
        return "absent"
    if file.item.kind == "symlink":
        return joined(["a link to ", code(file.item.link)])
    if file.item.postimage is None:
        return "written by the builder"
    return code(str(file.item.postimage))


def _body(file: ChangedFile) -> Markup:
    if file.item.kind == "symlink":
        return element("p", "A symbolic link has no lines to compare.")
    if file.missing:
        return element("p", f"not-run: its lines are not shown, since {file.missing}.", class_="state")
    if file.is_deleted and file.before is None:
        return element("p", "The path is hidden by a whiteout; its lines are not kept, its digest is.")
    if not file.is_text:
        sizes = [size_text(len(side)) for side in (file.before, file.after) if side is not None]
        return element("p", "A binary or very large file: " + " → ".join(sizes) + ".")
    hunks = file.hunks
    if not hunks:
        return element("p", "Its bytes are the same; the mode or the owner is not, or the file is empty.")
    one_sided = file.is_new or file.is_deleted
    return _one_side(file, hunks) if one_sided else _two_sides(file, hunks)


def rows_of(hunk: Hunk) -> Iterator[Row]:
    """The hunk's lines side by side: removed lines stand beside those that take their place."""
    old, new = hunk.position + 1, hunk.new_position + 1
    left: list[tuple[int, str]] = []
    right: list[tuple[int, str]] = []

    def flush() -> Iterator[Row]:
        for at in range(max(len(left), len(right))):
            yield left[at] if at < len(left) else None, right[at] if at < len(right) else None
        left.clear()
        right.clear()

    for line in hunk.lines:
        text = _text(line[1:])
        if line[:1] == b"-":
            left.append((old, text))
            old += 1
        elif line[:1] == b"+":
            right.append((new, text))
            new += 1
        else:
            yield from flush()
            yield (old, text), (new, text)
            old += 1
            new += 1
    yield from flush()


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    if not text.endswith("\n"):
        return text + " (no newline at the end)"
    return text[:-2] + "␍" if text.endswith("\r\n") else text[:-1]


def _two_sides(file: ChangedFile, hunks: tuple[Hunk, ...]) -> Markup:
    caption = joined(
        [
            code(file.name),
            f": {_many(len(hunks), 'hunk')}, {_counted(hunks, b'-')} lines out, {_counted(hunks, b'+')} in",
        ]
    )
    head = element(
        "thead",
        element(
            "tr",
            element("th", "Line", scope="col", class_="number"),
            element("th", "Before", scope="col"),
            element("th", "Line", scope="col", class_="number"),
            element("th", "After", scope="col"),
        ),
    )
    bodies = []
    left = ROW_LIMIT
    for number, hunk in enumerate(hunks, 1):
        rows = list(rows_of(hunk))
        shown = rows[: max(left, 0)]
        left -= len(rows)
        if not shown:
            continue
        words = f"Hunk {number} of {len(hunks)}: {_range(hunk.old_start, hunk.old_count)} before, "
        words += f"{_range(hunk.new_start, hunk.new_count)} after"
        top = element("tr", element("th", words, scope="rowgroup", colspan=4), class_="hunk")
        bodies.append(element("tbody", top, *[_row(before, after) for before, after in shown]))
    made = element("table", element("caption", caption), head, *bodies, class_="diff")
    return joined([scrolled(made, caption), _left_out(-left)])


def _one_side(file: ChangedFile, hunks: tuple[Hunk, ...]) -> Markup:
    tag, mark = ("ins", "+") if file.is_new else ("del", "−")
    (hunk,) = hunks
    lines = [_text(line[1:]) for line in hunk.lines]
    caption = joined([code(file.name), f": {_many(len(lines), 'line')}, all {'new' if file.is_new else 'deleted'}"])
    side = "After" if file.is_new else "Before"
    head = element(
        "thead", element("tr", element("th", "Line", scope="col", class_="number"), element("th", side, scope="col"))
    )
    rows = [
        element("tr", element("td", str(n), class_="number"), element("td", _marked(tag, mark, text), class_=tag))
        for n, text in enumerate(lines[:ROW_LIMIT], 1)
    ]
    made = element("table", element("caption", caption), head, element("tbody", *rows), class_="diff one")
    return joined([scrolled(made, caption), _left_out(len(lines) - ROW_LIMIT)])


def _left_out(count: int) -> Markup | None:
    return element("p", f"{count} more lines are not shown.", class_="state") if count > 0 else None


def _row(before: tuple[int, str] | None, after: tuple[int, str] | None) -> Markup:
    same = before is not None and after is not None and before[1] == after[1]
    cells = []
    for side, tag, mark in ((before, "del", "−"), (after, "ins", "+")):
        if side is None:
            cells += [element("td", class_="number"), element("td", class_="none")]
        elif same:
            cells += [element("td", str(side[0]), class_="number"), element("td", side[1])]
        else:
            cells += [
                element("td", str(side[0]), class_="number"),
                element("td", _marked(tag, mark, side[1]), class_=tag),
            ]
    return element("tr", *cells)


def _marked(tag: str, mark: str, text: str) -> Markup:
    return element(tag, element("span", mark, class_="mark"), text)


def _counted(hunks: tuple[Hunk, ...], tag: bytes) -> int:
    return sum(line[:1] == tag for hunk in hunks for line in hunk.lines)


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _range(start: int, count: int) -> str:
    if count == 0:
        return "no line"
    return f"line {start}" if count == 1 else f"lines {start} to {start + count - 1}"
