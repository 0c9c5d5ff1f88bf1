"""Verbs in a real terminal: nothing is wider than it but what cannot be broken, and the important line is last."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagebuild.cli.main import main
from imagebuild.cli.wrapping import columns, fit, reflow
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PAGE = """\
# Inference-engine patch waiver, PR #12

## What is patched
| Path | Upstream |
| --- | --- |
| engine/envs.py | none |

## Why the unmodified upstream image cannot run this benchmark
It runs with the variable off on the unmodified image, at five per cent less throughput, and this is a rather long line.

## Upstream PR / issue links
none

## Removal plan
when it is merged; delete overlays/tune and this waiver
"""
OVERLAY = """\
schema: 1
name: tune
description: |
  a description that goes on for much longer than the eighty columns of a terminal, as descriptions do now and then

  with a second paragraph that is also rather long, so that it has to be broken somewhere in the middle of its words
remove_when: upstream has merged the change and an image that carries it has been published by them under a tag of theirs
changes:
"""


def in_terminal(width: int, *words: str, cwd: Path, **environment: str) -> tuple[int, list[str]]:
    """Exit code and lines of a verb whose stdout and stderr are one terminal of that width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "imagebuild", *words],
        stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env={**kept, "TERM": "xterm-256color", **environment},
    )  # fmt: skip
    os.close(slave)
    data = bytearray()
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        data += part
    os.close(master)
    return process.wait(), data.decode().replace("\r\n", "\n").rstrip("\n").split("\n")


def too_wide(lines: list[str], width: int) -> list[str]:
    """Lines over the width that could have been broken: neither one word nor a command nor a JSON line."""
    plain = [COLOUR.sub("", line.rpartition("\r")[2]) for line in lines]
    return [
        line for line in plain
        if columns(line) > width and " " in line.strip() and not re.match(r"\s*(?:[-+*]|\d+\.)?\s*`?imagebuild ", line)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallWorkspace]:
    """A built workspace, for all tests: they only read it."""
    made = SmallWorkspace(tmp_path_factory.mktemp("terminal") / "ws", engine_base())
    made.write_target()
    made.write_overlay()
    path = made.root / "overlays" / "tune" / "overlay.yaml"
    head = "schema: 1\nname: tune\ndescription: tune the engine\nauthor: tests\nchanges:\n"
    path.write_text(path.read_text().replace(head, OVERLAY))
    (made.root / "12.md").write_text(PAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.root)
        patch.setenv("IMAGEBUILD_CACHE", str(made.cache))
        for words in (("lock", "tuned"), ("build", "tuned"), ("smoke", "tuned", "--runner", "host", "--step", "files")):
            assert main(list(words)) == 0
        yield made


LAST = {
    ("plan", "tuned"): r"sha256:[0-9a-f]{64}",
    ("build", "tuned"): r"oci:\S+@sha256:[0-9a-f]{64}",
    ("verify", "oci:build/tuned", "--target", "tuned"): r"passed: .*|\s+sha256:[0-9a-f]{64}",
    ("waiver", "check", "12.md"): r"12\.md: refused \(\d+ blocking\)",
    ("overlay", "list"): r"tune .*|\s+.*",
    ("overlay", "show", "tune"): r".*postimage.*|.*sha256:.*|\s*postimage_git: .*",
    ("lock", "tuned"): r"\S+target\.lock\.json",
    ("lock", "tuned", "--check"): r".*",
    ("gsm8k", "gate", "tuned"): r".*hint:.*|\s+.*",
    ("gsm8k", "compare", "--unpaired", "1295/1319", "1290/1319"): r".*",
    ("smoke", "tuned", "--show"): r".*",
    ("explain", "lock.stale"): r".*",
    ("ref", "tuned"): r"oci:build/tuned@sha256:[0-9a-f]{64}",
    ("matrix",): r'\{"include":.*\}',
    ("doctor",): r".*",
    ("report", "tuned"): r"\S+\.html",
    ("cache", "info"): r".*",
}


@pytest.mark.parametrize(
    ("words", "width"),
    [*((words, 80) for words in LAST), *((words, 120) for words in LAST if words[0] in ("plan", "verify"))],
)
def test_nothing_is_wider_than_the_terminal(space: SmallWorkspace, words: tuple[str, ...], width: int) -> None:
    code, lines = in_terminal(width, *words, cwd=space.root)
    assert code != 4, lines
    assert too_wide(lines, width) == []
    assert re.fullmatch(LAST[words], COLOUR.sub("", lines[-1])), lines[-3:]


def test_no_colour_is_none(space: SmallWorkspace) -> None:
    for words in (("plan", "tuned"), ("lock", "tuned"), ("waiver", "check", "12.md")):
        _, lines = in_terminal(80, *words, cwd=space.root, NO_COLOR="1")
        assert not any(re.search(r"\x1b\[[0-9;]*m", line) for line in lines)


def test_a_pipe_gets_whole_lines(space: SmallWorkspace, verb: Any) -> None:
    _, lines = in_terminal(80, "verify", "oci:build/tuned", "--target", "tuned", cwd=space.root)
    piped = verb("verify", "oci:build/tuned", "--target", "tuned").out
    assert max(map(len, piped.splitlines())) > 80
    assert "".join(" ".join(lines).split()) == "".join(piped.split())


def test_words_that_are_pasted_stay_whole() -> None:
    digest = "sha256:" + "a" * 64
    assert fit(f"stored at {digest} for ever and ever", 40).split("\n") == [
        "stored at",
        f"  {digest}",
        "  for ever and ever",
    ]
    command = "imagebuild verify docker.io/example/engine:some-tag --target b300 --key release.pub"
    assert command in fit(f"what can be done about it is this: {command}", 40).split("\n")[-1]
    assert f"`{command}`" in fit(f"run `{command}` and look at what it says about it", 40)


def test_further_lines_stand_under_the_last_column() -> None:
    shown = fit("not-checked  a reason that is much too long for such a narrow terminal", 40)
    assert shown.split("\n") == [
        "not-checked  a reason that is much too",
        "             long for such a narrow",
        "             terminal",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert columns("中文a") == 5
    assert all(columns(line) <= 40 for line in fit("豁免 页面 " * 20, 40).split("\n"))


@pytest.mark.parametrize("text", ["", " ", "\n\n", "one", "  two words", "a  b  c"])
def test_what_fits_is_left_alone(text: str) -> None:
    assert fit(text, 80) == text


@pytest.mark.parametrize("words", [("verify",), ("overlay", "import"), ("report",), ("release", "run")], ids=" ".join)
def test_help_is_broken_for_the_terminal(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, lines = in_terminal(80, *words, "--help", cwd=tmp_path)
    assert code == 0
    # the summary of options above the first empty line is argparse's own
    assert too_wide(lines[lines.index("") :], 80) == []


def test_paragraphs_are_broken_anew_and_examples_are_not() -> None:
    text = "one two three\nfour five six\n\nExamples:\n  imagebuild build x --push    and a word about it\n  imagebuild plan x"
    assert reflow(text, 20).split("\n") == [
        "one two three four",
        "five six",
        "",
        "Examples:",
        "  imagebuild build x --push    and a word about it",
        "  imagebuild plan x",
    ]
