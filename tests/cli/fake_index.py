"""A package index behind a pip that is none."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagebuild.host.process import Finished
from imagebuild.testing.small_wheels import make_wheel

PLUGIN: Mapping[str, bytes] = {"plugin/__init__.py": b"x = 1\n"}


class Index:
    """`wheels` by platform machine; `commands` are those that it was asked with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels: dict[str, Path] = {}
        self.commands: list[list[str]] = []

    def add(self, name: str, version: str, machine: str = "", **of_wheel: Any) -> Path:
        tags = [f"py3-none-manylinux_2_17_{machine}"] if machine else ["py3-none-any"]
        path = make_wheel(self.folder, name, version, PLUGIN, tags=tags, **of_wheel)
        for each in [machine] if machine else ["x86_64", "aarch64"]:
            self.wheels[each] = path
        return path

    def run(self, command: list[str], **_: Any) -> Finished:
        self.commands.append(list(command))
        machine = "aarch64" if "--platform=linux_aarch64" in command else "x86_64"
        wanted = next(word.partition("=")[2] for word in command if word.startswith("--requirement="))
        name = Path(wanted).read_text().partition("==")[0]
        path = self.wheels.get(machine)
        if path is None or not path.name.startswith(name.replace("-", "_")):
            return Finished(1, b"", b"WARNING: x\nERROR: No matching distribution found\n")
        into = Path(next(word.partition("=")[2] for word in command if word.startswith("--dest=")))
        into.mkdir()
        shutil.copy(path, into)
        return Finished(0, b"", b"")
