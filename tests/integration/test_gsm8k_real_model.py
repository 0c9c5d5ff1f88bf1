"""A real model in a container that this project built: base, off and on, twenty questions each, through a Docker engine.

The questions are GSM8K's first twenty behind five shots each where its files are at hand, and small sums of our own where
they are not.  The model has 270 million parameters and no chat template, and its answers are cut short, so that a CPU gives
them in minutes: what is shown is the way, from image to verdict, not accuracy.  The overlay changes how prompts are cut for
evaluation, behind a switch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cpu_model import cpu_base, model
from eval_python import eval_python
from gsm8k_questions import OFFICIAL, gsm8k_questions
from real_engine import RealEngine

pytestmark = [pytest.mark.integration, pytest.mark.slow(330)]
ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 20
SITE = "/usr/local/lib/python3.11/dist-packages"
EDIT = """\
    if os.environ.get("CPU_ENGINE_SMALL_BATCHES", "0") == "1":
        print("cpu engine: prompts are evaluated 64 tokens at a time", flush=True)
        return 64
    return BATCH
"""
OVERLAY = f"""\
schema: 1
name: small-batches
description: prompts are evaluated in smaller batches, behind a switch
author: tests
switch: {{env: CPU_ENGINE_SMALL_BATCHES, default: "0", "on": "1"}}
proof: {{log: "^cpu engine: prompts are evaluated [0-9]+ tokens at a time$"}}
changes:
  - edit: {{path: cpu_engine/server.py, find: "    return BATCH\\n", replace: {json.dumps(EDIT)}}}
"""


@dataclass(frozen=True)
class Space:
    root: Path
    python: str
    host: str

    def verb(self, *words: str) -> tuple[int, Any, str]:
        environment = {**os.environ, "IMAGEBUILD_CACHE": str(self.root.parent / "cache"), "DOCKER_HOST": self.host}
        command = [sys.executable, "-m", "imagebuild", *words, "--json", "-C", str(self.root)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=1500
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def space() -> Iterator[Space]:
    python = eval_python()
    folder = Path(tempfile.mkdtemp(prefix="rm-"))
    made = cpu_base(folder)
    root = folder / "space"
    serve = {
        "engine": "openai",
        "command": [
            "python3",
            "-m",
            "cpu_engine.server",
            "--model",
            "{model}",
            "--name",
            "gemma-3-270m",
            "--port",
            "{port}",
        ],
        "model": {"id": "gemma-3-270m", "path": str(model())},
        "ready_deadline": "5m",
    }
    target = {
        "schema": 1,
        "name": "cpu",
        "base": f"oci:build/cpu-base:base@{made.digest}",
        "platforms": ["linux/amd64"],
        "overlays": ["small-batches"],
        "roots": {"cpu_engine": {"python": "cpu_engine"}},
        "serve": serve,
        "checks": {
            "gsm8k": {"threshold": 0.0, "margin": 20.0, "concurrency": [2], "max_null": 20, "max_truncated": 20}
        },
    }
    (root / "manifests" / "cpu").mkdir(parents=True)
    (root / "manifests" / "cpu" / "target.yaml").write_text(json.dumps(target))
    (root / "overlays" / "small-batches").mkdir(parents=True)
    (root / "overlays" / "small-batches" / "overlay.yaml").write_text(OVERLAY)
    with RealEngine() as engine:
        yield Space(root, python, engine.host)
    shutil.rmtree(folder, ignore_errors=True)


def test_three_arms_of_a_real_model_from_image_to_verdict(space: Space, tmp_path: Path) -> None:
    assert space.verb("lock", "cpu")[0] == 0
    assert space.verb("build", "cpu")[0] == 0
    data, origin = gsm8k_questions(tmp_path / "data")
    asked = ("--data", str(data), "--limit", str(QUESTIONS), "--completions", "--max-tokens", "16")
    asked += ("--eval-python", space.python)
    code, found, err = space.verb("gsm8k", "run", "cpu", "--runner", "docker", *asked)
    assert code == 0, err + json.dumps(found, indent=1)
    assert [(one["arm"], one["verdict"]) for one in found["results"]] == [
        ("base", "passed"),
        ("off", "passed"),
        ("on", "passed"),
    ]
    lock = json.loads((space.root / "manifests" / "cpu" / "target.lock.json").read_bytes())
    (platform,) = lock["result"]["platforms"].values()
    runs = {one["arm"]: Path(one["folder"]) for one in found["results"]}
    metas = {arm: json.loads((folder / "meta_env.json").read_bytes()) for arm, folder in runs.items()}
    for arm, meta in metas.items():
        assert meta["settings"]["dataset"]["official"] is (origin == OFFICIAL)
        assert meta["runner"] == "docker"
        assert meta["server"]["by_itself"] is False
        assert meta["inside"]["wrong_count"] == 0
        assert meta["inside"]["files"] > 0
        assert len((runs[arm] / "answers.jsonl").read_bytes().splitlines()) == QUESTIONS
    assert metas["base"]["inside"]["content_ids"] == []
    assert (
        metas["off"]["inside"]["content_ids"] == metas["on"]["inside"]["content_ids"] == [lock["result"]["content_id"]]
    )
    assert metas["off"]["image_digest"] == metas["on"]["image_digest"] == platform["manifest"]
    assert metas["base"]["image_digest"] != platform["manifest"]
    assert metas["on"]["switch_proof"][0]["lines"] == 1
    assert metas["off"]["switch_proof"] is None
    texts = [line for folder in runs.values() for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert all(json.loads(line)["body"]["choices"][0]["text"].strip() for line in texts), "a real model says something"

    # nothing is left of it in the engine, and a second call asks nothing
    engine = ["docker", "--host", space.host]
    assert subprocess.run([*engine, "ps", "-aq"], capture_output=True, text=True, check=True).stdout == ""
    code, found, err = space.verb("gsm8k", "run", "cpu", "--runner", "docker", *asked)
    assert code == 0, err
    assert {one["reason"] for one in found["results"]} == {"the run of before counts, and was not run again"}

    compared = space.verb(
        "gsm8k",
        "compare",
        str(runs["off"]),
        str(runs["base"]),
        "--margin",
        "50",
        "--max-null",
        "20",
        "--max-truncated",
        "20",
    )[1]
    assert compared["filters"][0]["questions"] == QUESTIONS
    assert compared["filters"][0]["changed_responses"] == 0, "the switch is off: the same tokens as the base's"
    code, gate, _ = space.verb("gsm8k", "gate", "cpu")
    assert code == 3, "twenty questions, with answers cut short, pass no gate"
    assert gate["verdict"] == "invalid"
    assert "answers were cut at 16 tokens" in gate["reason"]
    assert ("other questions than the pinned ones" in gate["reason"]) is (origin != OFFICIAL)
    if origin == OFFICIAL:
        assert f"{QUESTIONS} of 1319 questions under strict-match" in gate["reason"]
