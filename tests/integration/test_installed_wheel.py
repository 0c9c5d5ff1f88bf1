"""After one `pip install` of the wheel, in an empty folder: what needs no workspace, and then the whole tutorial."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import ROOT, bare_environment, build_wheel
from tools import missing
from workflow_runner import load_workflow

from imagebuild.testing.small_engine import SmallWorkspace

pytestmark = [pytest.mark.integration, pytest.mark.slow(30)]
sys.path.append(str(ROOT / "tests" / "cli"))
from console_page import newcomer, run_page  # noqa: E402

PAGE = """\
# Inference-engine patch waiver, PR #2508

## What is patched
- `/opt/engine/serve.py`, a local edit

## Why the unmodified upstream image cannot run this benchmark
The edit is faster; the patch is not strictly required.

## Upstream PR / issue links
none

## Removal plan
when upstream merges it; then delete the patch, its call in the recipe, and this waiver
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment, made by the script of the workflow that users call."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = build_wheel(folder)
    workflow = load_workflow(ROOT / ".github" / "workflows" / "images.yaml")
    script = next(step["run"] for step in workflow["jobs"]["plan"]["steps"] if step["name"] == "Install")
    path = folder / "path"
    more = {"RUNNER_TEMP": str(folder), "GITHUB_PATH": str(path), "INSTALL": str(wheel)}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], env=bare_environment(folder, **more), cwd=folder,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        missing(f"pip did not install the wheel: {done.stderr[-400:]}")
    return Path(path.read_text().strip())


@pytest.fixture
def run(programs: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A verb of the installed program, in an empty folder."""
    here = tmp_path / "empty"
    here.mkdir()

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(programs / "imagebuild"), *words], cwd=here, env=bare_environment(tmp_path),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return typed


def test_a_reference_is_written_for_every_consumer(run: Callable[..., Any]) -> None:
    reference = "docker.io/vllm/vllm-openai:v0.33.0@sha256:" + "a" * 64
    done = run("ref", reference, "--as", "enroot3")
    assert (done.returncode, done.stdout) == (0, "docker://vllm/vllm-openai:sha256:" + "a" * 64 + "\n"), done.stderr
    assert run("ref", "docker.io/vllm/vllm-openai:v0.33.0").returncode == 2


def test_a_strangers_waiver_is_judged(run: Callable[..., Any], tmp_path: Path) -> None:
    page = tmp_path / "2508.md"
    page.write_text(PAGE)
    done = run("waiver", "check", str(page))
    assert done.returncode == 1, done.stderr
    assert "waiver.no-upstream-link" in done.stdout
    assert re.search(r"2508\.md: refused \(\d+ blocking\)$", done.stdout.splitlines()[-1])


def test_an_image_is_verified(
    run: Callable[..., Any], in_workspace: Callable[..., SmallWorkspace], verb: Callable[..., Any]
) -> None:
    space = in_workspace()
    assert verb("lock", "tuned", "--complete").code == 0
    assert verb("build", "tuned", "--complete").code == 0
    assert verb("keygen", "me", "--unencrypted").code == 0
    image = f"oci:{space.root / 'build' / 'tuned'}@{space.digest()}"
    assert verb("sign", image, "--key", "me.key").code == 0
    done = run("verify", image, "--key", str(space.root / "me.pub"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"passed: {image}"
    assert verb("keygen", "other", "--unencrypted").code == 0
    assert run("verify", image, "--key", str(space.root / "other.pub")).returncode == 1


def test_the_tutorial_works_with_what_was_installed(programs: Path, tmp_path: Path) -> None:
    typed = list(run_page(ROOT / "docs" / "tutorial.md", tmp_path, newcomer(tmp_path, programs)))
    wrong = [f"$ {one.command}\n" + "\n".join(one.answer) for one in typed if not one.as_told]
    assert not wrong, "\n\n".join(wrong)
    assert len(typed) > 20
