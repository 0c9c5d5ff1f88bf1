"""A whole run against the synthetic server, with a stand-in for lm-eval: what is written, resumed, voided."""

import json
from pathlib import Path
from typing import Any

import pytest

from imagebuild.check.compare import AnswerLimits
from imagebuild.check.endpoint import Client, parse_endpoint
from imagebuild.check.gsm8k import RunRequest, claimed, run_gsm8k
from imagebuild.check.metrics import acceptance_length, parse_counters
from imagebuild.check.proofs import WantedProof, all_proven, counter_proof, log_proof
from imagebuild.check.protocol import load_dataset, longest_answer, task_document
from imagebuild.check.verdicts import Verdict
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError
from imagebuild.testing.openai_double import OpenAIDouble, Script

KEY = "sk-very-secret"


class Runs:
    """Runs with small questions; `double` is the last server."""

    def __init__(self, folder: Path, questions: Path, python: str) -> None:
        self.folder, self.dataset, self.python = folder, load_dataset(questions), python
        rows = [json.loads(line) for line in self.dataset.test.splitlines()]
        self.questions = [(row["question"], row["answer"].split("#### ")[1]) for row in rows]
        self.double: OpenAIDouble

    def run(self, request: dict[str, Any] | None = None, **script: Any) -> Any:
        values = {"folder": self.folder, "target": "t", "arm": "on", "dataset": self.dataset, "python": self.python}
        with OpenAIDouble(Script(self.questions, **script)) as self.double:
            endpoint = parse_endpoint(self.double.url)
            with Client(endpoint, key=KEY, attempts=2, timeout=20, sleep=lambda seconds: None) as client:
                return run_gsm8k(RunRequest(**{**values, **(request or {})}), client)


@pytest.fixture
def runs(tmp_path: Path, questions: Path, eval_python: str) -> Runs:
    return Runs(tmp_path / "run", questions, eval_python)


