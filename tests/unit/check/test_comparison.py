"""Reading runs and judging pairs of them: every verdict, and what voids a run."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from imagebuild.check.compare import AnswerLimits, compare_figures, compare_runs, parse_margin
from imagebuild.check.comparison_text import comparison_text, unpaired_text
from imagebuild.check.plot import store_plot
from imagebuild.check.results import load_run
from imagebuild.check.verdicts import Verdict
from imagebuild.errors import InputError

MakeRun = Callable[..., Path]


def outcome(total: int, *wrong: range) -> list[bool]:
    bad = {number for part in wrong for number in part}
    return [number not in bad for number in range(total)]


@pytest.mark.parametrize(
    ("candidate_wrong", "reference_wrong", "verdict"),
    [
        ((range(20), range(20, 24)), (range(20), range(24, 29)), "non-inferior"),
        ((range(70),), (range(20),), "inferior"),
        ((range(20), range(60, 72)), (range(20), range(40, 46)), "inconclusive"),
    ],
)
def test_each_verdict_at_one_point(
    make_run: MakeRun, candidate_wrong: tuple[range, ...], reference_wrong: tuple[range, ...], verdict: str
) -> None:
    a = load_run(make_run("a", outcome(1319, *candidate_wrong)))
    b = load_run(make_run("b", outcome(1319, *reference_wrong)))
    found = compare_runs(a, b, Decimal("1.0"))
    assert found.judgement.verdict is Verdict(verdict)
    one = found.filters[0]
    lost = len({n for part in candidate_wrong for n in part} - {n for part in reference_wrong for n in part})
    assert one.table.reference_only == lost
    assert found.to_json()["filters"][0]["right_to_wrong"] == lost
    assert comparison_text(found).splitlines()[-1].startswith(f"{verdict}: strict-match: ")
    # with arms changed over the difference changes its sign
    assert compare_runs(b, a).filters[0].table.difference == -one.table.difference


def test_equal_runs_are_not_called_equal(make_run: MakeRun) -> None:
    right = outcome(1319, range(24))
    found = compare_runs(load_run(make_run("a", right)), load_run(make_run("b", right)))
    assert found.judgement.verdict is Verdict.NON_INFERIOR
    assert found.filters[0].p == 1.0
    assert found.filters[0].changed_answers == 0
    assert "equal" not in found.judgement.reason


def test_few_questions_settle_nothing(make_run: MakeRun) -> None:
    right = outcome(20, range(1))
    found = compare_runs(load_run(make_run("a", right)), load_run(make_run("b", right)))
    assert found.judgement.verdict is Verdict.INCONCLUSIVE


def test_churn_is_counted_where_correctness_is_the_same(make_run: MakeRun) -> None:
    wrong = [False] * 4
    a = load_run(make_run("a", wrong, responses=["#### 1", "#### 2", "#### 3", "x #### 4"]))
    b = load_run(make_run("b", wrong, responses=["#### 1", "#### 7", "#### 3", "y #### 4"]))
    one = compare_runs(a, b).filters[0]
    assert one.table.discordant == 0
    assert one.changed_responses == 2
    assert one.changed_answers == 2


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"prompts": "q"}, "unequal prompts under strict-match for 8 questions (0, 1, 2, 3, 4, …)"),
        ({"claimed": 0.5}, "its samples say otherwise"),
        ({"effective": 9}, "8 samples under strict-match, the result file counts 9"),
        ({"responses": [" "] + ["#### 1"] * 7}, "1 null or empty answers, at most 0 allowed"),
        ({"meta": {"acceptance": "synthetic"}}, "synthetic acceptance"),
        ({"meta": {"eval_exit_code": 1}}, "exit code 1"),
        ({"summary": {"counts": {"null": 3, "empty": 0, "truncated": 0, "failed": 0}}}, "3 null or empty"),
        (
            {"summary": {"counts": {"null": 0, "empty": 0, "truncated": 0, "failed": 2}}},
            "2 requests were never answered",
        ),
    ],
)
def test_what_voids_a_comparison(make_run: MakeRun, how: dict[str, object], words: str) -> None:
    found = compare_runs(load_run(make_run("a", [True] * 8, **how)), load_run(make_run("b", [True] * 8)), Decimal(99))
    assert found.judgement.verdict is Verdict.INVALID
    assert words in found.judgement.reason


def test_other_questions_and_the_same_run_twice_are_invalid(make_run: MakeRun) -> None:
    a, b = load_run(make_run("a", [True] * 8)), load_run(make_run("b", [True] * 6))
    found = compare_runs(a, b)
    assert found.judgement.verdict is Verdict.INVALID
    assert "2 questions under strict-match in the candidate only (6, 7)" in found.judgement.reason
    assert found.filters == ()
    assert "the same run" in compare_runs(a, a).judgement.reason


def test_null_answers_up_to_the_limit_are_allowed(make_run: MakeRun) -> None:
    summary = {"counts": {"null": 2, "empty": 0, "truncated": 1, "failed": 0}}
    a = load_run(make_run("a", [True] * 8, summary=summary))
    b = load_run(make_run("b", [True] * 8))
    assert compare_runs(a, b, Decimal(99), AnswerLimits(2)).judgement.verdict is Verdict.NON_INFERIOR
    assert a.counts.truncated == 1
    assert b.counts.truncated is None


def test_more_answers_cut_off_than_declared_void_a_run(make_run: MakeRun) -> None:
    a = load_run(make_run("a", [True] * 20, summary={"counts": {"null": 0, "empty": 0, "truncated": 14, "failed": 0}}))
    b = load_run(make_run("b", [True] * 20))
    found = compare_runs(a, b, Decimal(99)).judgement
    assert found.verdict is Verdict.INVALID
    assert found.reason == "candidate: 14 answers cut off at the longest length, at most 13 allowed"
    assert compare_runs(a, b, Decimal(99), AnswerLimits(truncated=14)).judgement.verdict is Verdict.NON_INFERIOR


def test_a_duplicate_question_is_a_fault(make_run: MakeRun) -> None:
    folder = make_run("a", [True] * 3)
    samples = next(folder.glob("samples*"))
    samples.write_text(samples.read_text() + samples.read_text().splitlines()[0] + "\n")
    assert "stands twice" in load_run(folder).faults[0]


def test_a_batched_artefact_is_read_by_its_concurrency(make_run: MakeRun) -> None:
    make_run("a", [True] * 4, suffix="_conc16")
    folder = make_run("a", [True, False] * 2, suffix="_conc32", meta={"image": "vllm/vllm-openai:v1", "hw": "b300"})
    with pytest.raises(InputError) as caught:
        load_run(folder)
    assert caught.value.code == "check.ambiguous-results"
    run = load_run(folder, concurrency=32)
    assert run.claimed["strict-match"] == 0.5
    assert run.origin == "said by meta_env.json, unsigned"
    assert run.describe()["image"] == "vllm/vllm-openai:v1"


@pytest.mark.parametrize(
    ("file", "text", "code"),
    [
        ("results", "{", "check.bad-results"),
        ("results", "[1]", "check.bad-results"),
        ("results", '{"results": {"mmlu": {}}}', "check.bad-results"),
        ("samples", '{"doc_id": 1}\n', "check.bad-results"),
        ("samples", '{"doc_id": true, "exact_match": 1}\n', "check.bad-results"),
        ("samples", '{"doc_id": 0, "exact_match": 0.5}\n', "check.bad-results"),
        ("samples", "[" * 100_000 + "\n", "check.bad-results"),
        ("samples", None, "check.no-results"),
    ],
)
def test_files_of_others_are_not_trusted(make_run: MakeRun, file: str, text: str | None, code: str) -> None:
    folder = make_run("a", [True] * 3)
    path = next(folder.glob(f"{file}*"))
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_run(folder)
    assert caught.value.code == code


def test_published_figures_prove_nothing() -> None:
    found = compare_figures("1295/1319", "1292/1319")
    assert found.judgement.verdict is Verdict.NOT_PROVEN
    text = unpaired_text(found)
    assert "z = 0.42, p = 0.67" in text
    assert "-0.82…+1.28 points" in text
    assert "1295/1319 = 0.98180 ± 0.00368" in text
    for bad in ("1295", "1320/1319", "-1/3", "²/4", "1/0"):
        with pytest.raises(InputError) as caught:
            compare_figures(bad, "1/2")
        assert caught.value.code == "check.bad-figure"


def test_margins() -> None:
    assert parse_margin("0.5") == Decimal("0.5")
    for bad in ("0", "-1", "nan", "inf", "100", "x"):
        with pytest.raises(InputError) as caught:
            parse_margin(bad)
        assert caught.value.code == "check.bad-margin"


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_picture_is_repeatable(make_run: MakeRun, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    a, b = load_run(make_run("a", outcome(40, range(3)))), load_run(make_run("b", outcome(40, range(2))))
    found = compare_runs(a, b)
    for name in ("one", "two"):
        store_plot(found, tmp_path / f"{name}.{kind}")
    one = (tmp_path / f"one.{kind}").read_bytes()
    assert one == (tmp_path / f"two.{kind}").read_bytes()
    assert one.startswith(b"\x89PNG" if kind == "png" else b"<?xml")


def test_the_document_is_json(make_run: MakeRun) -> None:
    a, b = load_run(make_run("a", [True] * 3)), load_run(make_run("b", [True] * 3))
    document = json.loads(json.dumps(compare_runs(a, b).to_json(), allow_nan=False))
    assert document["kind"] == "gsm8k-comparison"
    assert document["candidate"]["signed"] is False
