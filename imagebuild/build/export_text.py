"""The texts of `export`: one Python file out of the exported program's pieces and a plan, and a Dockerfile around it."""

from __future__ import annotations

import ast
import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from imagebuild.overlay.patch_make import is_text

PIECES = ("guards", "wheels", "program")
_WIDTH = 96
_ARGUMENT = 60_000
"""Bytes of one argument of RUN: below what a line of a Dockerfile (65,535) and an argument of exec (131,072) may have."""


def literal(data: bytes, indent: str = "    ") -> str:
    """Bytes as a Python expression: text line by line, so that a reviewer reads it; other data compressed."""
    if not is_text(data):
        packed = base64.b64encode(zlib.compress(data, 9))
        parts = [packed[start : start + _WIDTH] for start in range(0, len(packed), _WIDTH)] or [b""]
        lines = "".join(f"{indent}    {part!r}\n" for part in parts)
        return f"zlib.decompress(base64.b64decode(\n{lines}{indent}))"
    lines = "".join(f"{indent}    {part!r}\n" for part in data.splitlines(keepends=True) or [b""])
    return f"(\n{lines}{indent})"


def _pieces() -> Iterator[str]:
    folder = resources.files("imagebuild.build.exported")
    for name in PIECES:
        yield (folder / f"{name}.py").read_text("utf-8")


def _split(text: str, imports: dict[str, set[str]]) -> str:
    """One piece without docstring and imports; what it imports goes to `imports` (module: names, none for the module)."""
    lines = text.splitlines(keepends=True)
    for number, node in enumerate(ast.parse(text).body):
        if isinstance(node, ast.Import):
            for name in node.names:
                imports.setdefault(name.name, set())
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] not in ("imagebuild", "__future__"):
                imports.setdefault(node.module or "", set()).update(name.name for name in node.names)
        elif not (number == 0 and isinstance(node, ast.Expr)):
            continue
        for line in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[line] = ""
    return "".join(lines).strip("\n") + "\n"


def _import_lines(imports: Mapping[str, set[str]]) -> str:
    plain = [f"import {name}\n" for name in sorted(imports) if not imports[name]]
    picked = [f"from {name} import {', '.join(sorted(imports[name]))}\n" for name in sorted(imports) if imports[name]]
    return "".join(plain + picked)


def _python(value: Any, indent: str = "") -> str:
    """A JSON value as a Python literal, one step a line."""
    if isinstance(value, Mapping):
        inner = "".join(f"{indent}    {key!r}: {_python(item, indent + '    ')},\n" for key, item in value.items())
        return f"{{\n{inner}{indent}}}" if value else "{}"
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        inner = "".join(f"{indent}    {_flat(item)},\n" for item in value)
        return f"[\n{inner}{indent}]"
    return repr(value)


def _flat(value: Any) -> str:
    return repr(dict(value)) if isinstance(value, Mapping) else repr(value)


def script_text(
    *,
    target: str,
    content_id: str,
    base: str,
    summary: Sequence[str],
    platforms: Mapping[str, Any],
    bodies: Mapping[str, bytes],
) -> bytes:
    """The file that `export --as script` writes: the same bytes for the same plan (exported.plan says what a plan is)."""
    imports: dict[str, set[str]] = {"base64": set(), "zlib": set()}
    rest = [_split(text, imports) for text in _pieces()]
    told = "\n".join(summary).replace("\\", "\\\\").replace('"""', "'''")
    shown = "".join(f"    {key!r}: {literal(bodies[key])},\n" for key in sorted(bodies))
    parts = [
        f'#!/usr/bin/env python3\n"""{told}\n"""\n\nfrom __future__ import annotations\n\n',
        _import_lines(imports),
        f"\nTARGET = {target!r}\nCONTENT_ID = {content_id!r}\nBASE = {base!r}\n",
        f"PLATFORMS = {_python(platforms)}\n",
        f"BODIES = {{\n{shown}}}\n",
        *(f"\n\n{body}" for body in rest),
    ]
    return "".join(parts).encode("ascii", "backslashreplace")


def dockerfile_text(
    script: bytes, *, base: str | None, user: str, environment: Sequence[tuple[str, str]], summary: Sequence[str]
) -> bytes:
    """A Dockerfile without context, heredoc or frontend that runs the script on `base` (None: a base that no registry
    has, named by `--build-arg BASE=…`).  `user` is the base's own, restored afterwards."""
    packed = base64.b64encode(zlib.compress(script, 9)).decode("ascii")
    chunks = [packed[start : start + _ARGUMENT] for start in range(0, len(packed), _ARGUMENT)]
    unpack = (
        "import base64,sys,zlib;text=zlib.decompress(base64.b64decode(''.join(sys.argv[1:])));sys.argv[1:]=[];"
        "exec(compile(text,'imagebuild-export','exec'))"
    )
    words = ["python3", "-c", unpack, *chunks]
    run = "RUN [" + ", \\\n  ".join(json.dumps(word) for word in words) + "]\n"
    lines = [f"# {line}".rstrip() + "\n" for line in summary]
    if base is None:
        lines += ["ARG BASE\n", "FROM ${BASE}\n"]
    else:
        lines.append(f"FROM {base}\n")
    if user:
        lines.append("USER 0\n")
    lines.append(run)
    if user:
        lines.append(f"USER {user}\n")
    lines += [f"ENV {name}={_quoted(value)}\n" for name, value in environment]
    return "".join(lines).encode("utf-8")


def _quoted(value: str) -> str:
    """A value as a Dockerfile's ENV takes it literally."""
    for special in ("\\", '"', "$"):
        value = value.replace(special, "\\" + special)
    return f'"{value}"'
