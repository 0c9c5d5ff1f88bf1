"""Smoke steps of a patched image on a real Slurm, all as one job array; a patch that does not run is caught there too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from mounts import mounts_below
from real_slurm import RealSlurm
from runner_laws import is_gone
from test_slurm_array import site_at
from test_smoke_containers import INERT, Patched, patched, verdicts  # noqa: F401  (a fixture)

from imagebuild.check.runners import open_runner
from imagebuild.check.runners.slurm import SlurmRunner
from imagebuild.check.slurm.smoke import run_smoke_array
from imagebuild.check.verdicts import Verdict

pytestmark = [pytest.mark.integration, pytest.mark.slow(50)]
STEPS = ("files", "python", "switch")


def test_one_array_tells_the_patch_that_runs_from_those_that_do_not(
    patched: Patched,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = [patched.request(STEPS)]
    words = []
    for number, (_, make) in enumerate(INERT.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        mounts, environment, why = make(folder)
        words.append(why)
        requests.append(patched.request(("python",), mounts=mounts, environment=environment))
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as name,
        RealSlurm(Path(name)) as cluster,
    ):
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        runner = open_runner("slurm", site=site_at(tmp_path / "jobs"))
        assert isinstance(runner, SlurmRunner)
        good, *inert = run_smoke_array(requests, runner)
        arrays = set(cluster.command("squeue", "-h", "-t", "all", "-O", "ArrayJobID").split())
        runner.close()
    assert verdicts(good) == dict.fromkeys(STEPS, "passed"), good.judgement
    assert (good.runner, good.hardware["cpu"]) == ("slurm", os.uname().machine)
    for result, why in zip(inert, words, strict=True):
        assert result.judgement.verdict is Verdict.FAILED, result.judgement
        assert why in result.judgement.reason
    assert len(arrays) == 1
    assert mounts_below(tmp_path) == []
    assert not list((tmp_path / "jobs").glob("tasks-*/"))


SITES = """\
schema: 1
sites:
  lab:
    runner: slurm
    container: oci
    partition: test
    job_folder: {folder}
    time_limit: 30m
"""


def killed_when_handed_in(command: list[str], cluster: RealSlurm, jobs: Path) -> None:
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=cluster.environment
    ) as first:
        assert is_gone(lambda: not list(jobs.glob("tasks-*/submissions/*.number")), 60)
        first.kill()


@pytest.mark.parametrize("oci", [True, False])
def test_the_verb_at_a_slurm_site(
    patched: Patched,  # noqa: F811
    tmp_path: Path,
    oci: bool,
) -> None:
    """Without oci.conf srun starts the checks on the node itself and answers 0: that is never a pass."""
    (patched.space / "sites.yaml").write_text(SITES.format(folder=tmp_path / "jobs"))
    command = [
        sys.executable,
        "-m",
        "imagebuild",
        "smoke",
        "tuned",
        "--site",
        "lab",
        "-C",
        str(patched.space),
        "--json",
    ]
    command += ["--cache", str(patched.cache), "--output", str(tmp_path / "evidence")]
    for step in STEPS:
        command += ["--step", step]
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as name,
        RealSlurm(Path(name), oci=oci) as cluster,
    ):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=cluster.environment, timeout=180
        )
        arrays = set(cluster.command("squeue", "-h", "-t", "all", "-O", "ArrayJobID").split())
    assert len(arrays) == 1, "what the killed process handed in was handed in again"
    document = json.loads(done.stdout)
    steps = {one["name"]: one["verdict"] for one in document["steps"]}
    if oci:
        assert (done.returncode, steps) == (0, dict.fromkeys(STEPS, "passed")), done.stderr
    else:
        assert done.returncode == 3
        assert steps == {"files": "passed", "python": "infrastructure", "switch": "infrastructure"}
        assert "oci.conf" in done.stdout
