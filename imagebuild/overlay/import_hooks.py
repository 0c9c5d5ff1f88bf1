"""Code that an interpreter runs at start and that may change where a module is imported from: `import` lines of `.pth` files,
`sitecustomize` and `usercustomize` (Python library reference, module `site`).

Nothing is run.  The text is judged against one package: known harmless hooks pass, a hook that names the package or
reaches into the import system is taken to shadow it, and what cannot be told is said to be not proven.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum


class Effect(str, Enum):
    """What a hook does to imports of the package in question."""

    HARMLESS = "harmless"
    SHADOWS = "shadows"
    NOT_PROVEN = "not-proven"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An effect, and why it is thought to be that, for evidence and messages."""

    effect: Effect
    why: str


@dataclass(frozen=True, slots=True)
class _Known:
    """A hook that ships with a widely used distribution: the file's name and its whole line, both as patterns, since a name
    alone is no reason to trust a text; `affects` are the top-level packages whose imports it changes."""

    name: re.Pattern[str]
    line: re.Pattern[str]
    why: str
    affects: tuple[str, ...] = ()


_KNOWN = (
    _Known(
        re.compile(r"distutils-precedence\.pth"),
        re.compile(
            r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = .*; enabled and __import__\('_distutils_hack'\)[^;]*;? ?"
        ),
        "setuptools: serves distutils and nothing else",
        ("distutils",),
    ),
    _Known(
        re.compile(r"_virtualenv\.pth"),
        re.compile(r"import _virtualenv"),
        "virtualenv: changes the defaults of distutils and nothing else",
        ("distutils", "setuptools"),
    ),
    _Known(
        re.compile(r"(?:a1_coverage|coverage|pytest-cov|init_cov_core)\.pth"),
        re.compile(r"(?!.*(?:sys\s*\.\s*(?:path|meta_path|modules)|addsitedir)).*(?:coverage|COV_CORE).*"),
        "coverage: measures, and only where its variable is set",
    ),
    _Known(
        re.compile(r".+-nspkg\.pth"),
        re.compile(r"import sys, types, os;.*sys\._getframe\(1\)\.f_locals\['sitedir'\].*"),
        "setuptools: joins the portions of the namespace package that it names",
    ),
    _Known(
        re.compile(r"_cuda_bindings_redirector\.pth"),
        re.compile(r"import _cuda_bindings_redirector"),
        "cuda-bindings: serves cuda.* and nothing else",
        ("cuda",),
    ),
)
_APPORT = re.compile(
    r"(?:\s*#[^\n]*\n)*\s*try:\s*\n\s+import apport_python_hook\s*\n\s*except ImportError:\s*\n\s+pass\s*\n"
    r"\s*else:\s*\n\s+apport_python_hook\.install\(\)\s*\Z"
)
_MACHINERY = re.compile(
    r"\bsys\s*\.\s*(?:path|meta_path|path_hooks|modules|path_importer_cache)\b|\baddsitedir\b|\bimportlib\b|\b__import__\b"
    r"|\bexec\s*\(|\beval\s*\(|\brunpy\b|\bexecfile\b|\bfrom\s+sys\s+import\b"
)
_IMPORTS = re.compile(r"(?:^|[;:])\s*(?:import\s+([\w., \t]+)|from\s+([\w.]+)\s+import\b)", re.MULTILINE)
_PLAIN_MODULES = re.compile(
    r"(?:__future__|atexit|builtins|codecs|contextlib|faulthandler|functools|gc|io|json|locale|logging|os|pathlib|platform|re"
    r"|resource|signal|site|sys|threading|time|traceback|types|typing|warnings)(?:\..*)?"
)
"""Modules of the standard library whose import changes nothing for others; fixed here, so that the verdict does not
depend on the Python that judges."""
_MAPPING = re.compile(r"^MAPPING(?:\s*:[^=\n]+)?\s*=\s*(\{.*\})\s*$", re.MULTILINE)


