"""Size, names and value types of modules (docs/architecture.md, CONTRIBUTING.md)."""

from __future__ import annotations

import ast

from package_source import OLDEST, ROOT, modules, parsed, tracked_files

LIMIT = 400
VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def test_every_module_is_python_of_the_oldest_supported_version() -> None:
    faults = parsed()[1]
    assert not faults, f"Python {OLDEST} does not read:\n" + "\n".join(faults)


def test_no_python_file_is_longer_than_the_limit() -> None:
    long = []
    for path in tracked_files():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "overlays":
            lines = path.read_text(encoding="utf-8").count("\n")
            if lines > LIMIT:
                long.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert not long, "\n".join(long)


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [m.where for m in modules() if VAGUE & set(m.name.split("."))] == []


def test_every_module_and_public_class_says_what_it_is() -> None:
    silent = []
    for module in modules():
        if not ast.get_docstring(module.tree):
            silent.append(module.where)
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                enum = any("Enum" in ast.unparse(base) for base in node.bases)
                if not enum:
                    silent.append(f"{module.where}:{node.lineno} {node.name}")
    assert not silent, "\n".join(silent)


def test_dataclasses_are_frozen_and_slotted_unless_they_say_why() -> None:
    """A value that nobody can change is hashed, shared between threads and cached without a thought."""
    loose = []
    for module in modules():
        if module.area == "testing":
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                text = ast.unparse(decorator)
                if text.split("(")[0].split(".")[-1] != "dataclass":
                    continue
                frozen = "frozen=True" in text and "slots=True" in text
                if not frozen and "mutable" not in (ast.get_docstring(node) or "").lower():
                    loose.append(f"{module.where}:{node.lineno} {node.name}")
    assert not loose, "\n".join(loose)


def test_test_modules_have_distinct_names() -> None:
    """pytest imports test modules by base name."""
    seen: dict[str, str] = {}
    doubled = []
    for path in tracked_files():
        relative = path.relative_to(ROOT)
        if relative.parts[0] == "tests" and path.suffix == ".py" and path.name != "conftest.py":
            if path.name in seen:
                doubled.append(f"{relative} and {seen[path.name]}")
            seen[path.name] = str(relative)
    assert not doubled, "\n".join(doubled)
