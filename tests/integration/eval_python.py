"""A Python with lm-eval for tests: one that is named, this one, or a virtual environment in the cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tools import REQUIRED, missing

from imagebuild.check.protocol import LM_EVAL
from imagebuild.host.environment import cache_folder


def has_lm_eval(python: str) -> bool:
    if not Path(python).exists():
        return False
    probe = "from importlib.metadata import version; print(version('lm_eval'))"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == LM_EVAL


def eval_python() -> str:
    """IMAGEBUILD_TEST_EVAL_PYTHON names one; else a virtual environment is made with pip where programs are required."""
    named = os.environ.get("IMAGEBUILD_TEST_EVAL_PYTHON")
    kept = cache_folder() / "test" / f"lm-eval-{LM_EVAL}-{sys.version_info[0]}.{sys.version_info[1]}"
    for candidate in (named, sys.executable):
        if candidate and has_lm_eval(candidate):
            return candidate
    kept.parent.mkdir(parents=True, exist_ok=True)
    with open(kept.with_suffix(".lock"), "wb") as lock:
        # another process may be making the same one, and lm-eval's own metadata says nothing of what it still lacks
        fcntl.flock(lock, fcntl.LOCK_EX)
        if has_lm_eval(str(kept / "bin" / "python")):
            return str(kept / "bin" / "python")
        if not REQUIRED:
            missing(f"no Python with lm-eval {LM_EVAL} (IMAGEBUILD_TEST_EVAL_PYTHON)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", kept], check=True)
        install = [kept / "bin" / "python", "-m", "pip", "install", "--quiet", f"lm-eval[api]=={LM_EVAL}"]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            missing(f"lm-eval {LM_EVAL} cannot be installed: {done.stderr[-300:]}")
    return str(kept / "bin" / "python")