def names_package(text: str, package: str) -> bool:
    """Whether the text names the package as a word of its own; `_` ends a word, so `__editable___pkg_1_0_finder` does."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(package)}(?![A-Za-z0-9])", text) is not None


def imported_modules(line: str) -> tuple[str, ...]:
    """The modules that an `import` line (or a whole text) imports, dotted."""
    out: list[str] = []
    for listed, single in _IMPORTS.findall(line):
        for item in (listed or single).split(","):
            name = item.strip().partition(" ")[0]
            if name and name not in out:
                out.append(name)
    return tuple(out)


def finder_mapping(text: str) -> dict[str, str] | None:
    """The packages that a setuptools editable finder serves, name to folder (its `MAPPING`); None for other texts.

    That finder is *appended* to `sys.meta_path`, so it is asked only for what no folder of `sys.path` holds.
    """
    match = _MAPPING.search(text)
    if match is None or "sys.meta_path.append(_EditableFinder)" not in text:
        return None
    try:
        value = ast.literal_eval(match[1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        return None
    return value


def judge_text(text: str, package: str) -> Verdict:
    """What a module that runs at start (sitecustomize, the module of a `.pth` line) does to imports of `package`."""
    lines = [line.strip() for line in text.splitlines()]
    if all(not line or line.startswith("#") for line in lines):
        return Verdict(Effect.HARMLESS, "it holds no statement")
    if _APPORT.match(text):
        return Verdict(Effect.HARMLESS, "Debian's crash reporter; it sets the exception hook and nothing else")
    if names_package(text, package):
        return Verdict(Effect.SHADOWS, f"it names {package}")
    if _MACHINERY.search(text):
        return Verdict(Effect.SHADOWS, "it reaches into the import system")
    others = [name for name in imported_modules(text) if not _PLAIN_MODULES.fullmatch(name)]
    if others:
        return Verdict(Effect.NOT_PROVEN, f"it runs {', '.join(others[:5])}, which was not read")
    return Verdict(Effect.HARMLESS, f"it names neither {package} nor the import system")


def judge_line(file_name: str, line: str, package: str, modules: dict[str, str]) -> Verdict:
    """What an `import` line of the `.pth` file `file_name` does to imports of `package`.

    `modules` holds the texts of modules that lie directly in the same site folder, as far as captured.
    """
    for known in _KNOWN:
        if known.name.fullmatch(file_name) and known.line.fullmatch(line):
            if package in known.affects or names_package(line, package):
                return Verdict(Effect.SHADOWS, f"it serves {package} ({known.why})")
            return Verdict(Effect.HARMLESS, known.why)
    served: list[str] = []
    for name in imported_modules(line):
        mapping = finder_mapping(modules.get(name, ""))
        if mapping is not None:
            served += mapping
    if served:
        return Verdict(Effect.HARMLESS, "setuptools' finder, asked last, for " + ", ".join(sorted(served)[:5]))
    if names_package(line, package):
        return Verdict(Effect.SHADOWS, f"it names {package}")
    if _MACHINERY.search(line):
        return Verdict(Effect.SHADOWS, "it reaches into the import system")
    for name in imported_modules(line):
        if _PLAIN_MODULES.fullmatch(name):
            continue
        text = modules.get(name)
        if text is None:
            return Verdict(Effect.NOT_PROVEN, f"it runs the module {name}, which was not read")
        verdict = judge_text(text, package)
        if verdict.effect is Effect.SHADOWS and not names_package(text, package):
            return Verdict(
                Effect.NOT_PROVEN, f"its module {name} reaches into the import system; it does not name {package}"
            )
        if verdict.effect is not Effect.HARMLESS:
            return Verdict(verdict.effect, f"its module {name}: {verdict.why}")
    return Verdict(Effect.HARMLESS, f"neither it nor its module names {package} or the import system")
