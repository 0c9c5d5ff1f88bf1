"""An accuracy run whose file system is really full in the middle: the answers that were kept stay whole, and the run goes on."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from test_full_disks import Tiny, fill, tiny  # noqa: F401 (a fixture)

from imagebuild.check.endpoint import Client, parse_endpoint
from imagebuild.check.gsm8k import RunRequest, run_gsm8k
from imagebuild.check.protocol import load_dataset
from imagebuild.check.verdicts import Verdict
from imagebuild.errors import UnavailableError
from imagebuild.testing.openai_double import OpenAIDouble, Script

pytestmark = pytest.mark.integration
STAND_IN = Path(__file__).resolve().parents[1] / "unit" / "check" / "lm_eval_double.py"
COUNT = 60


def test_a_disk_that_is_full_in_the_middle(tiny: Tiny, tmp_path: Path) -> None:  # noqa: F811
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S {STAND_IN} "$@"\n')
    python.chmod(0o755)
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"question": f"What is {n} and {n}?", "answer": f"So.\n#### {2 * n}"} for n in range(COUNT)]
    for name in ("test", "train"):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = Script([(row["question"], row["answer"].split("#### ")[1]) for row in rows])

    with tiny(tmp_path / "disk", 256) as disk:
        request = RunRequest(disk / "run", "t", "base", load_dataset(data), str(python))
        fill(disk, 40 << 10)
        with OpenAIDouble(script) as double, Client(parse_endpoint(double.url)) as client:
            with pytest.raises(UnavailableError) as caught:
                run_gsm8k(request, client)
            asked = len(double.asked)
        assert caught.value.code == "content.disk-full"
        lines = (disk / "run" / "answers.jsonl").read_bytes().splitlines(keepends=True)
        assert 0 < len(lines) < COUNT
        assert all(json.loads(line)["error"] is None for line in lines if line.endswith(b"\n"))
        assert all(line.endswith(b"\n") for line in lines), "half a line stays behind"
        assert asked == len(lines) + 1, "after the first answer that could not be kept nobody is asked"
        assert sorted(os.listdir(disk / "run")) == ["answers.jsonl", "run.json"]

        (disk / "ballast").unlink()
        with OpenAIDouble(script) as double, Client(parse_endpoint(double.url)) as client:
            done = run_gsm8k(request, client)
            assert double.asked == list(range(len(lines), COUNT))
        assert done.judgement.verdict is Verdict.PASSED
        assert done.run.right("strict-match") == COUNT
