"""The YAML that people may write: 1.2 core scalars, UTF-8, no surprises, every fault with its line.

PyYAML's scanner does the syntax (libyaml where it is compiled in, the Python one otherwise; both give the same tree);
what a scalar means, and what is refused, is decided here.  Refused, because two readers would see two documents or
because nobody sees it in review: duplicate keys, keys that are not text, tabs outside quotes and block text, tags,
directives, merge keys, cyclic or multiplying aliases, several documents, control and direction characters.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from imagebuild.content.files import io_faults
from imagebuild.errors import ImagebuildError, InputError, SeveralErrors

SIZE_LIMIT = 1 << 20
"""Bytes of one file."""
DEPTH_LIMIT = 64
"""Mappings and lists inside each other."""
NODE_LIMIT = 100_000
"""Nodes of one file, counting what an alias stands for each time it is used."""
FAULT_LIMIT = 50
"""Faults reported of one file."""


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """One scalar: `value` by the core schema (YAML 1.2.2 section 10.3.2), `text` as written (quotes and escapes
    undone), `plain` without quotes.  `line` and `column` count from 1, columns in characters."""

    value: str | int | float | bool | None
    text: str
    plain: bool
    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class ListNode:
    """A list, in the order written."""

    items: tuple[Node, ...]
    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class MapNode:
    """A mapping: key text to (node of the key, node of the value), in the order written."""

    entries: Mapping[str, tuple[ScalarNode, Node]] = field(repr=False)
    file: str
    line: int
    column: int


Node = ScalarNode | ListNode | MapNode


def plain_value(node: Node) -> Any:
    """The tree as dict, list, str, int, float, bool and None."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, ListNode):
        return [plain_value(item) for item in node.items]
    return {key: plain_value(value) for key, (_, value) in node.entries.items()}


def fault_at(
    code: str,
    file: str,
    line: int,
    column: int,
    message: str,
    *,
    key: str = "",
    expected: str | None = None,
    found: str | None = None,
    hint: str | None = None,
) -> InputError:
    """The one form of a fault in a file: message `FILE:LINE: …`, details `file`, `line`, `column`, `key`."""
    details = {"file": file, "line": line, "column": column, "key": key}
    return InputError(code, f"{file}:{line}: {message}", expected=expected, found=found, hint=hint, details=details)


def raise_faults(faults: list[InputError]) -> None:
    """Raises nothing, the one fault, or SeveralErrors of them all in the order of the file."""
    if not faults:
        return
    ordered = sorted(faults, key=lambda e: (e.details.get("line", 0), e.details.get("column", 0)))
    shown: list[ImagebuildError] = list(ordered[:FAULT_LIMIT])
    if len(shown) == 1:
        raise shown[0]
    raise SeveralErrors(shown)


