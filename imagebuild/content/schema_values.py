"""The scalar half of `schema`: text, numbers, truth values, and how a fault gets its place in the file."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from imagebuild.content.strict_yaml import ListNode, MapNode, Node, ScalarNode, fault_at
from imagebuild.errors import InputError, SeveralErrors


class _Invalid:
    """What `read` gives where a fault was noted."""


INVALID: Final = _Invalid()


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word with the smallest edit distance (insert, delete, change, swap of neighbours), where it is near:
    at most a third of the longer word's characters apart, at least 1."""
    best: tuple[int, str] | None = None
    lowered = word.lower()[:80]
    for candidate in known:
        distance = _distance(lowered, candidate.lower())
        if distance <= max(1, max(len(lowered), len(candidate)) // 3) and (best is None or distance < best[0]):
            best = (distance, candidate)
    return None if best is None else best[1]


def _distance(left: str, right: str) -> int:
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(right, 1):
            value = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                value = min(value, older[j - 2] + 1)
            row.append(value)
    return row[-1]


def describe(node: Node) -> str:
    """A few words for what stands there."""
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    if node.value is None:
        return "nothing"
    if isinstance(node.value, bool):
        return f"the truth value {node.text}"
    if isinstance(node.value, str):
        return repr(node.value if len(node.value) <= 80 else node.value[:80] + "…")
    return f"the number {node.text[:80]}"


class Faults:
    """Collects what is wrong with one file."""

    def __init__(self) -> None:
        self.errors: list[InputError] = []

    def add(
        self,
        code: str,
        node: Node,
        key: str,
        message: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> _Invalid:
        text = f"{key}: {message}" if key else message
        self.errors.append(
            fault_at(code, node.file, node.line, node.column, text, key=key, expected=expected, found=found, hint=hint)
        )
        return INVALID

    def place(self, error: InputError | SeveralErrors, node: Node, key: str) -> _Invalid:
        """Takes an error that a value's constructor raised, and gives it a place in the file: its detail `key`, where
        set, names the place below `node`."""
        if isinstance(error, SeveralErrors):
            for one in error.errors:
                if isinstance(one, InputError):
                    self.place(one, node, key)
            return INVALID
        below = str(error.details.get("key", ""))
        spot = locate(node, below)
        whole = f"{key}.{below}" if key and below else key or below
        return self.add(
            error.code, spot, whole, error.message, expected=error.expected, found=error.found, hint=error.hint
        )


_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def locate(node: Node, key: str) -> Node:
    """The node at `key` (`changes[2].wheel.name`), or the last one on the way that exists."""
    while key:
        if isinstance(node, MapNode):
            # keys may hold dots themselves (paths), so the longest one that fits is meant
            fits = [name for name in node.entries if key == name or key.startswith((name + ".", name + "["))]
            if not fits:
                return node
            name = max(fits, key=len)
            node, key = node.entries[name][1], key[len(name) :].removeprefix(".")
            continue
        step = _STEP.match(key)
        if not isinstance(node, ListNode) or step is None or step.group(1) is None:
            return node
        number = int(step.group(1))
        if number >= len(node.items):
            return node
        node, key = node.items[number], key[step.end() :].removeprefix(".")
    return node


class Schema(ABC):
    """One shape of value.  `read` gives the value, or notes faults and gives INVALID; `json` the JSON Schema."""

    __slots__ = ()

    @abstractmethod
    def read(self, node: Node, key: str, faults: Faults) -> Any: ...

    @abstractmethod
    def json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Text(Schema):
    """Text.  `what` names it in messages; `pattern` (a regular expression that means the same to Python and ECMA 262)
    must fit the whole, `form` says it in words; `choices` are the only words allowed; `parse` makes a value of it and
    may raise InputError. `lines` allows line breaks, `empty` no characters, `limit` counts characters; control
    characters are refused.
    """

    what: str = "text"
    pattern: str | None = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None
    lines: bool = False
    empty: bool = False
    limit: int = 4096
    format: str | None = None
    form: str | None = None
    _compiled: re.Pattern[str] | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if self.pattern is not None:
            object.__setattr__(self, "_compiled", re.compile(self.pattern))

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            hint = None
            if isinstance(node, ScalarNode) and node.plain and node.text:
                hint = f'quote it: "{node.text[:80]}"'
            return faults.add(
                "schema.wrong-type", node, key, f"{self.what} belongs here", found=describe(node), hint=hint
            )
        text = node.value
        if self.choices:
            if text not in self.choices:
                near = nearest(text, self.choices)
                return faults.add(
                    "schema.bad-value",
                    node,
                    key,
                    f"{describe(node)} is not {self.what}",
                    expected=" | ".join(self.choices),
                    found=text,
                    hint=f"did you mean {near}?" if near else None,
                )
        elif not self._fits(text):
            if self.parse is not None and text:
                # the value's own constructor knows better than a pattern what is wrong
                try:
                    self.parse(text)
                except (InputError, SeveralErrors) as error:
                    return faults.place(error, node, key)
            return faults.add(
                "schema.bad-value",
                node,
                key,
                f"{describe(node)} is not {self.what}",
                expected=self._expected(),
                found=text,
            )
        if self.parse is None:
            return text
        try:
            return self.parse(text)
        except (InputError, SeveralErrors) as error:
            return faults.place(error, node, key)

    def _fits(self, text: str) -> bool:
        if len(text) > self.limit or not (text or self.empty):
            return False
        if (_CONTROL_LINES if self.lines else _CONTROL).search(text):
            return False
        return self._compiled is None or self._compiled.fullmatch(text) is not None

    def _expected(self) -> str:
        if self.form is not None:
            return self.form
        rule = f"matching {self.pattern}" if self.pattern else ("text" if self.lines else "text on one line")
        return f"{rule}, {0 if self.empty else 1} to {self.limit} characters, no control characters"

    def json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "string"}
        if self.choices:
            return {"type": "string", "enum": list(self.choices)}
        if not self.empty:
            out["minLength"] = 1
        out["maxLength"] = self.limit
        if self.pattern is not None:
            out["pattern"] = f"^(?:{self.pattern})$"
        else:
            out["pattern"] = _CONTROL_LINES_JSON if self.lines else _CONTROL_JSON
        if self.format is not None:
            out["format"] = self.format
        return out


_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_CONTROL_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_JSON = r"^[^\u0000-\u0008\u000a-\u001f\u007f-\u009f]*$"
_CONTROL_LINES_JSON = r"^[^\u0000-\u0008\u000b-\u001f\u007f-\u009f]*$"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Integer(Schema):
    """A whole number between `minimum` and `maximum`; `only` one value (a format's number)."""

    what: str = "a whole number"
    minimum: int = 0
    maximum: int = (1 << 53) - 1
    only: int | None = None

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        value = node.value if isinstance(node, ScalarNode) else None
        if not isinstance(value, int) or isinstance(value, bool):
            return faults.add("schema.wrong-type", node, key, f"{self.what} belongs here", found=describe(node))
        if self.only is not None and value != self.only:
            return faults.add(
                "schema.unknown-version",
                node,
                key,
                "a file of another format",
                expected=str(self.only),
                found=str(value),
                hint=f"this imagebuild reads format {self.only}; a larger number needs a newer imagebuild",
            )
        if not self.minimum <= value <= self.maximum:
            return faults.add(
                "schema.bad-value",
                node,
                key,
                f"{value} is not {self.what}",
                expected=f"{self.minimum} to {self.maximum}",
                found=str(value),
            )
        return value

    def json(self) -> dict[str, Any]:
        if self.only is not None:
            return {"type": "integer", "const": self.only}
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Number(Schema):
    """A decimal number, kept exactly as written (a Decimal), between `minimum` and `maximum`."""

    what: str = "a number"
    minimum: int = 0
    maximum: int = 1

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return faults.add("schema.wrong-type", node, key, f"{self.what} belongs here", found=describe(node))
        if not self.minimum <= value <= self.maximum:
            return faults.add(
                "schema.bad-value",
                node,
                key,
                f"{describe(node)} is not {self.what}",
                expected=f"{self.minimum} to {self.maximum}",
                found=str(value),
            )
        assert isinstance(node, ScalarNode)
        return Decimal(value) if isinstance(value, int) else Decimal(node.text)

    def json(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Boolean(Schema):
    """A truth value; `only` one of the two."""

    what: str = "true or false"
    only: bool | None = None

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        value = node.value if isinstance(node, ScalarNode) else None
        if not isinstance(value, bool) or (self.only is not None and value is not self.only):
            return faults.add(
                "schema.wrong-type",
                node,
                key,
                f"{self.what} belongs here",
                found=describe(node),
                hint="YAML 1.2 knows true and false; yes, no, on, off are text",
            )
        return value

    def json(self) -> dict[str, Any]:
        return {"type": "boolean"} if self.only is None else {"type": "boolean", "const": self.only}
