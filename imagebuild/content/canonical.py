"""One JSON text for one value, so that a digest over it means something.

`canonical_json` is the form that is hashed (content id, predicates): keys sorted by code point, no space, UTF-8, no
floats.  `document_json` is the form that is committed: the same values, sorted, one fact a line, ending in a newline,
so that git merges it line by line.
"""

from __future__ import annotations

import json
from typing import Any

from imagebuild.errors import InputError


def _check(value: Any, where: str) -> None:
    if value is None or isinstance(value, (str, bool, int)):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: key {key!r} is not text")
            _check(item, f"{where}.{key}")
        return
    if isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check(item, f"{where}[{number}]")
        return
    raise TypeError(f"{where}: {type(value).__name__} has no canonical JSON form")


def canonical_json(value: Any) -> bytes:
    """Compact, sorted, UTF-8 JSON.  Raises TypeError for floats and for keys that are not text."""
    _check(value, "$")
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8")


def document_json(value: Any) -> bytes:
    """Sorted JSON with one fact a line and a final newline, for files that are committed."""
    _check(value, "$")
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def load_json(data: bytes, what: str) -> Any:
    """Parses JSON, refusing duplicate keys, NaN and broken UTF-8 (RFC 8259 section 4 leaves duplicates open; two
    readers that pick different ones would see two documents behind one digest).  `what` names the text in the error.
    Raises InputError `content.bad-json`."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in items:
            if key in out:
                raise ValueError(f"duplicate key {key!r}")
            out[key] = item
        return out

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise InputError("content.bad-json", f"{what} is not valid JSON: {error}") from error
