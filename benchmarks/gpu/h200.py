"""The smoke test and the GSM8K arms of `h200-vllm` on a machine with H200s that nothing else reaches.

    python benchmarks/gpu/h200.py prepare --carried DIR      runtime, image, model, site; needs what carry.py brought
    python benchmarks/gpu/h200.py smoke   --carried DIR --out DIR [--runner oci]
    python benchmarks/gpu/h200.py gsm8k   --carried DIR --out DIR [--arms base,off,on] [--gpu 0]
    python benchmarks/gpu/h200.py judge   --carried DIR --out DIR

`--carried` holds base/, tools (imagebuild's requirements and lm-eval), oci/ (runc, crun), data/ (GSM8K) and model/ (a GGUF file).
The image comes from the committed lock and is verified against it, so what runs here is what was built elsewhere.
The image holds vLLM and its requirements; the machine's Python 3.12 with torch, C compiler and CUDA are bound in.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = "h200-vllm"
MODEL = "google/gemma-3-270m"
BOUND = (
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/include",
    "/usr/libexec",
    "/usr/local/cuda",
    "/opt/torch",
)
"""Folders of the machine that the containers see: programs and libraries of the distribution, the CUDA toolkit, torch."""
TORCH = "/opt/torch/.venv/lib/python3.12/site-packages"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def tell(text: str) -> None:
    print(f"== {text}", flush=True)


def environment(options: argparse.Namespace) -> dict[str, str]:
    out = dict(os.environ)
    out["PYTHONPATH"] = f"{options.carried / 'site_tool'}:{ROOT}"
    out["XDG_CACHE_HOME"] = str(options.carried / "cache")
    out["IMAGEBUILD_DRIVER_LIBRARIES"] = driver_folder()
    return out


def driver_folder() -> str:
    found = [str(path.parent) for path in sorted(Path("/usr/local/nvidia").rglob("libcuda.so.1"))]
    return found[0] if found else "/usr/local/nvidia/lib64"


def imagebuild(options: argparse.Namespace, *words: str, log: Path | None = None) -> int:
    """Runs a verb; its answer goes to `log` and to the terminal."""
    tell("imagebuild " + " ".join(words))
    command = [sys.executable, "-m", "imagebuild", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(options), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = done.stdout.decode("utf-8", "replace")
    print(text[-6000:], flush=True)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text)
    tell(f"exit {done.returncode}")
    return done.returncode


def prepare(options: argparse.Namespace) -> int:
    carried = options.carried
    if not (carried / "site_tool").is_dir():
        with tarfile.open(carried / "tools.tar") as archive:
            archive.extractall(carried, filter="data")
    for name in ("runc", "crun"):
        if shutil.which(name) is None and (carried / "oci" / name).is_file():
            shutil.copy(carried / "oci" / name, "/usr/local/bin")
    # only what the machine lacks: its own libraries stay
    for library in sorted((carried / "oci" / "lib").glob("*")):
        if not list(Path("/usr/lib").glob(f"*/{library.name}")):
            shutil.copy(library, LIBRARIES)
    base = ROOT / "build" / "bases" / TARGET
    if not base.is_dir():
        base.parent.mkdir(parents=True, exist_ok=True)
        base.symlink_to((carried / "base" / TARGET).resolve())
    write_sites(options)
    code = imagebuild(options, "build", TARGET, log=options.out / "build.txt")
    return code or imagebuild(
        options, "verify", f"oci:build/{TARGET}", "--target", TARGET, log=options.out / "verify.txt"
    )


def write_sites(options: argparse.Namespace) -> None:
    """One site with every accelerator and one for each of the first two, in JSON, which is YAML."""
    mounts = [f"{Path(path).resolve()}:{path}:ro" for path in BOUND if Path(path).is_dir()]
    env = {"CC": "/usr/bin/gcc", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "NCCL_NVLS_ENABLE": "0"}
    if sys.base_prefix != "/usr":
        # another Python than the distribution's: it comes along, and is told where the image's packages are
        programs = options.carried / "programs"
        programs.mkdir(exist_ok=True)
        if not (programs / "python3").is_symlink():
            (programs / "python3").symlink_to(Path(sys.executable).resolve())
        mounts += [f"{sys.base_prefix}:{sys.base_prefix}:ro", f"{programs}:/usr/local/sbin:ro"]
        env["PYTHONPATH"] = f"/usr/local/lib/python3.12/dist-packages:{TORCH}"
    common = {
        "runner": "oci",
        "mounts": mounts,
        "models": {MODEL: str(options.carried / "gemma-3-270m")},
        "time_limit": "30m",
    }
    env["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    env["TRITON_LIBCUDA_PATH"] = (
        "/usr/local/nvidia/lib64"  # else Triton asks ldconfig, and the image has no cache of it
    )
    env["IMAGEBUILD_DRIVER_LIBRARIES"] = driver_folder()
    sites = {"h200": {**common, "scratch": str(options.carried / "scratch"), "env": env}}
    for number in (0, 1):
        one = {**env, "CUDA_VISIBLE_DEVICES": str(number)}
        sites[f"h200-{number}"] = {**common, "scratch": str(options.carried / f"scratch-{number}"), "env": one}
    (ROOT / "sites.yaml").write_text(json.dumps({"schema": 1, "sites": sites}, indent=1) + "\n")


def model(options: argparse.Namespace) -> int:
    env = {**os.environ, "PYTHONPATH": str(options.carried / "site_eval"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "benchmarks/gpu/gguf_model.py")]
    command += [str(options.carried / "model/gemma3.gguf"), str(options.carried / "gemma-3-270m")]
    return subprocess.run(command, env=env, check=False).returncode


def smoke(options: argparse.Namespace) -> int:
    folder = options.out / f"smoke-{options.runner}"
    code = imagebuild(
        options, "smoke", TARGET, "--site", "h200", "--runner", options.runner, "--output", str(folder),
        *options.more, log=options.out / f"smoke-{options.runner}.txt",
    )  # fmt: skip
    packed(folder)
    return code


def gsm8k(options: argparse.Namespace) -> int:
    wrapper = options.carried / "eval-python"
    wrapper.write_text(f'#!/bin/sh\nexport PYTHONPATH={options.carried / "site_eval"}\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    words = ["gsm8k", "run", TARGET, "--data", str(options.carried / "data"), "--site", f"h200-{options.gpu}"]
    words += ["--runner", options.runner, "--completions", "--eval-python", str(wrapper)]
    words += ["--output", str(options.out / "gsm8k"), "--hardware", options.hardware, *options.more]
    for arm in options.arms.split(","):
        words += ["--arm", arm]
    return imagebuild(options, *words, log=options.out / f"gsm8k-{options.arms.replace(',', '-')}.txt")


def judge(options: argparse.Namespace) -> int:
    folder = options.out / "gsm8k"
    for one in ("base-again", "off", "on"):
        arguments = ("gsm8k", "compare", str(folder / one), str(folder / "base"), "--margin", "1.0", "--json")
        imagebuild(options, *arguments, log=options.out / f"compare-{one}.json")
    return imagebuild(options, "gsm8k", "gate", TARGET, "--runs", str(folder), "--json", log=options.out / "gate.json")


def packed(folder: Path) -> None:
    if folder.is_dir():
        with tarfile.open(folder.with_name(folder.name + ".tar.xz"), "w:xz") as archive:
            archive.add(folder, folder.name)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="smoke test and GSM8K arms of h200-vllm")
    parser.add_argument("what", choices=("prepare", "model", "smoke", "gsm8k", "judge"))
    parser.add_argument("--carried", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runner", default="oci")
    parser.add_argument("--arms", default="base,off,on")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--hardware", default="NVIDIA H200")
    options, options.more = parser.parse_known_args(argv)
    options.carried, options.out = options.carried.resolve(), options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    return {"prepare": prepare, "model": model, "smoke": smoke, "gsm8k": gsm8k, "judge": judge}[options.what](options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
