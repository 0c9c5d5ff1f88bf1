"""The three targets on roots whose Python runs: the built image, and the pristine base after the exported script, in podman."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from container_engine import Podman
from debian_base import emulate_arm64
from tools import missing

from imagebuild.errors import ImagebuildError
from imagebuild.testing.real_root import debian_root
from imagebuild.testing.target_bases import STAND_INS, runnable_base
from imagebuild.testing.wheel_fetch import WheelPin, obtain, wheel_folder
from imagebuild.testing.wheel_pins import CHANGE_WHEELS

pytestmark = [pytest.mark.integration, pytest.mark.slow(180)]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"

IMPORT = """
import sys, types
# torch is not in this base; the module that asks for it is the only thing that is not the image's own
sys.modules["vllm.env_override"] = types.ModuleType("vllm.env_override")
import vllm.envs
print(vllm.envs.__file__, getattr(vllm.envs, sys.argv[1]))
"""
SWITCHES = {"b300-vllm": "VLLM_KIMI_K3_TEP_SHARED_TP", "mi355x-rocm": "VLLM_ROCM_AITER_PREBUILT_ONLY"}
VERSIONS = """
from importlib.metadata import files, version
print(version("ai-dynamo"), version("ai-dynamo-runtime"), version("vllm"), len(files("ai-dynamo")) > 1000)
"""
SITE = "/usr/local/lib/python3.11/dist-packages"
HASHES = """
import hashlib, json, os, sys
out = {}
for path in json.load(sys.stdin) if len(sys.argv) < 2 else json.load(open(sys.argv[1])):
    at = os.lstat(path) if os.path.lexists(path) else None
    data = open(path, "rb").read() if at and os.path.isfile(path) else b""
    out[path] = at and [hashlib.sha256(data).hexdigest(), at.st_mode, at.st_uid, int(at.st_mtime) if data else 0]
