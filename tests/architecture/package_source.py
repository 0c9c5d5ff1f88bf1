"""The package's own syntax trees, for the tests that keep its shape."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "imagebuild"
OLDEST = (3, 11)
"""The oldest Python that is supported: newer syntax is found whichever runs the tests."""


@dataclass(frozen=True)
class Module:
    """One source file: `name` is dotted, `area` the folder below the package (the file's own stem at the top)."""

    path: Path
    name: str
    area: str
    tree: ast.Module
    lines: int

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else str(self.path)


def parse_module(path: Path, root: Path = ROOT) -> Module:
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    text = path.read_text(encoding="utf-8")
    area = parts[1] if len(parts) > 1 else ""
    return Module(path, ".".join(parts), area, ast.parse(text, str(path), feature_version=OLDEST), text.count("\n"))


@functools.cache
def parsed() -> tuple[tuple[Module, ...], tuple[str, ...]]:
    """The modules, and what is wrong with files that are none; one broken file leaves the other tests their meaning."""
    found, faults = [], []
    for path in sorted(PACKAGE.rglob("*.py")):
        try:
            found.append(parse_module(path))
        except SyntaxError as error:
            faults.append(f"{path.relative_to(ROOT)}:{error.lineno}: {error.msg}")
    assert len(found) > 20, "the package was not found"
    return tuple(found), tuple(faults)


def modules() -> tuple[Module, ...]:
    return parsed()[0]


def imported(module: Module) -> Iterator[tuple[str, int]]:
    """Every module (or module.attribute) that the file imports, at any depth, with the line."""
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")
                stem = ".".join(up[: len(up) - node.level + 1])
                base = f"{stem}.{base}" if base else stem
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Files that git would ship: tracked ones and new ones that are not ignored; everything below the root in an
    unpacked archive."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        paths = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    else:
        skipped = {".venv", "build", "dist", "__pycache__"}
        paths = [p for p in ROOT.rglob("*") if not skipped & set(p.relative_to(ROOT).parts)]
    return tuple(sorted(p for p in paths if p.is_file() and not p.is_symlink()))
