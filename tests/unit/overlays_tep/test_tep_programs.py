"""The overlay's check and its benchmark, run as programs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
CHECK = REPOSITORY / "overlays/kimi-k3-tep-shared-tp/checks/sharded_equals_replicated.py"
BENCHMARK = REPOSITORY / "benchmarks/gpu/tep_shared_expert.py"


def run(program: Path, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **({"PYTHONPATH": str(path)} if path else {})}
    command = [sys.executable, str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    return tmp_path


def test_check_without_torch_is_not_run(without_torch: Path) -> None:
    done = run(CHECK, path=without_torch)
    document = json.loads(done.stdout)
    assert (done.returncode, document["kind"], document["verdict"]) == (3, "overlay-check", "not-run")
    assert "torch" in document["reason"]


def test_check_refuses_wrong_arguments(without_torch: Path) -> None:
    assert run(CHECK, "--ranks", "two", path=without_torch).returncode == 2


def test_benchmark_without_a_gpu_is_not_run(without_torch: Path) -> None:
    done = run(BENCHMARK, path=without_torch)
    assert (done.returncode, done.stdout) == (3, "")
    assert "not run" in done.stderr


@pytest.mark.slow
def test_sharded_equals_replicated_over_real_processes() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = run(CHECK, "--backend", "gloo", "--ranks", "1,2,4,8", "--rows", "0,1,7,8")
    assert done.returncode == 0, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert {(case["ranks"], case["rows"]) for case in document["cases"]} == {
        (ranks, rows) for ranks in (1, 2, 4, 8) for rows in (0, 1, 7, 8)
    }
    assert all(case["passed"] for case in document["cases"])
    assert {control["name"]: control["noticed"] for control in document["controls"]} == {
        "padding-added": True,
        "buffer-unwritten": True,
        "shard-repeated": True,
    }
