"""The verdict table of docs/reference/cli.md, row by row."""

import pytest

from imagebuild.check.verdicts import Judgement, Verdict, worst

ROWS = [
    ("passed non-inferior", 0, "pass", "PASSED"),
    ("failed inferior", 1, "failure", "FAILED"),
    ("inconclusive invalid infrastructure", 3, "error", None),
    ("not-run not-proven", 3, "skipped", None),
]


@pytest.mark.parametrize(
    ("word", "code", "junit", "result"), [(word, *row[1:]) for row in ROWS for word in row[0].split()]
)
def test_each_verdict_maps_as_the_contract_says(word: str, code: int, junit: str, result: str | None) -> None:
    verdict = Verdict(word)
    assert (verdict.exit_code, verdict.junit, verdict.test_result) == (code, junit, result)
    assert verdict.good is (code == 0)


def test_no_verdict_is_left_out() -> None:
    assert {word for row in ROWS for word in row[0].split()} == {str(verdict) for verdict in Verdict}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("passed non-inferior", "non-inferior"),
        ("non-inferior inferior", "inferior"),
        ("inferior invalid", "invalid"),
        ("not-run passed", "not-run"),
        ("inconclusive non-inferior", "inconclusive"),
        ("failed infrastructure", "infrastructure"),
    ],
)
def test_several_verdicts_make_the_worst(words: str, expected: str) -> None:
    assert worst([Verdict(word) for word in words.split()]) is Verdict(expected)
    assert worst([Verdict(word) for word in words.split()]).good is Verdict(expected).good


def test_a_verdict_that_is_not_passed_has_a_reason() -> None:
    with pytest.raises(ValueError, match="reason"):
        Judgement(Verdict.NOT_RUN, "")
    assert Judgement(Verdict.NOT_RUN, "no GPU here").to_json() == {"verdict": "not-run", "reason": "no GPU here"}
