"""A patched image with a real Python in real containers: steps 1 to 3 under each runner, and a patch that does not run is caught."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from container_engine import Podman
from real_engine import RealEngine
from tools import missing, root

from imagebuild.build.base_documents import load_base
from imagebuild.build.contents import Contents
from imagebuild.check.images import checked_image
from imagebuild.check.runner import Mount, Runner
from imagebuild.check.runners import open_runner
from imagebuild.check.smoke import SmokeRequest, SmokeResult, run_smoke, step_python
from imagebuild.check.verdicts import Verdict
from imagebuild.content.store import CompressedStore, ContentStore
from imagebuild.errors import ImagebuildError
from imagebuild.oci.layout import LayoutSource
from imagebuild.oci.platform import Platform
from imagebuild.target.lock import load_lock
from imagebuild.target.workspace import Workspace
from imagebuild.testing.real_root import debian_root
from imagebuild.testing.smoke_engine import DECODE, PACKAGE, smoke_base, smoke_workspace

pytestmark = [pytest.mark.integration, pytest.mark.slow(100)]

AMD64 = Platform("linux", "amd64")
SITE = "/usr/local/lib/python3.11/dist-packages"
USER_SITE = "/root/.local/lib/python3.11/site-packages"
RUNNERS = ("oci", "podman", "docker")


@dataclass(frozen=True)
class Patched:
    """The workspace, locked and built."""

    space: Path
    base: Path
    base_digest: Any
    cache: Path

    def request(self, steps: tuple[str, ...], **changes: Any) -> SmokeRequest:
        space = Workspace.find(self.space)
        target = space.target("tuned")
        lock = load_lock(space.lock_path("tuned"))
        base = LayoutSource(self.base)
        contents = Contents(CompressedStore(space.content_path("tuned")), ContentStore(self.cache / "content"))
        image = checked_image(LayoutSource(self.space / "build" / "tuned"), lock.result.digest, AMD64, base=base)
        unpatched = checked_image(base, self.base_digest, AMD64)
        documents = load_base(lock.inputs, contents, lambda: base)
        return SmokeRequest(target, space.series(target), lock, image, unpatched, documents, steps, **changes)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Patched:
    root()
    folder = tmp_path_factory.mktemp("smoke")
    try:
        base = smoke_base(folder / "base", debian_root())
    except ImagebuildError as error:
        missing(str(error))
    space = smoke_workspace(folder / "space", base.reference)
    for verb in ("lock", "build"):
        command = [sys.executable, "-m", "imagebuild", verb, "tuned", "-C", str(space.root)]
        done = subprocess.run([*command, "--cache", str(folder / "cache")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return Patched(space.root, base.folder, base.digest, folder / "cache")


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    name = str(request.param)
    with ExitStack() as stack:
        if name == "podman":
            folder = Path(tempfile.mkdtemp(prefix="smoke-podman-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            podman = stack.enter_context(Podman(folder))
            made = open_runner(name, scratch=tmp_path_factory.mktemp("scratch"), options=podman.base[1:])
        elif name == "docker":
            engine = stack.enter_context(RealEngine())
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("DOCKER_HOST", engine.host)
            made = open_runner(name)
        else:
            made = open_runner(name, scratch=tmp_path_factory.mktemp("scratch"))
        reason = made.available()
        if reason is not None:
            missing(f"{name}: {reason}")
        stack.callback(made.close)
        yield made


def verdicts(result: SmokeResult) -> dict[str, str]:
    return {one.step: f"{one.verdict}" for one in result.steps}


def test_the_patched_code_is_what_runs(patched: Patched, runner: Runner) -> None:
    result = run_smoke(patched.request(("files", "python", "switch")), runner)
    assert verdicts(result) == dict.fromkeys(("files", "python", "switch"), "passed"), result.judgement
    assert result.runner == runner.name
    assert result.hardware["cpu"] == "x86_64"


def other_package(folder: Path) -> Path:
    for name, data in PACKAGE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def hook(folder: Path) -> tuple[tuple[Mount, ...], dict[str, str], str]:
    """An editable install: a .pth file that registers a finder, which sends the package to its source tree."""
    source = other_package(folder / "src")
    site = folder / "site"
    site.mkdir()
    (site / "__editable___engine_finder.py").write_text(
        "import importlib.util, sys\n"
        "class EditableFinder:\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        if name == 'engine':\n"
        "            return importlib.util.spec_from_file_location(name, '/workspace/src/engine/__init__.py',\n"
        "                submodule_search_locations=['/workspace/src/engine'])\n"
        "def install():\n"
        "    sys.meta_path.insert(0, EditableFinder)\n"
    )
    (site / "__editable__.engine.pth").write_text(
        "import __editable___engine_finder; __editable___engine_finder.install()\n"
    )
    mounts = (Mount(source, "/workspace/src"), Mount(site, "/usr/lib/python3/dist-packages"))
    return mounts, {}, "imports engine.decode from /workspace/src/engine/decode.py, and the patch is at"


def stale(folder: Path) -> tuple[tuple[Mount, ...], dict[str, str], str]:
    """Bytecode of the base's source that is never held against the source beside it (PEP 552, unchecked hash)."""
    program = shutil.which("python3.11", path="/usr/bin") or sys.executable
    (folder / "decode.py").write_bytes(DECODE)
    cached = folder / "cache" / "decode.cpython-311.pyc"
    cached.parent.mkdir()
    code = "import py_compile,sys;py_compile.compile(sys.argv[1],sys.argv[2],invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
    subprocess.run([program, "-c", code, str(folder / "decode.py"), str(cached)], check=True)
    if cached.read_bytes()[:4] != (3495).to_bytes(2, "little") + b"\r\n":
        missing("no Python 3.11 makes the bytecode")
    mounts = (Mount(cached.parent, f"{SITE}/engine/__pycache__"),)
    return mounts, {}, "decode.cpython-311.pyc runs instead of the patched source of engine.decode"


