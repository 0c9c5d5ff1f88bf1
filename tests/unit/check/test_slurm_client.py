"""Slurm's programs as they answer, by stand-ins on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.check.slurm.client import SlurmClient, TaskState
from imagebuild.errors import RefusedError, UnavailableError

QUEUE = "".join(
    f"{'12':<20}{task:<20}{state:<20}{restarts:<12}{node:<80}{reason:<200}\n"
    for task, state, restarts, node, reason in (
        ("0", "COMPLETED", "0", "n1", "None"),
        ("1", "PENDING", "1", "", "Nodes required for job are DOWN, DRAINED"),
        ("N/A", "RUNNING", "0", "n1", "None"),
    )
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("SBATCH_PARTITION", "of the shell")
    monkeypatch.setenv("TOKEN", "secret")
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_job_is_handed_in_without_the_shells_variables(programs: Path, tmp_path: Path) -> None:
    program(programs, "sbatch", f'env >{tmp_path}/env; echo "$@" >{tmp_path}/words; echo "12;cluster"')
    assert SlurmClient().submit(tmp_path / "job.sh", [0, 3], "imagebuild-x-0") == "12"
    words = (tmp_path / "words").read_text()
    assert words == f"--parsable --job-name=imagebuild-x-0 --array=0,3 {tmp_path}/job.sh\n"
    variables = (tmp_path / "env").read_text()
    assert "TOKEN" not in variables
    assert "SBATCH_" not in variables


def test_a_no_and_a_silence_are_told_apart(programs: Path, tmp_path: Path) -> None:
    program(programs, "sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    with pytest.raises(RefusedError, match="invalid partition") as refused:
        SlurmClient().submit(tmp_path / "job.sh", [0], "x")
    assert refused.value.code == "check.slurm-refused"
    program(programs, "sbatch", "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(UnavailableError) as silent:
        SlurmClient().submit(tmp_path / "job.sh", [0], "x")
    assert silent.value.code == "check.slurm-unreachable"


def test_states_by_task(programs: Path) -> None:
    program(programs, "squeue", f"cat <<'E'\n{QUEUE}E")
    assert SlurmClient().states("12") == {
        0: TaskState("COMPLETED", 0, "n1", "None"),
        1: TaskState("PENDING", 1, "", "Nodes required for job are DOWN, DRAINED"),
    }


def test_the_accounting_is_asked_where_the_queue_knows_no_more(programs: Path) -> None:
    program(programs, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program(programs, "sacct", "printf '12_0|CANCELLED by 0|n1\\n12_1|NODE_FAIL|n2\\n'")
    assert SlurmClient().states("12") == {0: TaskState("CANCELLED", node="n1"), 1: TaskState("NODE_FAIL", node="n2")}
    program(programs, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert SlurmClient().states("12") == {}


def test_a_queue_that_cannot_be_asked_says_nothing(programs: Path) -> None:
    program(programs, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert SlurmClient().states("12") is None
    with pytest.raises(UnavailableError):
        SlurmClient().named("imagebuild-x-0")


def test_a_cluster_that_is_not_there(programs: Path) -> None:
    for name in ("sbatch", "squeue", "scontrol", "scancel"):
        program(programs, name, "exit 0")
    assert SlurmClient().available() is None
    program(programs, "scontrol", '[ "$1" = ping ] && { echo "Slurmctld(primary) at vm is DOWN"; exit 1; }; exit 0')
    assert "is DOWN" in str(SlurmClient().available())


def test_the_address_of_a_node(programs: Path) -> None:
    program(programs, "scontrol", "echo 'NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=n1'")
    assert SlurmClient().node_address("n1") == "10.0.0.7"
    program(programs, "scontrol", "exit 1")
    assert SlurmClient().node_address("n1") == "n1"
