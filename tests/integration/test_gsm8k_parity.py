"""The real lm-eval, once plainly and once through our proxy, against one synthetic server: nothing may differ."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from eval_python import eval_python

from imagebuild.check.compare import AnswerLimits, compare_runs
from imagebuild.check.endpoint import Client, parse_endpoint
from imagebuild.check.gsm8k import RunRequest, run_gsm8k
from imagebuild.check.protocol import lm_eval_arguments, load_dataset, task_document
from imagebuild.check.results import load_run
from imagebuild.check.verdicts import Verdict
from imagebuild.testing.openai_double import OpenAIDouble, Script

pytestmark = [pytest.mark.integration, pytest.mark.slow(80)]
ROWS = [
    {
        "question": f"A box holds {n} red and {2 * n} blue balls, and costs ${n}. How many balls are there?",
        "answer": f"{n} + {2 * n} = <<{n}+{2 * n}={3 * n}>>{3 * n}\n#### {3 * n:,}",
    }
    for n in range(390, 420)
]
VOLATILE = {"date", "total_evaluation_time_seconds", "start_time", "end_time", "config", "configs", "git_hash"}


@pytest.fixture(scope="module")
def python() -> str:
    return eval_python()


def plainly(python: str, folder: Path, data: Path, url: str) -> Path:
    """lm-eval by itself, as somebody would run it who does not know us."""
    (folder / "task").mkdir(parents=True)
    task = task_document(data / "test.jsonl", data / "train.jsonl")
    (folder / "task" / "gsm8k.yaml").write_text(json.dumps(task))
    words = lm_eval_arguments(
        url=url,
        model="double",
        concurrency=4,
        max_tokens=16384,
        include=folder / "task",
        output=folder / "out",
        limit=None,
        chat=True,
    )
    offline = {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    subprocess.run(
        [python, "-m", "lm_eval", *words],
        check=True,
        capture_output=True,
        cwd=folder,
        env={**os.environ, **offline, "OPENAI_API_KEY": "EMPTY", "NO_PROXY": "127.0.0.1"},
    )
    return next((folder / "out").iterdir())


def samples(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in next(folder.glob("samples_*.jsonl")).read_text().splitlines()]


def test_the_same_server_gives_the_same_files_with_and_without_us(python: str, tmp_path: Path) -> None:
    for name in ("test", "train"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    questions = [(row["question"], row["answer"].split("#### ")[1]) for row in ROWS]
    script = Script(questions, wrong=[3, 11, 29], faults={5: ["empty"], 6: ["truncated"], 7: ["null"]})
    with OpenAIDouble(script) as double:
        plain = plainly(python, tmp_path / "plain", tmp_path, double.url)
    request = RunRequest(
        tmp_path / "ours", "t", "base", load_dataset(tmp_path), python, concurrency=4, limits=AnswerLimits(2)
    )
    with OpenAIDouble(script) as double, Client(parse_endpoint(double.url)) as client:
        done = run_gsm8k(request, client)
    assert done.judgement.verdict is Verdict.PASSED, done.judgement.reason
    assert (done.run.counts.null, done.run.counts.empty, done.run.counts.truncated) == (1, 1, 1)

    mine = samples(tmp_path / "ours")
    assert mine == samples(plain)
    assert len(mine) == 2 * len(ROWS)
    results = [json.loads(next(folder.glob("results_*.json")).read_text()) for folder in (plain, tmp_path / "ours")]
    for key in set(results[0]) - VOLATILE - {"task_hashes", "versions"}:
        assert results[0][key] == results[1][key], key
    scores = results[0]["results"]["gsm8k"]
    assert scores["exact_match,strict-match"] == pytest.approx(24 / 30)
    assert scores["exact_match_stderr,strict-match"] == pytest.approx((0.8 * 0.2 / 29) ** 0.5)
    settled = [{**one["configs"]["gsm8k"], "dataset_kwargs": None, "metadata": None} for one in results]
    assert settled[0] == settled[1]
    assert results[0]["task_hashes"] == results[1]["task_hashes"]
    assert all(row["prompt_hash"] and row["doc_hash"] for row in mine)

    found = compare_runs(done.run, load_run(plain), limits=AnswerLimits(2))
    assert found.filters[0].table.discordant == 0
    assert found.filters[0].changed_responses == 0