def user_site(folder: Path) -> tuple[tuple[Mount, ...], dict[str, str], str]:
    """Another site folder, earlier on the path than the one with the patch."""
    mounts = (Mount(other_package(folder / "user"), USER_SITE),)
    return mounts, {"HOME": "/root"}, f"imports engine.decode from {USER_SITE}/engine/decode.py, and the patch is at"


def python_path(folder: Path) -> tuple[tuple[Mount, ...], dict[str, str], str]:
    mounts = (Mount(other_package(folder / "more"), "/opt/more"),)
    return mounts, {"PYTHONPATH": "/opt/more"}, "from /opt/more/engine/decode.py"


def working_folder(folder: Path) -> tuple[tuple[Mount, ...], dict[str, str], str]:
    """The folder in which the engine starts: `python -m` looks there first, a console script does not."""
    return (Mount(other_package(folder / "srv"), "/srv"),), {}, "started as python -m, from the image's working folder"


INERT = {
    "import hook": hook,
    "stale bytecode": stale,
    "site folder": user_site,
    "PYTHONPATH": python_path,
    "folder": working_folder,
}


@pytest.mark.parametrize("way", INERT)
def test_a_patch_that_does_not_run_is_caught(
    patched: Patched, runner: Runner, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what pip says takes longest, and nothing here depends on it
    monkeypatch.setattr(step_python, "pip_archive", lambda: None)
    mounts, environment, words = INERT[way](tmp_path)
    tmp_path.chmod(0o755)
    result = run_smoke(patched.request(("python",), mounts=mounts, environment=environment), runner)
    assert result.judgement.verdict is Verdict.FAILED, result.judgement
    assert words in result.judgement.reason
    parts = {one.name: one.judgement.verdict for one in result.steps[0].parts}
    # the image is right, and its files are: only what Python makes of it is not
    assert parts["hashes"] is Verdict.PASSED
    assert parts["imported files"] is Verdict.FAILED


def test_the_base_is_no_patched_image(patched: Patched, runner: Runner) -> None:
    """A runner that starts another image than it was asked for is found out from inside."""
    request = patched.request(("python",))

    class Confused:
        name = runner.name

        def available(self) -> str | None:
            return None

        def run(self, image: Any, job: Any) -> Any:
            assert request.base is not None
            return runner.run(request.base, job)

    result = run_smoke(request, Confused())  # type: ignore[arg-type]
    assert result.judgement.verdict is Verdict.INVALID
    assert "it did not run in the image" in result.judgement.reason


@pytest.mark.parametrize("runner", ["oci"], indirect=True)
def test_the_engine_is_served_and_compared_inside_one_container(patched: Patched, runner: Runner) -> None:
    result = run_smoke(patched.request(("engine", "parity", "overlay")), runner)
    assert verdicts(result) == dict.fromkeys(("engine", "parity", "overlay"), "passed"), result.judgement
    logs = [name for name in result.steps[0].outputs if "server-" in name]
    assert set(logs) == {f"engine/server-{arm}.log" for arm in ("off", "on", "off-again")}
