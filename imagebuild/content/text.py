"""Small pieces of text for people: columns and sizes."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Columns padded with spaces; the last one is never padded, so that a digest there can be pasted whole."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )


def size_text(size: int) -> str:
    """Bytes for people: 512 B, 104.2 kB, 336.4 MB (powers of 1000)."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError
