"""The pages on kinds of change: every file on them is written, every command on them is run, in a small workspace."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_index import Index

from imagebuild.build import index_wheels
from imagebuild.overlay.document import load_overlay
from imagebuild.testing.small_engine import SmallWorkspace

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
KINDS = ("patch", "file", "edit", "delete", "symlink", "env", "wheel", "blob")
BLOCK = re.compile(r"(?:^`(?P<path>[^`\n]+)`:\n\n)?^```(?P<kind>[a-z]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_of_the_page_runs(
    kind: str,
    in_workspace: Callable[..., SmallWorkspace],
    verb: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = Index(tmp_path / "index")
    index.add("plugin", "1.0")
    monkeypatch.setattr(index_wheels.process, "run", index.run)
    space = in_workspace(platforms=("linux/amd64", "linux/arm64"))
    ran = 0
    for block in BLOCK.finditer((PAGES / f"{kind}.md").read_text(encoding="utf-8")):
        if block["path"] is not None:
            path = space.root / block["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block["text"])
            if path.name == "overlay.yaml":
                load_overlay(path.parent)
        elif block["kind"] == "console":
            for line in COMMAND.findall(block["text"]):
                words = shlex.split(line)
                assert words[0] == "imagebuild"
                done = verb(*words[1:])
                assert done.code == 0, f"{line}: {done.err}"
                ran += 1
                if words[1:3] == ["overlay", "pin"]:
                    space.write_target(overlays=["plugin"], identity={"plugin": "1.0"})
    assert ran > 0
    if (space.root / "build" / "tuned").is_dir():
        assert verb("verify", "oci:build/tuned", "--target", "tuned").code == 0
    assert verb("overlay", "check").code == 0


def test_every_kind_has_its_page() -> None:
    from imagebuild.overlay.change_schema import CHANGE

    assert set(CHANGE.kinds) - {"stage"} == set(KINDS)
    assert all((PAGES / f"{kind}.md").is_file() for kind in KINDS)
    assert (PAGES / "stages.md").is_file()
