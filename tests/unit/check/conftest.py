"""Small accuracy runs as lm-eval writes them."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

FILTERS = ("strict-match", "flexible-extract")
MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        name: str,
        right: Sequence[bool],
        *,
        prompts: str = "p",
        responses: Sequence[str] | None = None,
        meta: dict[str, Any] | None = None,
        summary: dict[str, Any] | None = None,
        claimed: float | None = None,
        effective: int | None = None,
        suffix: str = "",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        score = sum(right) / len(right) if claimed is None else claimed
        count = len(right) if effective is None else effective
        results = {
            "results": {"gsm8k": {"alias": "gsm8k", **{f"exact_match,{one}": score for one in FILTERS}}},
            "n-samples": {"gsm8k": {"original": count, "effective": count}},
            "model_name": "m",
            "lm_eval_version": "0.4.13",
        }
        (folder / f"results_2026-11-30T00-00-00{suffix}.json").write_text(json.dumps(results))
        lines = []
        for one in FILTERS:
            for number, correct in enumerate(right):
                text = responses[number] if responses else f"#### {number if correct else -number - 1}"
                lines.append(
                    json.dumps(
                        {
                            "doc_id": number,
                            "filter": one,
                            "exact_match": float(correct),
                            "resps": [[text]],
                            "filtered_resps": [text.removeprefix("#### ")],
                            "doc_hash": f"d{number}",
                            "prompt_hash": f"{prompts}{number}",
                            "target_hash": f"t{number}",
                        }
                    )
                )
        (folder / f"samples_gsm8k_2026-11-30T00-00-00{suffix}.jsonl").write_text("\n".join(lines) + "\n")
        for file, document in (("meta_env.json", meta), ("summary.json", summary)):
            if document is not None:
                (folder / file).write_text(json.dumps(document))
        return folder

    return make


QUESTIONS = [(f"What is {number} and {number}?", str(2 * number)) for number in range(12)]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """A folder of twelve questions in GSM8K's form, and their shots."""
    folder = tmp_path / "questions"
    folder.mkdir()
    lines = [json.dumps({"question": text, "answer": f"So.\n#### {said}"}) + "\n" for text, said in QUESTIONS]
    (folder / "test.jsonl").write_text("".join(lines))
    (folder / "train.jsonl").write_text("".join(lines).replace("What is", "How much is"))
    return folder


@pytest.fixture
def eval_python(tmp_path: Path) -> str:
    """What stands in for a Python with lm-eval."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__).parent / "lm_eval_double.py"} "$@"\n')
    path.chmod(0o755)
    return str(path)
