"""Every error code that is raised is explained, and every explanation belongs to a code (`imagebuild explain`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml
from package_source import PACKAGE, ROOT, Module, modules

ERRORS = {"InputError", "RefusedError", "UnavailableError", "ImagebuildError"}
CODE = re.compile(r"[a-z][a-z0-9]*\.[a-z0-9]+(?:-[a-z0-9]+)*\Z")


def called(node: ast.Call) -> str:
    return ast.unparse(node.func).split(".")[-1]


def code_words(node: ast.expr | None) -> set[str]:
    """The codes that an expression may give: constants in it, both arms of a choice."""
    if node is None:
        return set()
    return {
        item.value
        for item in ast.walk(node)
        if isinstance(item, ast.Constant) and isinstance(item.value, str) and CODE.match(item.value)
    }


def raised(module: Module) -> dict[str, int]:
    """Code -> line, for every error that the module makes with a code that stands there."""
    out: dict[str, int] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and called(node) in ERRORS:
            first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "code"), None)
            for code in code_words(first):
                out.setdefault(code, node.lineno)
    return out


def words(module: Module) -> set[str]:
    return code_words(module.tree)  # type: ignore[arg-type]


def explained() -> dict[str, tuple[Path, dict[str, str]]]:
    out: dict[str, tuple[Path, dict[str, str]]] = {}
    for path in sorted(PACKAGE.rglob("codes.yaml")):
        for code, entry in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).items():
            assert code not in out, f"{code} is explained in {out[code][0]} and in {path}"
            out[code] = (path, entry)
    return out


def test_every_raised_code_is_explained() -> None:
    known = explained()
    missing = sorted(
        f"{module.where}:{line}: {code}"
        for module in modules()
        for code, line in raised(module).items()
        if code not in known
    )
    assert not missing, "\n".join(missing)


def test_every_explained_code_stands_in_the_source() -> None:
    """Findings and checks have codes too, so that any constant counts and not only those of errors."""
    known = set().union(*(words(module) for module in modules()))
    stale = [f"{path.relative_to(ROOT)}: {code}" for code, (path, _) in explained().items() if code not in known]
    assert not stale, "\n".join(stale)


def test_every_explanation_is_whole() -> None:
    for code, (path, entry) in explained().items():
        where = f"{path.relative_to(ROOT)}: {code}"
        assert CODE.match(code), where
        assert set(entry) == {"title", "meaning", "do"}, where
        assert all(isinstance(text, str) and text.strip() for text in entry.values()), where
        assert "\n" not in entry["title"].strip(), where
