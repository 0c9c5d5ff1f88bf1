"""The job script of the squash-file way: shellcheck reads it, and it runs with stand-ins for enroot and srun."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import tools

from imagebuild.check.images import checked_image
from imagebuild.check.runner import CheckedImage, Devices, Job, Mount
from imagebuild.check.slurm.array import prepare_folder
from imagebuild.check.slurm.container import PyxisContainer
from imagebuild.check.slurm.folder import JobFolder
from imagebuild.check.slurm.script import program
from imagebuild.check.slurm.task import Task
from imagebuild.oci.platform import Platform
from imagebuild.target.site import Site
from imagebuild.testing.images import File, ImageSpec, LayerSpec, make_image
from imagebuild.testing.memory import MemorySource

pytestmark = pytest.mark.integration

RECORD = """#!/bin/bash
printf '%s\\n' "$@" >>"$RECORDS/{name}.$$"
env >"$RECORDS/{name}-env.$$"
"""
ENROOT = (
    RECORD.format(name="enroot")
    + """
while [ $# -gt 0 ]; do [ "$1" = -o ] && file=$2; shift; done
[ -e "$file" ] && exit 9
sleep 0.3
[ -n "${FAIL:-}" ] && { echo "no such image" >&2; exit 1; }
echo squash >"$file"
"""
)
SRUN = (
    RECORD.format(name="srun")
    + """
for word in "$@"; do
    case $word in
    --container-mounts=*) mounts=${word#*=} ;;
    --output=*) exec >"${word#*=}" ;;
    esac
