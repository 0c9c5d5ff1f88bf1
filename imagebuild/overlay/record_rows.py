"""The rows of a RECORD as they stand (packaging.python.org, Recording installed projects, The RECORD file).

A RECORD is CSV with comma and double quote: path, `ALGORITHM=HASH` (urlsafe base64 without padding) or nothing, size or
nothing.  Rows are cut out of the bytes, so that a row that is not edited stays what it was.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from imagebuild.errors import RefusedError

_QUOTE = 0x22


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One row: its bytes without the line ending, the ending (LF, CRLF or nothing), and its first three values."""

    raw: bytes
    ending: bytes
    path: str
    hash: str
    size: str


def _field_spans(data: bytes, start: int, line_end: int) -> tuple[list[tuple[int, int]], int]:
    """Where the first three fields of the row at `start` lie, quotes included, and where its line ends (at LF or the end of data).

    A quoted field may hold commas and line ends; a quote inside an unquoted field is a plain character (as Python's csv reads it).
    """
    spans: list[tuple[int, int]] = []
    at = start
    while True:
        search = at
        if data[at : at + 1] == b'"':
            search = at + 1
            while True:
                search = data.find(b'"', search)
                if search < 0:
                    line = data.count(b"\n", 0, start) + 1
                    raise RefusedError(
                        "overlay.record-malformed",
                        f"RECORD, line {line}: a quoted field has no end",
                        expected="rows of path, hash, size as the Recording installed projects specification says",
                        hint="the base's RECORD is damaged; set `derived: {record: keep}` in target.yaml to leave it as it is",
                    )
                if data[search + 1 : search + 2] != b'"':
                    break
                search += 2
            search += 1
            if search > line_end:
                found = data.find(b"\n", search)
                line_end = len(data) if found < 0 else found
        end = data.find(b",", search, line_end)
        if len(spans) < 3:
            spans.append((at, line_end if end < 0 else end))
        if end < 0:
            return spans, line_end
        at = end + 1


def _value(raw: bytes) -> str:
    if raw[:1] == b'"':
        close = 1
        while True:
            close = raw.find(b'"', close)
            if raw[close + 1 : close + 2] != b'"':
                break
            close += 2
        raw = raw[1:close].replace(b'""', b'"') + raw[close + 1 :]
    return raw.decode("utf-8", "surrogateescape")


def record_rows(data: bytes) -> Iterator[RecordRow]:
    """The rows in order, blank lines too (path ""); joined, `raw + ending` gives `data` back.

    Raises RefusedError `overlay.record-malformed` for a quote that is never closed.
    """
    at = 0
    length = len(data)
    while at < length:
        found = data.find(b"\n", at)
        end = length if found < 0 else found
        if data.find(b'"', at, end) < 0:
            raw = data[at:end]
            quoted = False
        else:
            _, end = _field_spans(data, at, end)
            raw = data[at:end]
            quoted = True
        ending = data[end : end + 1]
        at = end + 1
        if ending and raw.endswith(b"\r"):
            raw = raw[:-1]
            ending = b"\r\n"
        if quoted:
            spans, _ = _field_spans(raw, 0, len(raw))
            values = [_value(raw[first:last]) for first, last in spans]
        else:
            values = [part.decode("utf-8", "surrogateescape") for part in raw.split(b",", 3)[:3]]
        values += [""] * (3 - len(values))
        yield RecordRow(raw, ending, values[0], values[1], values[2])


def replace_fields(row: RecordRow, new: tuple[str, str]) -> bytes:
    """The row's bytes with another hash and size; path, further fields and the quotes of each field stay as written.

    A field that the row does not have is not made.
    """
    spans, _ = _field_spans(row.raw, 0, len(row.raw))
    out = row.raw
    for (first, last), text in reversed(list(zip(spans[1:3], new, strict=False))):
        value = text.encode("ascii")
        if out[first : first + 1] == b'"':
            value = b'"' + value + b'"'
        out = out[:first] + value + out[last:]
    return out


def format_path(path: str) -> bytes:
    """A path as a RECORD field: quoted only where it must be (comma, quote, line end, as Python's csv writes it)."""
    raw = path.encode("utf-8", "surrogateescape")
    if any(char in raw for char in b',"\r\n'):
        return b'"' + raw.replace(b'"', b'""') + b'"'
    return raw


def image_path(site: str, path: str) -> str:
    """The image path that a row of a RECORD in `site` means: relative to the site folder, or absolute; `..` climbs.

    Purely by the text: links are the caller's business.
    """
    if path[:1] in ("/", ".") or "/." in path or "//" in path:
        absolute = path if path.startswith("/") else f"/{site}/{path}"
        return posixpath.normpath(absolute).lstrip("/")
    return f"{site}/{path}" if site else path


def row_path(site: str, path: str) -> str:
    """How a RECORD in `site` writes the image path `path`."""
    if not site:
        return path
    return posixpath.relpath("/" + path, "/" + site)
