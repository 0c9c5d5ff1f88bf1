"""Paths as overlays write them, `ROOT/relative`, and the globs over them.

ROOT is the name of a root in target.yaml and `relative` the path below that root's folder.  Every path that comes from
outside (a patch, an overlay.yaml, a tree) passes `validate_path` before anything is read or written by it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from imagebuild.errors import InputError, clean

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255


def validate_path(path: str, where: str, roots: Collection[str] | None = None) -> str:
    """`path` itself when it is a safe `ROOT/relative`; `where` says in the error who wrote it.

    Refused, with InputError `overlay.bad-path`: absolute and empty paths, empty components, `.` and `..`, names that begin
    with `.wh.` (a layer reads them as whiteouts, images.md Writing 1), control characters, names that are not UTF-8, a
    name above 255 or a path above 4,096 bytes.  With `roots`, a first component that is none of them raises InputError
    `overlay.unknown-root`.
    """
    fault = _fault(path)
    if fault is not None:
        raise InputError(
            "overlay.bad-path",
            f"{where}: {fault}: {clean(path, 200)!r}",
            expected="ROOT/relative, for example vllm/envs.py",
            found=clean(path, 200),
            hint="write the root's name from target.yaml, a slash, and the path below that root's folder",
        )
    if roots is not None:
        root = path.partition("/")[0]
        if root not in roots:
            near = difflib.get_close_matches(root, sorted(roots), 1)
            raise InputError(
                "overlay.unknown-root",
                f"{where}: the target has no root {root!r} (path {path})",
                expected=f"one of the target's roots: {', '.join(sorted(roots)) or 'none is declared'}",
                found=root,
                hint=f"did you mean {near[0]!r}?" if near else "declare it under `roots` in target.yaml",
            )
    return path


def _fault(path: str) -> str | None:
    if not path:
        return "an empty path"
    if path.startswith("/"):
        return "an absolute path"
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        return "a path that is not UTF-8"
    if size > MAX_PATH_BYTES:
        return f"a path of {size} bytes (at most {MAX_PATH_BYTES})"
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        return "a path with a control character"
    parts = path.split("/")
    for part in parts:
        if not part:
            return "a path with an empty component"
        if part in (".", ".."):
            return f"a path with a component {part!r}"
        if part.startswith(".wh."):
            return "a name that a layer would read as a whiteout"
        if len(part.encode("utf-8")) > MAX_NAME_BYTES:
            return f"a name of more than {MAX_NAME_BYTES} bytes"
    if len(parts) < 2:
        return "a path without anything below its root"
    return None


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern over `ROOT/relative` paths.

    `*` and `?` stay within one component, `**` as a whole component stands for any number of them (none too),
    `[…]` is a set and `[!…]` its complement.  Matching is by case and over the whole path.
    """

    pattern: str
    _regex: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.pattern or self.pattern.startswith("/") or ".." in self.pattern.split("/"):
            raise InputError(
                "overlay.bad-glob",
                f"not a usable glob: {clean(self.pattern, 200)!r}",
                expected="a relative pattern such as aiter/jit/module_*.so or tests/**",
                found=clean(self.pattern, 200),
            )
        object.__setattr__(self, "_regex", re.compile(_translate(self.pattern), re.DOTALL))

    def matches(self, path: str) -> bool:
        return self._regex.fullmatch(path) is not None


def _translate(pattern: str) -> str:
    parts = pattern.split("/")
    out: list[str] = []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            out.append(".+" if last else "(?:[^/]+/)*")
            continue
        out.append(_component(part))
        if not last:
            out.append("/")
    return "".join(out)


def _component(part: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            while at < len(part) and part[at] == "*":
                at += 1
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[":
            end = part.find("]", at + 2 if part[at : at + 1] in ("!", "]") else at + 1)
            if end < 0:
                out.append(re.escape(char))
                continue
            inner = part[at:end]
            negated = inner.startswith("!")
            escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if negated else inner)
            out.append(f"(?!/)[{'^' if negated else ''}{escaped}]")
            at = end + 1
        else:
            out.append(re.escape(char))
    return "".join(out)