print(json.dumps(out))
"""


@dataclass(frozen=True)
class Stage:
    """One target on a runnable base: its workspace, lock, exported files, and both images in an engine."""

    name: str
    space: Path
    platform: str
    engine: Podman
    base: str
    built: str
    paths: tuple[str, ...]

    @property
    def content_id(self) -> str:
        lock = json.loads((self.space / "manifests" / self.name / "target.lock.json").read_bytes())
        return str(lock["result"]["content_id"])

    def hashes(self, image: str) -> Any:
        done = self.engine.run(image, PYTHON, "-c", HASHES, "/stage/paths.json", options=self.mounts)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def mounts(self) -> tuple[str, ...]:
        return (
            f"--volume={self.space}:/stage:ro",
            f"--volume={wheel_folder()}:/wheels:ro",
            f"--platform={self.platform}",
        )


def needed(name: str) -> list[WheelPin]:
    (platform,) = STAND_INS[name].spec(None).platforms
    pins = [pin for layer in STAND_INS[name].spec(None).layers for pin in getattr(layer, "wheels", {}).values()]
    return pins if platform else []


def verb(space: Path, *words: str) -> str:
    """One verb in a process of its own, with a cache beside the workspace; its answer."""
    environment = {**os.environ, "IMAGEBUILD_CACHE": str(space.parent / "cache")}
    command = [sys.executable, "-m", "imagebuild", *words, "-C", str(space)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepare(name: str, folder: Path) -> tuple[Path, str, str, str]:
    """A workspace with the target on a runnable base; base digest, built digest and platform."""
    for pin in (*CHANGE_WHEELS, *needed(name)):
        try:
            obtain(pin)
        except ImagebuildError as error:
            missing(str(error))
    if STAND_INS[name].architecture == "arm64":
        emulate_arm64()
    try:
        root = debian_root(architecture=STAND_INS[name].architecture)
    except ImagebuildError as error:
        missing(str(error))
    space = folder / "ws"
    made = runnable_base(space / "build" / "bases" / name, name, root)
    target = (ROOT / "manifests" / name / "target.yaml").read_text()
    pinned = STAND_INS[name].digest
    (space / "manifests" / name).mkdir(parents=True)
    (space / "manifests" / name / "target.yaml").write_text(target.replace(str(pinned), str(made.digest)))
    shutil.copytree(ROOT / "overlays", space / "overlays")
    cache = folder / "cache"
    (cache / "wheels").parent.mkdir()
    (cache / "wheels").symlink_to(wheel_folder())
    verb(space, "lock", name, "--complete")
    built = json.loads(verb(space, "build", name, "--complete", "--json"))
    for form in ("script", "dockerfile"):
        verb(space, "export", name, "--as", form)
    (platform,) = STAND_INS[name].spec(None).platforms
    return space, str(made.digest), built["digest"], str(platform)


@pytest.fixture(scope="module", params=list(STAND_INS))
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    name = request.param
    space, base, built, platform = prepare(name, folder)
    lock = json.loads((space / "manifests" / name / "target.lock.json").read_bytes())
    (inputs,) = lock["inputs"]["platforms"].values()
    paths = tuple(sorted({item["path"] for item in [*inputs["artefacts"], *inputs["changes"]]}))
    (space / "paths.json").write_text(json.dumps(paths))
    with Podman(folder) as engine:
        image = engine.pull(space / "build" / name, built, platform)
        pristine = engine.pull(space / "build" / "bases" / name, base, platform)
        yield Stage(name, space, platform, engine, pristine, image, paths)
    shutil.rmtree(folder, ignore_errors=True)


def test_the_script_makes_the_pristine_container_what_the_image_is(stage: Stage) -> None:
    """Applies it, looks again, applies it again, and compares every path with a container of the built image."""
    script = f"/stage/build/export/{stage.name}.py"
    looked = stage.engine.run(stage.base, PYTHON, script, "--check", options=stage.mounts)
    assert looked.returncode == 1, looked.stderr
    assert "imports it from" in looked.stderr
    name = f"patched-{stage.name}"
    program = (
        "import json,subprocess,sys\n"
        f"out = [subprocess.run([{PYTHON!r}, {script!r}, '--wheels', '/wheels', *more], stdout=subprocess.PIPE)"
        " for more in ([], ['--check'], [])]\n"
        "print([[done.returncode, done.stdout.decode()] for done in out], flush=True)\n"
    )
    done = stage.engine.run(stage.base, PYTHON, "-c", program, name=name, options=stage.mounts)
    assert done.stdout.strip() == str([[0, stage.content_id + "\n"]] * 3), done.stderr
    stage.engine.call("commit", "--quiet", name, name)
    stage.engine.call("rm", "--force", name, check=False)
    patched, image = stage.hashes(name), stage.hashes(stage.built)
    assert patched == image
    assert sum(value is not None for value in image.values()) >= 4


def test_the_built_image_imports_the_patched_module_default_off(stage: Stage) -> None:
    switch = SWITCHES.get(stage.name)
    if switch is None:
        # no module of vllm is patched there: Python finds what the wheels brought, beside vllm as it was
        done = stage.engine.run(stage.built, PYTHON, "-c", VERSIONS, options=stage.mounts)
        assert done.stdout.split() == ["1.6.1", "1.6.1", "0.33.0", "True"], done.stderr
        return
    for value, shown in ((None, "False"), ("0", "False"), ("1", "True")):
        options = () if value is None else (f"--env={switch}={value}",)
        done = stage.engine.run(stage.built, PYTHON, "-c", IMPORT, switch, options=options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [f"{SITE}/vllm/envs.py", shown]
    plain = stage.engine.run(stage.base, PYTHON, "-c", IMPORT, switch)
    assert plain.returncode != 0
    assert switch in plain.stderr


def test_the_script_refuses_a_container_that_somebody_changed(stage: Stage) -> None:
    path = f"{SITE}/vllm/envs.py" if stage.name in SWITCHES else f"{SITE}/dynamo/_core.abi3.so"
    script = f"/stage/build/export/{stage.name}.py"
    program = (
        f"import os; os.makedirs(os.path.dirname({path!r}), exist_ok=True); open({path!r}, 'a').write('# mine\\n'); "
        f"os.execv({PYTHON!r}, [{PYTHON!r}, {script!r}])"
    )
    done = stage.engine.run(stage.base, PYTHON, "-c", program, options=stage.mounts)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was written" in done.stderr
    # a PYTHONPATH with another vllm on it: that one would be imported
    shadow = "mkdir -p /tmp/x/vllm && touch /tmp/x/vllm/__init__.py && PYTHONPATH=/tmp/x exec " + f"{PYTHON} {script}"
    done = stage.engine.run(stage.base, "/bin/sh", "-c", shadow, options=stage.mounts)
    assert done.returncode in (1, 127)
    assert done.returncode == 127 or "would import vllm from /tmp/x/vllm" in done.stderr


def test_the_dockerfile_builds_the_same_files(stage: Stage) -> None:
    dockerfile = stage.space / "build" / "export" / f"{stage.name}.Dockerfile"
    empty = stage.space / "empty"
    empty.mkdir()
    words = ["build", "--quiet", "--isolation=chroot", f"--build-arg=BASE={stage.base}", "--tag=made", "--file"]
    done = stage.engine.call(*words, str(dockerfile), str(empty), check=False)
    if stage.name not in SWITCHES:
        assert done.returncode != 0, "the build fetches wheels by pip, which this root does not have"
        assert "could not be fetched" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert stage.hashes("made") == stage.hashes(stage.built)
