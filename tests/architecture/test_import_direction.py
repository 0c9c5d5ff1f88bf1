"""One total order of packages, imports downward only (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from package_source import Module, imported, modules, parse_module

ORDER = (
    "errors",
    "content",
    "oci",
    "layer",
    "overlay",
    "target",
    "registry",
    "attest",
    "build",
    "check",
    "waiver",
    "release",
    "cli",
)
LEAF = "host"
TESTING = "testing"


def allowed(area: str, wanted: str) -> bool:
    if wanted in ("", area):
        return True
    if area == LEAF:
        return wanted == "errors"
    if wanted == LEAF:
        return area != "errors"
    if area == TESTING:
        return wanted != "cli"
    if wanted == TESTING:
        return area == "cli"  # the demo makes its base with it
    if area in ("", "__main__"):
        return wanted == "cli"
    return ORDER.index(wanted) < ORDER.index(area)


def wrong_imports(module: Module) -> list[str]:
    out = []
    for name, line in imported(module):
        parts = name.split(".")
        if parts[0] != "imagebuild":
            continue
        wanted = parts[1] if len(parts) > 1 and parts[1] in (*ORDER, LEAF, TESTING) else ""
        if not allowed(module.area, wanted):
            out.append(f"{module.where}:{line}: {module.area or 'imagebuild'} must not import {wanted}")
    return out


def test_every_package_has_its_place_in_the_order() -> None:
    areas = {m.area for m in modules()} - {"", "__main__"}
    assert areas <= {*ORDER, LEAF, TESTING}


def test_imports_go_downward_only() -> None:
    faults = [fault for module in modules() for fault in wrong_imports(module)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("oci/x.py", "from imagebuild.layer.entry import Entry"),
        ("layer/x.py", "def f() -> None:\n    import imagebuild.registry.transport"),
        ("overlay/x.py", "from ..target import lock"),
        ("build/x.py", "from imagebuild import cli"),
        ("registry/x.py", "from imagebuild.testing import registry"),
        ("testing/x.py", "import imagebuild.cli.main"),
        ("host/x.py", "from imagebuild.content.digest import Digest"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, where: str, text: str) -> None:
    path = tmp_path / "imagebuild" / where
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert len(wrong_imports(parse_module(path, tmp_path))) == 1


def test_the_command_line_starts_without_the_heavy_libraries() -> None:
    """`--version` is bound to 0.2 s, so what the entry module imports at its top stays small."""
    heavy = {
        "yaml",
        "urllib3",
        "docker",
        "python_on_whales",
        "rich",
        "zstandard",
        "isal",
        "deflate",
        "http",
        "ssl",
        "subprocess",
        "asyncio",
    }
    by_name = {m.name: m for m in modules()}
    entry = by_name.get("imagebuild.cli.main")
    if entry is None:
        pytest.skip("imagebuild.cli.main is not there")
    seen: set[str] = set()
    todo = ["imagebuild.cli.main"]
    while todo:
        name = todo.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        top = {
            found
            for found, line in imported(by_name[name])
            if any(getattr(node, "lineno", 0) == line for node in by_name[name].tree.body)
        }
        for found in top:
            assert found.split(".")[0] not in heavy, f"{name} imports {found} at its top"
            todo += [found, found.rpartition(".")[0]]
    assert isinstance(entry.tree, ast.Module)
