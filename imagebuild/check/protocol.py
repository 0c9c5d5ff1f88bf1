"""The GSM8K protocol, as values: what makes a score here interchangeable with InferenceX's.

lm-eval's `gsm8k` task with a last line that asks for `#### [number]`, five shots of the training questions as turns of a
conversation, greedy, both filters taking the last match.  Shots are drawn by lm-eval (seed 1234) from the training
questions in the order of their file, so that file is pinned like the questions themselves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild.check.results import LINE_LIMIT, METRIC
from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.errors import InputError

LM_EVAL = "0.4.13"
TASK = "gsm8k"
SHOTS = 5
SEED = 1234
LONGEST_ANSWER = 16384
KEPT_FOR_PROMPT = 4096
STOPS = ("</s>", "<|im_end|>")
QUESTIONS = 1319
TEST_DIGEST = Digest("3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14")
TRAIN_DIGEST = Digest("17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465")
DATA_LIMIT = 256 << 20


def longest_answer(context: int) -> int:
    """`max_tokens` for a model's context length: what is left beside the prompt, capped.  Raises InputError
    `check.small-context`."""
    if context <= KEPT_FOR_PROMPT:
        raise InputError(
            "check.small-context",
            "the model's context leaves no room for an answer",
            expected=f"more than {KEPT_FOR_PROMPT} tokens",
            found=str(context),
        )
    return min(LONGEST_ANSWER, context - KEPT_FOR_PROMPT)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Test and training questions as held in memory, with their digests and the number of test questions."""

    test: bytes
    train: bytes
    questions: int

    @property
    def official(self) -> bool:
        """True for GSM8K's own 1,319 and 7,473 questions."""
        return (Digest.of(self.test), Digest.of(self.train)) == (TEST_DIGEST, TRAIN_DIGEST)

    def to_json(self) -> dict[str, Any]:
        return {
            "test": str(Digest.of(self.test)),
            "train": str(Digest.of(self.train)),
            "questions": self.questions,
            "official": self.official,
        }


def load_dataset(path: Path) -> Dataset:
    """A folder with `test.jsonl` and `train.jsonl`, or the path of the first with the second beside it.

    Raises InputError `check.no-data`, `check.bad-data`.
    """
    test = path / "test.jsonl" if path.is_dir() else path
    train = test.with_name("train.jsonl")
    for file in (test, train):
        if not file.is_file():
            raise InputError(
                "check.no-data",
                f"{file} is not there",
                expected="GSM8K's test.jsonl, with train.jsonl beside it for the five shots",
                details={"file": str(file)},
            )
    data = [_questions(test), _questions(train)]
    if data[1][1] < SHOTS:
        raise InputError("check.bad-data", f"{train} holds fewer than {SHOTS} questions", details={"file": str(train)})
    return Dataset(data[0][0], data[1][0], data[0][1])


def _questions(path: Path) -> tuple[bytes, int]:
    with io_faults(path, "reading"), open(path, "rb") as stream:
        data = stream.read(DATA_LIMIT + 1)
    count = 0
    for number, line in enumerate(data.splitlines(), 1):
        try:
            row = json.loads(line) if len(line) <= LINE_LIMIT and len(data) <= DATA_LIMIT else None
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("question", "answer")):
            raise InputError(
                "check.bad-data",
                f"{path}:{number}: not a question with its answer",
                expected='{"question": …, "answer": "… #### NUMBER"}',
                details={"file": str(path), "line": number},
            )
        count += 1
    return data, count


def task_document(test: Path, train: Path) -> dict[str, Any]:
    """lm-eval's declaration of the task over local files."""
    return {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"train": str(train), "test": str(test)}},
        "output_type": "generate_until",
        "training_split": "train",
        "fewshot_split": "train",
        "test_split": "test",
        "doc_to_text": "Question: {{question}}\nEnd your response with the answer on the last line, formatted as: "
        "#### [number]\nAnswer:",
        "doc_to_target": "{{answer}}",
        "metric_list": [
            {
                "metric": METRIC,
                "aggregation": "mean",
                "higher_is_better": True,
                "ignore_case": True,
                "ignore_punctuation": False,
                "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
            }
        ],
        "generation_kwargs": {"until": list(STOPS), "do_sample": False, "temperature": 0.0},
        "repeats": 1,
        "num_fewshot": SHOTS,
        "filter_list": [
            _filter("strict-match", "#### (\\-?[0-9\\.\\,]+)"),
            _filter("flexible-extract", "(-?[$0-9.,]{2,})|(-?[0-9]+)"),
        ],
        "metadata": {"version": 3.0},
    }


def _filter(name: str, expression: str) -> dict[str, Any]:
    take_last = {"function": "regex", "group_select": -1, "regex_pattern": expression}
    return {"name": name, "filter": [take_last, {"function": "take_first"}]}


def lm_eval_arguments(
    *,
    url: str,
    model: str,
    concurrency: int,
    max_tokens: int,
    include: Path,
    output: Path,
    limit: int | None,
    chat: bool,
) -> list[str]:
    """The arguments of `python -m lm_eval`.  Its own retries stay small: whoever stands at `url` retries."""
    path = "chat/completions" if chat else "completions"
    values = {
        "model": model,
        "base_url": f"{url}/v1/{path}",
        "num_concurrent": concurrency,
        "max_retries": 2,
        "timeout": 86_400,
        "tokenized_requests": False,
        "tokenizer_backend": None,
    }
    generation = {"max_tokens": max_tokens, "temperature": 0, "top_p": 1}
    words = ["run", "--model", "local-chat-completions" if chat else "local-completions"]
    words += ["--model_args", json.dumps(values), "--gen_kwargs", json.dumps(generation)]
    words += ["--tasks", TASK, "--include_path", str(include), "--output_path", str(output), "--log_samples"]
    words += ["--seed", f"0,{SEED},{SEED},{SEED}"]
    if chat:
        words += ["--apply_chat_template", "--fewshot_as_multiturn", "True"]
    if limit is not None:
        words += ["--limit", str(limit)]
    return words