_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((sign + word for sign in ("", "+") for word in (".inf", ".Inf", ".INF")), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_NUMBER_START = frozenset("+-.0123456789")
_SAFE_INTEGER = 1 << 63


def resolve_plain(text: str) -> str | int | float | bool | None:
    """What a plain scalar means under the core schema; `on`, `yes`, `1:30` and `2026-11-30` are text.

    One deviation: a decimal number with leading zeros is text, since readers of YAML 1.1 see an octal number there and
    readers of 1.2 a decimal one.  Raises ValueError for an integer beyond 64 bits and for a float that overflows.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    number: int | None = None
    if _INTEGER.match(text):
        number = int(text) if len(text) <= 20 else _SAFE_INTEGER
    elif _OCTAL.match(text):
        number = int(text[2:], 8) if len(text) <= 24 else _SAFE_INTEGER
    elif _HEXADECIMAL.match(text):
        number = int(text[2:], 16) if len(text) <= 18 else _SAFE_INTEGER
    elif _FLOAT.match(text):
        value = float(text) if len(text) <= 64 else float("inf")
        if value in (float("inf"), float("-inf")):
            raise ValueError(text)
        return value
    if number is None:
        return text
    if not -_SAFE_INTEGER <= number < _SAFE_INTEGER:
        raise ValueError(text)
    return number


def quoted(text: str) -> str:
    """`text` as a YAML scalar on one line: plain where every reader, of YAML 1.1 too, sees the same text; in double
    quotes otherwise."""
    if _PLAIN_SAFE.match(text) and text.lower() not in _YAML_1_1_WORDS and not text.endswith(":"):
        return text
    out = []
    for char in text:
        point = ord(char)
        if char in '"\\':
            out.append("\\" + char)
        elif char in _SHORT_ESCAPES:
            out.append(_SHORT_ESCAPES[char])
        elif 0x20 <= point < 0x7F or (point >= 0xA0 and not _FORBIDDEN.match(char)):
            out.append(char)
        else:
            out.append(
                f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
            )
    return '"' + "".join(out) + '"'


_PLAIN_SAFE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+~:-]*(?<!:)\Z")
_YAML_1_1_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_SHORT_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]|\r(?!\n)"
)


def _decode(data: bytes, file: str) -> str:
    """UTF-8 text without its byte order mark; refuses other encodings and characters that readers treat apart (YAML
    1.1 breaks lines at U+0085, U+2028 and U+2029, YAML 1.2 does not) or that hide from a reviewer."""
    if len(data) > SIZE_LIMIT:
        raise fault_at(
            "yaml.too-large", file, 1, 1, f"the file has {len(data)} bytes", expected=f"at most {SIZE_LIMIT}"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        raise fault_at(
            "yaml.bad-encoding",
            file,
            line,
            column,
            "the file is not UTF-8",
            found=f"byte 0x{data[error.start]:02x}",
            hint="save the file as UTF-8",
        ) from error
    text = text.removeprefix("\ufeff")
    bad = _FORBIDDEN.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - (text.rfind("\n", 0, bad.start()) + 1) + 1
        point = ord(bad.group()[0])
        raise fault_at(
            "yaml.bad-character",
            file,
            line,
            column,
            f"the character U+{point:04X} is not allowed as it is",
            hint="end lines with LF or CRLF"
            if point == 13
            else f'write it as an escape in double quotes: "{_escape(point)}"',
        )
    return text


def _escape(point: int) -> str:
    return f"\\u{point:04x}"


def parse_yaml(data: bytes, file: str) -> Node:
    """The tree of one YAML document; `file` is its name in messages.

    Raises InputError, or SeveralErrors of them: `yaml.syntax`, `yaml.bad-encoding`, `yaml.bad-character`, `yaml.tab`,
    `yaml.empty`, `yaml.several-documents`, `yaml.directive`, `yaml.tag`, `yaml.merge-key`, `yaml.duplicate-key`,
    `yaml.key-not-text`, `yaml.alias`, `yaml.bad-number`, `yaml.too-large`, `yaml.too-deep`.
    """
    from imagebuild.content.yaml_tree import compose

    return compose(_decode(data, file), file)


def load_yaml(path: Path, shown: str | None = None) -> Node:
    """`parse_yaml` of a file on disk, named `shown` (default: the path) in messages.  Raises also InputError
    `yaml.missing` and UnavailableError `content.io`."""
    file = str(path) if shown is None else shown
    with io_faults(path, "reading"):
        try:
            # without O_NONBLOCK the opening of a FIFO would wait for a writer
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError("yaml.missing", f"{file} does not exist", details={"file": file}) from error
        with os.fdopen(handle, "rb", closefd=True) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise InputError("yaml.missing", f"{file} is not a regular file", details={"file": file})
            data = stream.read(SIZE_LIMIT + 1)
    return parse_yaml(data, file)


def no_entries() -> Mapping[Any, Any]:
    """The mapping with nothing in it, as a factory of defaults (a mapping proxy has no hash before Python 3.12)."""
    return _EMPTY


_EMPTY: Mapping[Any, Any] = MappingProxyType({})
