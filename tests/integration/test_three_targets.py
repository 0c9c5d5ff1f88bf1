"""The targets of this repository from a fresh clone: bases by one command, builds twice the same, and the exported script
on the base's own tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tools import missing, program, root

from imagebuild.testing.target_bases import STAND_INS
from imagebuild.testing.wheel_fetch import obtain, wheel_folder
from imagebuild.testing.wheel_pins import CHANGE_WHEELS

pytestmark = [pytest.mark.integration, pytest.mark.slow(80)]

ROOT = Path(__file__).resolve().parents[2]
TARGETS = tuple(STAND_INS)


@dataclass(frozen=True)
class Clone:
    """What git would give somebody, with the bases made in it."""

    root: Path
    bases: tuple[str, ...]

    def verb(self, *words: str, cache: str = "cache") -> Any:
        """The JSON answer of a verb that runs on the clone's own files."""
        environment = {**os.environ, "IMAGEBUILD_CACHE": str(self.root.parent / cache)}
        command = [sys.executable, "-m", "imagebuild", *words, "--json"]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    def lock(self, name: str) -> Any:
        return json.loads((self.root / "manifests" / name / "target.lock.json").read_bytes())


def with_wheels(cache: Path) -> None:
    """A cache that is empty but for the wheels, which are fetched once."""
    for pin in CHANGE_WHEELS:
        obtain(pin)
    cache.mkdir()
    (cache / "wheels").symlink_to(wheel_folder())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    folder = tmp_path_factory.mktemp("clone")
    space = folder / "imagebuild"
    listed = subprocess.run([program("git"), "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (space / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, space / name)
    made = subprocess.run(
        [sys.executable, "-m", "imagebuild.testing.bases"], cwd=space, capture_output=True, text=True, check=False
    )
    if made.returncode == 3:
        missing(f"the bases cannot be made: {made.stderr[-500:]}")
    assert made.returncode == 0, made.stderr[-3000:]
    for cache in ("cache", "other cache"):
        with_wheels(folder / cache)
    yield Clone(space, tuple(made.stdout.split()))
    shutil.rmtree(folder)


def test_the_bases_are_those_that_the_targets_pin(clone: Clone) -> None:
    for name, reference in zip(TARGETS, clone.bases, strict=True):
        assert reference == f"oci:build/bases/{name}@{STAND_INS[name].digest}"
        assert f"{STAND_INS[name].digest}\n" in (clone.root / "manifests" / name / "target.yaml").read_text()


def test_all_three_build_from_a_fresh_clone_twice_the_same(clone: Clone) -> None:
    first = clone.verb("build", *TARGETS)["results"]
    shutil.rmtree(clone.root / "build" / TARGETS[0])
    second = clone.verb("build", *TARGETS, cache="other cache")["results"]
    for name, one, two in zip(TARGETS, first, second, strict=True):
        locked = clone.lock(name)["result"]
        assert one["digest"] == two["digest"] == locked["digest"], name
        assert one["content_id"] == locked["content_id"]
        assert one["missing_blobs"] == [], "the base is a layout on the same disk"


@pytest.mark.parametrize("name", TARGETS)
def test_each_is_verified_and_nothing_is_unproven(clone: Clone, name: str) -> None:
    reference = clone.verb("build", name)["reference"]
    verified = clone.verb("verify", reference, "--target", name)
    assert verified["passed"] is True
    codes = [check["code"] for check in verified["checks"] if check["passed"]]
    assert "verify.unproven" not in [check["code"] for check in verified["checks"]]
    assert codes.count("verify.untouched") == (name == "gb200-dynamo")
    assert codes.count("verify.identity") == {"b300-vllm": 1, "gb200-dynamo": 3, "mi355x-rocm": 2}[name]


def test_the_lock_says_the_same_when_it_is_written_anew(clone: Clone) -> None:
    """On this machine, Python and with an empty cache: the committed lock is nobody's private one."""
    before = {name: clone.lock(name) for name in TARGETS}
    clone.verb("lock", *TARGETS, "--complete", cache="other cache")
    for name in TARGETS:
        after = clone.lock(name)
        assert after["inputs"] == before[name]["inputs"], name
        assert after["result"] == before[name]["result"], name


def test_what_belongs_to_the_recipe_is_not_in_the_image(clone: Clone) -> None:
    plan = clone.verb("plan", "mi355x-rocm")
    assert plan["recipe"] == {"THP_MEM_ALLOC_ENABLE": "1"}
    assert plan["asserted"] == {"HSA_NO_SCRATCH_RECLAIM": "1"}
    reference = clone.verb("build", "mi355x-rocm")["reference"]
    digest = reference.rpartition(":")[2]
    blobs = clone.root / "build" / "mi355x-rocm" / "blobs" / "sha256"
    manifest = json.loads((blobs / digest).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
    assert "HSA_NO_SCRATCH_RECLAIM=1" in config["config"]["Env"]
    assert not [line for line in config["config"]["Env"] if line.startswith("THP_MEM_ALLOC_ENABLE")]


def test_kernels_that_were_built_beforehand_are_reported(clone: Clone) -> None:
    site = "/usr/local/lib/python3.12/dist-packages/aiter"
    found = {item["path"]: item for item in clone.lock("mi355x-rocm")["notes"]["findings"]}
    assert found[f"{site}/jit"]["code"] == "overlay.jit-cache"
    assert "2: module_aiter_enum.so, module_moe_asm.so" in found[f"{site}/jit"]["message"]
    assert "112: " in found[f"{site}/ops/triton/configs/gemm/aot"]["message"]


def layers(layout: Path, digest: str) -> list[Path]:
    """The layer files of the one image at a digest."""
    blobs = layout / "blobs" / "sha256"
    value = json.loads((blobs / digest.removeprefix("sha256:")).read_bytes())
    if "manifests" in value:
        value = json.loads((blobs / value["manifests"][0]["digest"].removeprefix("sha256:")).read_bytes())
    return [blobs / layer["digest"].removeprefix("sha256:") for layer in value["layers"]]


def unpack(files: list[Path], into: Path) -> None:
    for path in files:
        with tarfile.open(path) as archive:
            archive.extractall(into, filter="fully_trusted")


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every path with size, time and inode: what differs was written."""
    out = {}
    for path in folder.rglob("*"):
        at = path.lstat()
        out[str(path.relative_to(folder))] = (at.st_size, at.st_mtime_ns, at.st_ino) if not path.is_dir() else (0, 0, 0)
    return out


@pytest.mark.parametrize("name", TARGETS)
def test_the_script_writes_exactly_what_our_layers_hold(clone: Clone, name: str, tmp_path: Path) -> None:
    """The base's tree after the script is the base's with our layers over it: same bytes, modes and times, nothing else."""
    root()
    tree = tmp_path / "tree"
    base = layers(clone.root / "build" / "bases" / name, str(STAND_INS[name].digest))
    unpack(base, tree)
    before = state(tree)
    built = clone.verb("build", name)["digest"]
    script = clone.verb("export", name, "--as", "script")["file"]
    platform = next(iter(clone.lock(name)["inputs"]["platforms"]))
    command = [sys.executable, script, "--rootfs", str(tree), "--platform", platform, "--wheels", str(wheel_folder())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == clone.lock(name)["result"]["content_id"]
    ours = layers(clone.root / "build" / name, built)[len(base) :]
    written, hidden = set(), set()
    for path in ours:
        with tarfile.open(path) as archive:
            for member in archive:
                folder, _, last = member.name.rpartition("/")
                if last.startswith(".wh."):
                    hidden.add(f"{folder}/{last[4:]}")
                    continue
                at = (tree / member.name).lstat()
                assert at.st_mode & 0o7777 == member.mode, member.name
                if member.isfile():
                    written.add(member.name)
                    stream = archive.extractfile(member)
                    assert stream is not None
                    assert (tree / member.name).read_bytes() == stream.read(), member.name
                    assert int(at.st_mtime) == member.mtime, member.name
    after = state(tree)
    assert {path for path in after if path not in before and not (tree / path).is_dir()} <= written
    assert {path for path in before if path not in after} == hidden
    assert {path for path in after if path in before and after[path] != before[path]} <= written
    assert subprocess.run([*command, "--check"], capture_output=True, check=False).returncode == 0
    shutil.rmtree(tree)
