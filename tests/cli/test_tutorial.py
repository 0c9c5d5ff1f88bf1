"""The tutorial as a newcomer follows it: every command of it is typed, every answer is the page's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from console_page import Typed, newcomer, run_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
REFUSED = "imagebuild overlay import other"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("newcomer")


@pytest.fixture(scope="module")
def typed(folder: Path) -> list[Typed]:
    return list(run_page(PAGE, folder, newcomer(folder, Path(sys.executable).parent)))


def test_every_command_does_what_the_page_says(typed: list[Typed]) -> None:
    assert len(typed) > 20
    for one in typed:
        wanted = 1 if one.command.startswith(REFUSED) else 0
        assert one.code == wanted, f"{one.command}\n" + "\n".join(one.answer)


def test_every_answer_is_the_one_on_the_page(typed: list[Typed]) -> None:
    wrong = [f"$ {one.command}\n" + "\n".join(one.answer) for one in typed if not one.as_told]
    assert not wrong, "\n\n".join(wrong)
    assert sum(one.expected == ("…",) for one in typed) == 0


def test_it_leaves_a_target_an_overlay_a_waiver_and_ci(typed: list[Typed], folder: Path) -> None:
    assert typed
    mine = folder / "my-images"
    for name in (
        "manifests/tuned/target.lock.json",
        "manifests/tuned/release.dsse.json",
        "overlays/tune/patches/0001-envs.patch",
        "waivers/1_zh.md",
        ".github/workflows/images.yaml",
        "build/report/tuned.html",
    ):
        assert (mine / name).is_file(), name
    assert not (mine / "overlays" / "other").exists()


def test_every_verb_that_the_page_names_is_typed(typed: list[Typed]) -> None:
    verbs = {one.command.split()[1] for one in typed if one.command.startswith("imagebuild ")}
    assert {"init", "overlay", "lock", "plan", "build", "verify", "reproduce", "ref", "waiver", "report"} <= verbs
    assert {"release", "keygen", "matrix"} <= verbs
    blocks = re.findall(r"^```([a-z]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert blocks.count("sh") == 1, "a command that is not typed stands on the page"


@pytest.mark.parametrize(
    ("expected", "answer", "same"),
    [
        ((), (), True),
        (("a",), ("a",), True),
        (("a",), ("a", "b"), False),
        (("…", "b"), ("b",), True),
        (("…", "b"), ("x", "y", "b"), True),
        (("a", "…"), ("a",), False),
        (("a", "…"), ("a", "b", "c"), True),
        (("a", "…", "d"), ("a", "d"), True),
        (("a.c",), ("abc",), False),
    ],
)
def test_an_answer_is_compared_line_by_line(expected: tuple[str, ...], answer: tuple[str, ...], same: bool) -> None:
    assert Typed("x", expected, 0, answer).as_told is same