done
state=$(tr , '\\n' <<<"$mounts" | sed -n 's,:/imagebuild/slurm$,,p')
: >"$state/started"
echo ran
[ -n "${SILENT:-}" ] || echo 7 >"$state/code"
exit 0
"""
)


@pytest.fixture
def image() -> CheckedImage:
    platform = Platform("linux", "amd64")
    made = make_image(ImageSpec([LayerSpec([File("etc/x", b"1")])], platform))
    source = MemorySource(made)
    return checked_image(source, made.digest, platform, reference="docker.io/vllm/vllm-openai:v1")


def prepared(folder: Path, image: CheckedImage) -> JobFolder:
    site = Site(
        "lab", "slurm", partition="gpu", account="me", squash_folder=str(folder / "squash"), scratch=str(folder / "disk"),
        options=("--exclusive",), gpus=8,
    )  # fmt: skip
    (folder / "disk").mkdir()
    job = Job(
        ("/usr/bin/python3", "-c", "print('a b')"),
        60,
        {"EMPTY": "", "MINE": "two words", "LD_PRELOAD": "/x.so"},
        ("GONE",),
        {"given.txt": b"1"},
        (Mount(Path("/models"), "/models"),),
        Devices("nvidia"),
    )
    made = JobFolder(folder / "job", "ab" * 32)
    prepare_folder(site, PyxisContainer(site), made, [Task(image, job), Task(image, job)])
    return made


def start(folder: Path, job: JobFolder, task: int, **variables: str) -> subprocess.Popen[bytes]:
    programs, records = folder / "bin", folder / "records"
    programs.mkdir(exist_ok=True)
    records.mkdir(exist_ok=True)
    for name, text in (("enroot", ENROOT), ("srun", SRUN), ("scancel", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}", "RECORDS": str(records), "SLURM_ARRAY_TASK_ID": str(task), "HOME": "/root",
        "SLURM_JOB_ID": str(100 + task), "SLURMD_NODENAME": "node1", "SECRET": "of the submitter", "SLURM_CPUS_ON_NODE": "16",
        "ENROOT_RECORDS": str(records), **variables,
    }  # fmt: skip
    # what srun starts knows of SLURM_ and ENROOT_ variables alone, so the stand-in finds its folder by one of them
    (programs / "srun").write_text(SRUN.replace("$RECORDS", "$ENROOT_RECORDS").replace("SILENT", "SLURM_SILENT"))
    return subprocess.Popen(["/bin/bash", str(job.script)], env=environment, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


def recorded(folder: Path, name: str) -> list[list[str]]:
    return [path.read_text().splitlines() for path in sorted((folder / "records").glob(f"{name}.*"))]


def status(job: JobFolder, task: int) -> dict[str, object]:
    value = json.loads((job.task(task) / "status.json").read_bytes())
    assert isinstance(value, dict)
    return value


def test_shellcheck_finds_nothing(tmp_path: Path, image: CheckedImage) -> None:
    job = prepared(tmp_path, image)
    inside = tmp_path / "inside.sh"
    inside.write_text(program("inside.sh"))
    for words in (["--shell=bash", str(job.script)], ["--shell=sh", str(inside)]):
        done = subprocess.run([tools.program("shellcheck"), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_script_asks_slurm_for_what_the_site_says(tmp_path: Path, image: CheckedImage) -> None:
    job = prepared(tmp_path, image)
    asked = [
        line.removeprefix("#SBATCH ") for line in job.script.read_text().splitlines() if line.startswith("#SBATCH")
    ]
    assert {"--partition=gpu", "--account=me", "--gres=gpu:8", "--requeue", "--exclusive", "--nodes=1"} <= set(asked)
    assert "--time=62" in asked


def test_two_at_a_time_import_once_and_to_a_temporary_name(tmp_path: Path, image: CheckedImage) -> None:
    job = prepared(tmp_path, image)
    for process in [start(tmp_path, job, task) for task in range(2)]:
        finish(process)
    hexdigits = image.digest.hex
    squash = tmp_path / "squash" / f"sha256-{hexdigits}.sqsh"
    assert squash.read_text() == "squash\n"
    (imported,) = recorded(tmp_path, "enroot")
    assert imported[:4] == ["import", "-a", "x86_64", "-o"]
    assert imported[4].startswith(f"{squash}.partial.")
    assert imported[5] == f"docker://registry-1.docker.io#vllm/vllm-openai:sha256:{hexdigits}"
    variables = next((tmp_path / "records").glob("enroot-env.*")).read_text()
    for name in ("TEMP", "CACHE", "DATA", "RUNTIME"):
        assert f"ENROOT_{name}_PATH={tmp_path}/disk/imagebuild-" in variables
    assert list((tmp_path / "disk").iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "squash").iterdir()) == [squash.name, f"{squash.name}.lock"]
    started = recorded(tmp_path, "srun")
    assert len(started) == 2
    for words in started:
        assert f"--container-image={squash}" in words
    assert status(job, 0)["end"] == status(job, 1)["end"] == "exited"
    assert status(job, 0)["code"] == 7


def test_what_pyxis_is_asked_for(tmp_path: Path, image: CheckedImage) -> None:
    job = prepared(tmp_path, image)
    finish(start(tmp_path, job, 0))
    (words,) = recorded(tmp_path, "srun")
    assert "--container-env=EMPTY,MINE" in words
    assert {
        "--no-container-entrypoint",
        "--no-container-mount-home",
        "--container-writable",
        "--cpus-per-task=16",
    } <= set(words)
    mounts = next(word for word in words if word.startswith("--container-mounts=")).partition("=")[2].split(",")
    folder = job.task(0)
    assert mounts == [
        f"{folder}/in:/imagebuild/in:ro", f"{folder}/out:/imagebuild/out", f"{folder}/run:/imagebuild/slurm",
        "/models:/models:ro",
    ]  # fmt: skip
    at = words.index("/bin/sh")
    assert words[at + 1].startswith("/imagebuild/slurm/inside-")
    assert words[at + 2 :] == ["60", "2", "0", "/usr/bin/python3", "-c", "print('a b')"]
    variables = next((tmp_path / "records").glob("srun-env.*")).read_text().splitlines()
    assert "MINE=two words" in variables
    assert "EMPTY=" in variables
    assert not [one for one in variables if one.startswith(("SECRET=", "NVIDIA_", "LD_PRELOAD="))]
    inside = (folder / "run" / "environment").read_text()
    assert inside == "export LD_PRELOAD=/x.so\nunset GONE\n"


def test_an_import_that_fails_starts_nothing(tmp_path: Path, image: CheckedImage) -> None:
    job = prepared(tmp_path, image)
    finish(start(tmp_path, job, 0, FAIL="1"))
    assert recorded(tmp_path, "srun") == []
    assert status(job, 0)["end"] == "not-started"
    assert b"no such image" in (job.task(0) / "import.log").read_bytes()
    assert [path.name for path in (tmp_path / "squash").iterdir() if "lock" not in path.name] == []


def test_what_a_killed_import_left_is_made_anew(tmp_path: Path, image: CheckedImage) -> None:
    job = prepared(tmp_path, image)
    partial = tmp_path / "squash" / f"sha256-{image.digest.hex}.sqsh.partial.1"
    partial.parent.mkdir()
    partial.write_text("half")
    finish(start(tmp_path, job, 0))
    assert not partial.exists()
    assert status(job, 0)["end"] == "exited"


def test_an_srun_that_says_0_for_a_command_that_did_not_end(tmp_path: Path, image: CheckedImage) -> None:
    job = prepared(tmp_path, image)
    finish(start(tmp_path, job, 0, SLURM_SILENT="1"))
    told = status(job, 0)
    assert (told["end"], told["code"], told["srun"]) == ("lost", None, 0)


def test_a_third_start_is_a_node_lost_twice(tmp_path: Path, image: CheckedImage) -> None:
    job = prepared(tmp_path, image)
    finish(start(tmp_path, job, 0, SLURM_RESTART_COUNT="2"))
    assert status(job, 0)["end"] == "lost"
    assert recorded(tmp_path, "srun") == []
