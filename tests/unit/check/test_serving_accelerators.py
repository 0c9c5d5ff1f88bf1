"""What the program that starts a server says of the accelerators in its container, with stand-ins for tools and drivers."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.check.inside import source

Ask = Callable[[], list[str]]
LIBRARY = {
    "cuda": "ready",
    "driver": "580.95.05",
    "devices": [{"name": "NVIDIA H200", "capability": "9.0", "memory": 1}],
}
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@x)  Tue\nGCC version: 12\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The program's names, in a container without any tool of a vendor."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "serve_arm.py").write_bytes(source("serve_arm"))
    return runpy.run_path(str(tmp_path / "serve_arm.py"))


@pytest.fixture
def ask(program: dict[str, Any], tmp_path: Path) -> Ask:
    return lambda: list(program["accelerators"](str(tmp_path), str(tmp_path)))


def tool(folder: Path, text: str) -> None:
    path = folder / "bin" / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def library(folder: Path, text: str) -> None:
    (folder / "devices.py").write_text(text)


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def kernel(folder: Path, *minors: int) -> None:
    put(folder / "proc/driver/nvidia/version", VERSION)
    for minor in minors:
        text = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n"
        put(folder / f"proc/driver/nvidia/gpus/0000:0{minor}:00.0/information", text)


def test_the_vendors_tool_is_asked_first(ask: Ask, tmp_path: Path) -> None:
    tool(tmp_path, "echo 'NVIDIA H200, 580.95.05, 9.0, GPU-1'")
    assert ask() == ["NVIDIA H200, 580.95.05, 9.0, GPU-1"]


@pytest.mark.parametrize("broken", ["exit 9", "true", None])
def test_without_it_the_drivers_library_tells(broken: str | None, ask: Ask, tmp_path: Path) -> None:
    if broken is not None:
        tool(tmp_path, broken)
    put(tmp_path / "dev/nvidia0")
    library(tmp_path, f"print('noise')\nprint({json.dumps(json.dumps(LIBRARY))})")
    assert ask() == ["NVIDIA H200, 580.95.05, 9.0"]


@pytest.mark.parametrize(
    "text",
    ["raise SystemExit(3)", "print('{}')", "print('[]')", "import os; os.abort()", "print('{\"devices\": [1]}')"],
)
def test_without_a_library_the_kernel_tells_of_those_that_are_here(text: str, ask: Ask, tmp_path: Path) -> None:
    library(tmp_path, text)
    kernel(tmp_path, 0, 1, 2)
    for name in ("nvidia1", "nvidia2", "nvidiactl"):
        put(tmp_path / "dev" / name)
    assert ask() == ["NVIDIA H200, 580.95.05"] * 2


def test_a_node_alone_is_told_as_such(ask: Ask, tmp_path: Path) -> None:
    put(tmp_path / "dev/nvidia3")
    assert ask() == ["NVIDIA, unnamed: /dev/nvidia3"]


def test_a_machines_accelerators_that_were_not_passed_in_are_not_told(ask: Ask, tmp_path: Path) -> None:
    kernel(tmp_path, 0)
    library(tmp_path, f"print({json.dumps(json.dumps(LIBRARY))})")
    put(tmp_path / "dev/nvidiactl")
    assert ask() == []


def test_a_question_that_hangs_is_given_up(program: dict[str, Any], tmp_path: Path) -> None:
    asked = program["accelerators"]
    asked.__globals__["DEADLINE"] = 0.5
    library(tmp_path, "import time; time.sleep(600)")
    kernel(tmp_path, 0)
    put(tmp_path / "dev/nvidia0")
    assert asked(str(tmp_path), str(tmp_path)) == ["NVIDIA H200, 580.95.05"]


def test_amds_are_those_with_a_node(ask: Ask, tmp_path: Path) -> None:
    for number, (version, minor) in enumerate(((0, 0), (90402, 128), (90402, 129))):
        text = f"simd_count 304\ndrm_render_minor {minor}\ngfx_target_version {version}\n"
        put(tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}/properties", text)
    put(tmp_path / "dev/dri/renderD129")
    assert ask() == ["AMD gfx942"]
