"""Processes, sockets, the environment, the clock and printing have one door each (docs/architecture.md)."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from package_source import Module, imported, modules, parse_module

MODULES: dict[str, tuple[str, frozenset[str]]] = {
    name: (door, frozenset(areas.split()))
    for door, names, areas in (
        ("starts processes", "subprocess multiprocessing pty", "host"),
        ("asks the clock", "time", "host"),
        (
            "opens sockets",
            "socket ssl http.client urllib.request urllib3 requests httpx aiohttp asyncio ftplib smtplib",
            "registry",
        ),
        ("serves sockets", "http.server socketserver", "host"),
        ("writes to the terminal", "rich readline curses getpass", "cli"),
        ("speaks to a Docker engine", "docker", "oci"),
        ("drives BuildKit", "python_on_whales", "build"),
    )
    for name in names.split()
}
"""Module -> what it does, and the packages that may import it."""

TESTING_MAY = frozenset({"socket", "ssl", "http.client"})
"""The scripted registry is a server: it may hold a listening socket."""

EVALUATION = {"imagebuild.check.endpoint"}
"""Accuracy runs speak to a served model."""
EVALUATION_MAY = frozenset({"http.client"})

PROGRAMS = {"imagebuild.__main__", "imagebuild.build.rebuild", "imagebuild.testing.bases"}
"""Modules that are run as processes of their own: they answer on stdout and end with a code.  `rebuild` is what `reproduce`
starts under another umask and user; `bases` makes what the targets stand on (`make bases`)."""
EXPORTED = "imagebuild.build.exported"
"""Pieces of a script that `export` writes out: they run elsewhere, alone, and nothing in imagebuild runs them."""
INSIDE = "imagebuild.check.inside"
"""Programs that are sent into an image and started by its own Python; they too run elsewhere, alone."""
OF_PROGRAMS = {"prints", "ends the process", "changes the process"}

CALLS: dict[str, tuple[str, frozenset[str]]] = {
    name: (door, frozenset(areas.split()))
    for door, names, areas in (
        ("starts processes", "os.system os.popen os.fork os.forkpty os.execv os.execve os.posix_spawn", "host"),
        ("reads the environment", "os.environ os.environb os.getenv os.getenvb os.putenv os.unsetenv", "host"),
        ("asks the clock", "datetime.now datetime.utcnow datetime.today date.today", "host"),
        ("prints", "print input sys.stdout sys.stderr sys.stdin sys.__stdout__", "cli"),
        ("ends the process", "sys.exit os._exit os.abort exit quit SystemExit", "cli"),
        ("changes the process", "os.umask os.chdir os.setuid locale.setlocale", "host cli"),
    )
    for name in names.split()
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def open_doors(module: Module) -> list[str]:
    out: list[str] = []
    if module.name.startswith((EXPORTED + ".", INSIDE + ".")):
        return out
    for name, line in imported(module):
        for wanted, (door, areas) in MODULES.items():
            if (name == wanted or name.startswith(wanted + ".")) and module.area not in areas:
                if module.area == "testing" and wanted in TESTING_MAY:
                    continue
                if module.name in EVALUATION and wanted in EVALUATION_MAY:
                    continue
                out.append(f"{module.where}:{line}: only {', '.join(sorted(areas))} {door} ({name})")
        for wanted, (door, areas) in CALLS.items():
            if name == wanted and module.area not in areas:
                out.append(f"{module.where}:{line}: only {', '.join(sorted(areas))} {door} ({name})")
    for node in ast.walk(module.tree):
        if not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        name = dotted(node)
        short = ".".join(name.split(".")[-2:])
        found = CALLS.get(name) or CALLS.get(short)
        if found is None or module.area in found[1] or (module.name in PROGRAMS and found[0] in OF_PROGRAMS):
            continue
        out.append(f"{module.where}:{node.lineno}: only {', '.join(sorted(found[1]))} {found[0]} ({name})")
    return out


def test_each_door_is_used_by_its_keeper_only() -> None:
    faults = [fault for module in modules() for fault in open_doors(module)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("library", ["docker", "python_on_whales", "sigstore"])
def test_one_module_alone_knows_each_library_that_speaks_for_itself(library: str) -> None:
    """These open sockets and start processes of their own, so their use stays in one place."""
    users = {m.name for m in modules() for name, _ in imported(m) if name.split(".")[0] == library}
    assert len(users) <= 1, sorted(users)


def test_one_module_of_the_registry_package_opens_sockets() -> None:
    openers = {
        module.name
        for module in modules()
        for name, _ in imported(module)
        if module.area == "registry" and name.split(".")[0] in ("socket", "ssl", "urllib3")
    }
    assert len(openers) <= 2, sorted(openers)


def test_the_pieces_of_exported_scripts_are_run_by_nothing_and_stand_alone() -> None:
    for module in modules():
        names = [name for name, _ in imported(module) if name.startswith("imagebuild.")]
        inside = module.name.startswith(EXPORTED)
        assert (
            all(name.startswith(EXPORTED) for name in names) if inside else not any(EXPORTED in name for name in names)
        )


def test_programs_for_the_inside_of_images_are_run_by_nothing_here_and_stand_alone() -> None:
    """One that imported anything but the standard library (and, where it says what without, torch) would not start."""
    for module in modules():
        names = [name for name, _ in imported(module)]
        if module.name.startswith(INSIDE + "."):
            others = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"torch"}
            assert not others, f"{module.where}: {others}"
        else:
            assert not any(name.startswith(f"{INSIDE}.") and name.count(".") > 3 for name in names), module.where


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess",
        "from os import environ",
        "import os\nx = os.environ['A']",
        "def f():\n    from urllib.request import urlopen",
        "import time",
        "from datetime import datetime\nx = datetime.now()",
        "import datetime\nx = datetime.datetime.now()",
        "print('x')",
        "import sys\nsys.stderr.write('x')",
        "import sys\nsys.exit(1)",
        "import socket",
        "from rich import progress",
    ],
)
def test_an_open_door_is_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "imagebuild" / "layer" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert open_doors(parse_module(path, tmp_path))