def test_a_run_leaves_its_files_and_counts(runs: Runs) -> None:
    done = runs.run(
        {"proofs": (WantedProof("tune", counter="tep_steps"),), "meta": {"image_digest": "sha256:" + "1" * 64}},
        wrong=[3],
        counter="tep_steps",
    )
    assert done.judgement.verdict is Verdict.PASSED
    assert done.run.right("strict-match") == 11
    meta = json.loads((runs.folder / "meta_env.json").read_text())
    assert meta["switch_proof"] == [{"overlay": "tune", "counter": "tep_steps", "grown": 12.0}]
    assert meta["engine_version"] == "0.0.0+double"
    assert meta["settings"]["dataset"]["official"] is False
    assert meta["eval_exit_code"] == 0
    assert done.run.describe()["image_known_by"] == "declared to our own run"
    assert runs.double.keys == {KEY}
    assert not [path for path in runs.folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert not list(runs.folder.glob(".lm-eval-*"))


def test_a_server_that_dies_is_infrastructure_and_the_run_goes_on_later(runs: Runs) -> None:
    done = runs.run(dies_after=7)
    assert done.judgement.verdict is Verdict.INFRASTRUCTURE
    assert done.run.counts.failed == 5
    again = runs.run(wrong=[0])
    assert again.judgement.verdict is Verdict.PASSED
    assert runs.double.asked == [7, 8, 9, 10, 11]
    assert again.summary["resumed"] == 7
    assert again.run.right("strict-match") == 12
    assert len(list(runs.folder.glob("results_*"))) == 1


def test_a_server_that_dies_at_question_700_of_1319_loses_none_of_the_700(
    tmp_path: Path, eval_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda number: None)  # 1,319 of them take a slow disk a minute
    folder = tmp_path / "all"
    folder.mkdir()
    rows = [{"question": f"What is {n} times 3?", "answer": f"So.\n#### {3 * n}"} for n in range(1319)]
    for name in ("test", "train"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = Runs(tmp_path / "run", folder, eval_python)
    died = runs.run(dies_after=700)
    assert died.judgement.verdict is Verdict.INFRASTRUCTURE
    assert "619 questions were not answered, the answers so far are kept" in died.judgement.reason
    assert (died.run.counts.failed, died.summary["answers"]) == (619, 700)
    again = runs.run()
    assert again.judgement.verdict is Verdict.PASSED
    assert runs.double.asked == list(range(700, 1319))
    assert again.run.right("strict-match") == 1319


def test_a_proof_outlives_a_call_that_only_reads_again(runs: Runs) -> None:
    request = {"proofs": (WantedProof("tune", counter="steps"),)}
    runs.run(request, counter="steps")
    again = runs.run(request, counter="steps")
    assert runs.double.asked == []
    assert again.run.meta["switch_proof"][0]["grown"] == 12.0


@pytest.mark.parametrize(
    ("script", "request_", "words"),
    [
        ({"faults": {2: ["null"]}}, {}, "1 null or empty answers"),
        ({"faults": {2: ["500"]}, "stuck": frozenset({2})}, {}, "1 requests were never answered"),
        ({"faults": {2: ["429"]}, "stuck": frozenset({2})}, {}, "1 requests were never answered"),
        ({"faults": {2: ["other-model"]}}, {}, "several models: another, double"),
        ({}, {"meta": {"acceptance": "synthetic"}}, "synthetic acceptance"),
    ],
)
def test_what_voids_a_run(runs: Runs, script: dict[str, Any], request_: dict[str, Any], words: str) -> None:
    done = runs.run(request_, **script)
    assert done.judgement.verdict is Verdict.INVALID
    assert words in done.judgement.reason


def test_null_answers_that_the_target_allows(runs: Runs) -> None:
    assert runs.run({"limits": AnswerLimits(1)}, faults={2: ["null"]}).judgement.verdict is Verdict.PASSED


@pytest.mark.parametrize(
    ("request_", "kind", "code"),
    [
        ({"model": "other"}, InputError, "check.wrong-model"),
        ({"context": 4096}, InputError, "check.small-context"),
        ({"python": "/bin/false"}, UnavailableError, "check.no-lm-eval"),
        ({"arm": "third"}, InputError, "check.bad-arm"),
        ({"limit": 0}, InputError, "check.bad-count"),
        ({"max_tokens": 0}, InputError, "check.bad-count"),
    ],
)
def test_what_is_refused_before_a_question_is_asked(
    runs: Runs, request_: dict[str, Any], kind: type[ImagebuildError], code: str
) -> None:
    with pytest.raises(kind) as caught:
        runs.run(request_)
    assert caught.value.code == code
    assert runs.double.asked == []


def test_other_settings_do_not_mix_into_a_run(runs: Runs) -> None:
    assert runs.run({"limit": 4}).run.questions == 4
    with pytest.raises(RefusedError) as caught:
        runs.run()
    assert caught.value.code == "check.other-run"


def test_one_call_at_a_time_works_on_a_run(runs: Runs) -> None:
    with claimed(runs.folder), pytest.raises(RefusedError) as caught:
        runs.run()
    assert caught.value.code == "check.run-in-progress"
    assert (runs.double.asked, list(runs.folder.iterdir())) == ([], [])
    assert runs.run().judgement.verdict is Verdict.PASSED


def test_an_evaluation_that_fails_keeps_the_answers(runs: Runs, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text(f'#!/bin/sh\n{runs.python} "$@"; [ "$1" = -c ] || {{ echo it broke >&2; exit 9; }}\n')
    broken.chmod(0o755)
    with pytest.raises(UnavailableError) as caught:
        runs.run({"python": str(broken)})
    assert caught.value.code == "check.evaluation-failed"
    assert "it broke" in caught.value.message
    assert runs.run().summary["resumed"] == 12


def test_questions_are_read_strictly(questions: Path) -> None:
    assert load_dataset(questions / "test.jsonl") == load_dataset(questions)
    (questions / "train.jsonl").write_text('{"question": "x", "answer": "1"}\n')
    with pytest.raises(InputError, match="fewer than 5"):
        load_dataset(questions)
    (questions / "train.jsonl").write_text('{"question": 1}\n')
    with pytest.raises(InputError) as caught:
        load_dataset(questions)
    assert (caught.value.code, caught.value.details["line"]) == ("check.bad-data", 1)
    (questions / "train.jsonl").unlink()
    with pytest.raises(InputError) as caught:
        load_dataset(questions)
    assert caught.value.code == "check.no-data"


def test_the_protocol(tmp_path: Path) -> None:
    assert [longest_answer(context) for context in (5000, 20480, 131072)] == [904, 16384, 16384]
    task = task_document(tmp_path / "a", tmp_path / "b")
    assert task["num_fewshot"] == 5
    assert task["generation_kwargs"]["until"] == ["</s>", "<|im_end|>"]
    assert [one["filter"][0]["group_select"] for one in task["filter_list"]] == [-1, -1]
    assert "End your response with the answer on the last line, formatted as: #### [number]" in task["doc_to_text"]


def test_counters() -> None:
    text = '# HELP x\nx_total{a="1"} 2\nx_total{a="} 9"} 3.5 1700000\ny 1e3\nbad\nz{ nan?\n'
    found = parse_counters(text)
    assert found["x_total"] == 5.5
    assert found["y"] == 1000.0
    wanted = WantedProof("tune", counter="x")
    assert counter_proof(wanted, {"x_total": 5.5}, found) is None
    assert counter_proof(wanted, {}, found) == {"overlay": "tune", "counter": "x", "grown": 5.5}
    assert counter_proof(WantedProof("tune", counter="absent"), {}, found) is None
    names = ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_drafts_total")
    assert acceptance_length({}, dict(zip(names, (30.0, 10.0), strict=True))) == 4.0
    assert acceptance_length({}, {}) is None
    assert acceptance_length({}, {"sglang:spec_accept_length": 2.75}) == 2.75


def test_each_switched_overlay_is_proven() -> None:
    one, two = WantedProof("one", log="^one [0-9]+$"), WantedProof("two", counter="c")
    line = log_proof(one, "zero\none 1\none two\none 22\n")
    assert line == {"overlay": "one", "log": "^one [0-9]+$", "lines": 2, "first": "one 1"}
    assert log_proof(one, "one two") is None
    assert all_proven((one, two), [line, None]) is None
    proof = counter_proof(two, {}, {"c": 1.0})
    assert all_proven((one, two), [proof, line]) == [line, proof]
    assert all_proven((), []) is None
