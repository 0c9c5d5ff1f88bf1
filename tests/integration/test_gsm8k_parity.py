"""The real lm-eval, once plainly and once through us, against one synthetic server: nothing may differ.

The plain side knows nothing of ours: its task is the one that lm-eval ships, with the lines laid over it in which the protocol
differs, and its options are written out.  The questions are GSM8K's first thirty where its files are at hand.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from eval_python import eval_python
from gsm8k_questions import OFFICIAL, gsm8k_questions

from imagebuild.check.compare import AnswerLimits, compare_runs
from imagebuild.check.endpoint import Client, parse_endpoint
from imagebuild.check.gsm8k import RunRequest, run_gsm8k
from imagebuild.check.protocol import load_dataset
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
OVER_SHIPPED = r"""
include: {shipped}/tasks/gsm8k/gsm8k.yaml
task: gsm8k
dataset_path: json
dataset_name: null
dataset_kwargs: {{data_files: {files}}}
doc_to_text: "Question: {{{{question}}}}\nEnd your response with the answer on the last line, formatted as: #### [number]\nAnswer:"
generation_kwargs: {{until: ["</s>", "<|im_end|>"], do_sample: false, temperature: 0.0}}
filter_list:
  - name: strict-match
    filter:
      - {{function: regex, group_select: -1, regex_pattern: '#### (\-?[0-9\.\,]+)'}}
      - {{function: take_first}}
  - name: flexible-extract
    filter:
      - {{function: regex, group_select: -1, regex_pattern: '(-?[$0-9.,]{{2,}})|(-?[0-9]+)'}}
      - {{function: take_first}}
"""
VOLATILE = {"date", "total_evaluation_time_seconds", "start_time", "end_time", "config", "configs", "git_hash"}


@pytest.fixture(scope="module")
def python() -> str:
    return eval_python()


def plainly(python: str, folder: Path, data: Path, url: str) -> Path:
    """lm-eval by itself, as somebody would run it who does not know us."""
    (folder / "task").mkdir(parents=True)
    where = "import lm_eval; print(lm_eval.__path__[0])"
    installed = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    files = {name: str(data / f"{name}.jsonl") for name in ("train", "test")}
    (folder / "task" / "gsm8k.yaml").write_text(OVER_SHIPPED.format(shipped=installed, files=json.dumps(files)))
    model = {"model": "double", "base_url": f"{url}/v1/chat/completions", "num_concurrent": 4, "max_retries": 1}
    words = ["--model", "local-chat-completions", "--model_args", ",".join(f"{k}={v}" for k, v in model.items())]
    words += ["--tasks", "gsm8k", "--include_path", "task", "--output_path", "out", "--log_samples"]
    words += ["--apply_chat_template", "--fewshot_as_multiturn", "True", "--num_fewshot", "5"]
    words += ["--gen_kwargs", "max_tokens=16384,temperature=0,top_p=1", "--limit", str(len(ROWS))]
    offline = {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [python, "-m", "lm_eval", *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **offline, "OPENAI_API_KEY": "EMPTY", "NO_PROXY": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return next((folder / "out").iterdir())


def samples(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in next(folder.glob("samples_*.jsonl")).read_text().splitlines()]


def test_the_same_server_gives_the_same_files_with_and_without_us(python: str, tmp_path: Path) -> None:
    data, origin = gsm8k_questions(tmp_path / "sums")
    rows = ROWS
    if origin == OFFICIAL:
        lines = (data / "test.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines[: len(ROWS)]]
    else:
        data = tmp_path
        for name in ("test", "train"):
            (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    questions = [(row["question"], row["answer"].split("#### ")[1]) for row in rows]
    script = Script(questions, wrong=[3, 11, 29], faults={5: ["empty"], 6: ["truncated"], 7: ["null"]})
    with OpenAIDouble(script) as double:
        plain = plainly(python, tmp_path / "plain", data, double.url)
    request = RunRequest(
        tmp_path / "ours",
        "t",
        "base",
        load_dataset(data),
        python,
        concurrency=4,
        limit=len(ROWS),
        limits=AnswerLimits(2),
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
    places = ("dataset_kwargs", "metadata", "tag")
    settled = [{k: v for k, v in one["configs"]["gsm8k"].items() if k not in places} for one in results]
    assert settled[0] == settled[1]
    assert results[0]["task_hashes"] == results[1]["task_hashes"]
    assert all(row["prompt_hash"] and row["doc_hash"] for row in mine)

    found = compare_runs(done.run, load_run(plain), limits=AnswerLimits(2))
    assert found.filters[0].table.discordant == 0
    assert found.filters[0].changed_responses == 0
