"""JSON that can be edited without disturbing what one does not know.

Configs of strangers hold keys in some order and numbers in some spelling (`1e3`, 20 digits).  `parse` keeps both,
`dump` writes them back, and only what was changed differs.
"""

from __future__ import annotations

import json
from typing import Any

from imagebuild.errors import InputError

DEPTH_LIMIT = 100
"""Lists and objects inside one another at most; image documents need about six."""
NUMBER_LIMIT = 1000
"""Characters of one number at most; longer ones cannot be read as a number by every reader."""


class NumberText:
    """A JSON number as it was spelled."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberText) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"NumberText({self.text!r})"


def parse(data: bytes, what: str) -> Any:
    """The value with key order kept and numbers as NumberText.

    Duplicate keys, NaN, broken UTF-8, a byte order mark, lone surrogates, nesting deeper than DEPTH_LIMIT and numbers
    longer than NUMBER_LIMIT raise InputError `oci.bad-json`; `what` names the document.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in items:
            if key in out:
                raise ValueError(f"duplicate key {key!r}")
            out[key] = item
        return out

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    def number(text: str) -> NumberText:
        if len(text) > NUMBER_LIMIT:
            raise ValueError(f"a number of {len(text)} characters")
        return NumberText(text)

    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=pairs,
            parse_int=number,
            parse_float=number,
            parse_constant=constant,
        )
        dump(value)
    except (ValueError, RecursionError) as error:
        raise InputError("oci.bad-json", f"{what} is not valid JSON: {error}") from error
    return value


def plain(value: Any) -> Any:
    """The same value with ordinary numbers, for reading."""
    if isinstance(value, NumberText):
        return json.loads(value.text)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def dump(value: Any) -> bytes:
    """Compact UTF-8 JSON in the order of the value's keys.

    Raises TypeError for values that have no JSON text (floats: their spelling is not ours to choose) and ValueError for
    lone surrogates and for nesting deeper than DEPTH_LIMIT.
    """
    out: list[str] = []
    _dump(value, out, 0)
    return "".join(out).encode("utf-8")


def _dump(value: Any, out: list[str], depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise ValueError(f"lists and objects more than {DEPTH_LIMIT} deep")
    if isinstance(value, NumberText):
        out.append(value.text)
    elif value is None or isinstance(value, (bool, int, str)):
        out.append(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, dict):
        out.append("{")
        for number, (key, item) in enumerate(value.items()):
            if number:
                out.append(",")
            out.append(json.dumps(key, ensure_ascii=False))
            out.append(":")
            _dump(item, out, depth + 1)
        out.append("}")
    elif isinstance(value, (list, tuple)):
        out.append("[")
        for number, item in enumerate(value):
            if number:
                out.append(",")
            _dump(item, out, depth + 1)
        out.append("]")
    else:
        raise TypeError(f"{type(value).__name__} has no JSON text")
