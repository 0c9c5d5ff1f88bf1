"""Dockerfiles, read as far as a stage needs: instructions with their lines, flags, variables in FROM.

The format is BuildKit's: parser directives, comments and empty lines inside an instruction, the escape character, here
documents.  What an instruction's own words mean to a shell is not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from imagebuild.errors import InputError, clean

LIMIT = 1 << 20
"""Bytes of a Dockerfile at most."""
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*\Z")
_HEREDOC = re.compile(r"(?:^|\s)\d*<<(-?)([\"']?)([A-Za-z_][A-Za-z0-9_.-]*)\2(?=\s|\Z)")
_HEREDOC_KEYWORDS = {"RUN", "COPY", "ADD"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_FORMS = {":-", ":+", "-", "+"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `line` and `end` are its first and last line (from 1; `end` without its here documents), `flags`
    the words `--name=value` behind the keyword, `rest` what follows them."""

    line: int
    end: int
    keyword: str
    flags: tuple[tuple[str, str], ...]
    rest: str

    def flag(self, name: str) -> str | None:
        """The value of the last flag of that name ("" where it has none)."""
        return next((value for key, value in reversed(self.flags) if key == name), None)

    @property
    def words(self) -> list[str]:
        """The words of `rest`: a JSON array of strings, or split at blanks."""
        if self.rest.startswith("["):
            try:
                found = json.loads(self.rest)
            except ValueError:
                return self.rest.split()
            if isinstance(found, list) and all(isinstance(word, str) for word in found):
                return found
        return self.rest.split()


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A parsed Dockerfile.  `name` is how messages call it; `directives` by lower-case name, with their line."""

    name: str
    text: str = field(repr=False)
    directives: Mapping[str, tuple[int, str]]
    instructions: tuple[Instruction, ...]

    def where(self, line: int) -> str:
        return f"{self.name}:{line}"


def parse_dockerfile(data: bytes, name: str) -> Dockerfile:
    """Raises InputError `stage.bad-dockerfile` for what is no Dockerfile at all."""
    if len(data) > LIMIT:
        raise _bad(name, 1, f"it is larger than {LIMIT} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _bad(name, data.count(b"\n", 0, error.start) + 1, "it is not UTF-8") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    directives = _directives(lines)
    escape = directives.get("escape", (1, "\\"))[1]
    if escape not in ("\\", "`"):
        raise _bad(name, directives["escape"][0], "the escape character is \\ or `")
    instructions = []
    number = 0
    while number < len(lines):
        stripped = lines[number].strip()
        if not stripped or stripped.startswith("#"):
            number += 1
            continue
        start = number
        logical, number = _logical(lines, number, escape)
        instruction = _instruction(logical, start + 1, number, name)
        instructions.append(instruction)
        if instruction.keyword in _HEREDOC_KEYWORDS:
            number = _skip_heredocs(lines, number, logical, name)
    if not any(one.keyword == "FROM" for one in instructions):
        raise _bad(name, 1, "it has no FROM")
    return Dockerfile(name, text, directives, tuple(instructions))


def _bad(name: str, line: int, why: str) -> InputError:
    return InputError("stage.bad-dockerfile", f"{name}:{line}: {why}", details={"file": name, "line": line})


def _directives(lines: list[str]) -> dict[str, tuple[int, str]]:
    """The directives: `# name=value` before anything else, each once."""
    out: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines, 1):
        found = _DIRECTIVE.match(line.strip())
        if found is None or found[1].lower() in out:
            break
        out[found[1].lower()] = (number, found[2])
    return out


def _logical(lines: list[str], number: int, escape: str) -> tuple[str, int]:
    """The instruction that begins in line `number` (from 0), joined, and the number of the line behind it."""
    joint = re.compile(re.escape(escape) + r"[ \t]*\Z")
    parts: list[str] = []
    while number < len(lines):
        line = lines[number]
        number += 1
        if parts and (not line.strip() or line.lstrip().startswith("#")):
            continue
        shorter = joint.sub("", line)
        parts.append(shorter)
        if shorter == line:
            break
    return "".join(parts).strip(), number


def _instruction(logical: str, line: int, end: int, name: str) -> Instruction:
    keyword, _, rest = logical.partition(" ") if " " in logical else logical.partition("\t")
    keyword, tab, more = keyword.partition("\t")
    rest = (more + " " + rest if tab else rest).strip()
    if not keyword.isalpha():
        raise _bad(name, line, f"{clean(keyword, 40)!r} is no instruction")
    flags = []
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        key, _, value = word[2:].partition("=")
        flags.append((key, value.strip("\"'")))
        rest = rest.lstrip()
    return Instruction(line, end, keyword.upper(), tuple(flags), rest)


def _skip_heredocs(lines: list[str], number: int, logical: str, name: str) -> int:
    start = number
    for found in _HEREDOC.finditer(logical):
        while number < len(lines):
            line = lines[number].lstrip("\t") if found[1] else lines[number]
            number += 1
            if line == found[3]:
                break
        else:
            raise _bad(name, start, f"the here document {found[3]} has no end")
    return number


def expand(text: str, values: Mapping[str, str], where: str) -> str:
    """`$NAME`, `${NAME}` and `${NAME:-word}` (`:+`, `-`, `+` too) replaced; a name without value is empty.

    Raises InputError `stage.bad-dockerfile` for other forms.  A variable inside `word` is left as it is written.
    """
    out = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            out.append(text[at + 1])
            at += 2
        elif char != "$":
            out.append(char)
            at += 1
        elif text[at + 1 : at + 2] == "{":
            close = text.find("}", at)
            if close < 0:
                raise InputError("stage.bad-dockerfile", f"{where}: a variable's brace is not closed", found=text)
            out.append(_braced(text[at + 2 : close], values, where))
            at = close + 1
        else:
            found = _NAME.match(text, at + 1)
            if found is None:
                raise InputError("stage.bad-dockerfile", f"{where}: a $ without a name", found=text)
            out.append(values.get(found[0], ""))
            at = found.end()
    return "".join(out)


def _braced(inner: str, values: Mapping[str, str], where: str) -> str:
    found = _NAME.match(inner)
    form = inner[found.end() :] if found else ""
    sign = form[:2] if form.startswith(":") else form[:1]
    if found is None or (form and sign not in _PLAIN_FORMS):
        raise InputError("stage.bad-dockerfile", f"{where}: cannot read the variable ${{{clean(inner, 80)}}}")
    value = values.get(found[0])
    word = form[len(sign) :]
    given = bool(value) if sign.startswith(":") else value is not None
    if sign.endswith("-"):
        return value or "" if given else word
    if sign.endswith("+"):
        return word if given else ""
    return value or ""


def with_argument(dockerfile: Dockerfile, name: str) -> bytes:
    """The text with `ARG name` behind each FROM, so that every RUN has the variable."""
    lines = dockerfile.text.split("\n")
    ends = {one.end for one in dockerfile.instructions if one.keyword == "FROM"}
    out = []
    for number, line in enumerate(lines, 1):
        out.append(line)
        if number in ends:
            out.append(f"ARG {name}")
    return "\n".join(out).encode("utf-8")
