"""How far a run is: plain lines with rate and time left, a bar on a terminal."""

from types import SimpleNamespace
from typing import Any

import pytest

from imagebuild.check.answers import Answer
from imagebuild.cli.answer_progress import AnswerProgress

ANSWER = Answer("r", {}, 1, 1.0)


class Said:
    def __init__(self, live: bool = False) -> None:
        self.notes: list[str] = []
        self.output = SimpleNamespace(note=self.notes.append)
        self.progress = SimpleNamespace(live=live)


def progress(said: Said, moments: list[float], total: int = 100) -> AnswerProgress:
    left = iter(moments)
    return AnswerProgress(said, "on", total, monotonic=lambda: next(left))  # type: ignore[arg-type]


def test_plain_lines_now_and_then_with_the_rate_of_new_answers() -> None:
    said = Said()
    with progress(said, [0.0, 10.0, 11.0, 16.0, 17.0]) as shown:
        watch = shown.watch
        watch.resumed(40)
        for _ in range(3):
            watch.answered(ANSWER)
    assert said.notes == [
        "on: 40 answers of before are kept",
        "on: 41 of 100 answers, 1.0/s, 59 s left",
        *said.notes[2:],
    ]
    assert said.notes[2:] == ["on: 42 of 100 answers, 0.3/s, 174 s left"]


def test_the_rate_begins_with_the_first_question_not_with_the_program_that_asks() -> None:
    said = Said()
    with progress(said, [0.0, 0.0, 60.0]) as shown:
        shown.watch.resumed(0)
        shown.watch.answered(ANSWER)
    assert said.notes == ["on: 1 of 100 answers, 1.0/s, 99 s left"]


def test_the_last_answer_is_always_told() -> None:
    said = Said()
    with progress(said, [0.0, 0.0, 1.0, 1.5], total=2) as shown:
        shown.watch.resumed(0)
        shown.watch.answered(ANSWER)
        shown.watch.answered(ANSWER)
    assert said.notes == ["on: 2 of 2 answers, 1.3/s, 0 s left"]


def test_waiting_for_an_engine_is_told_now_and_then() -> None:
    said = Said()
    with progress(said, [0.0, 1.0, 6.0, 7.0]) as shown:
        for seconds in (1.0, 6.0, 7.0):
            shown.waiting(seconds)
    assert said.notes == ["on: waiting for the engine, 6 s"]


def test_a_terminal_gets_a_bar_with_rate_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    said: Any = Said(live=True)
    with AnswerProgress(said, "on", 4) as shown:
        shown.watch.resumed(1)
        shown.watch.answered(ANSWER)
        shown.refresh()
    err = capsys.readouterr().err
    assert "2/4" in err
    assert "/s" in err
    assert said.notes == ["on: 1 answers of before are kept"]
