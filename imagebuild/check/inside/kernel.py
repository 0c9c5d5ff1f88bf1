"""One bf16 matrix product on each accelerator against the CPU, and one all-reduce over all of them.

`kernel.py RANK RANKS FOLDER BACKEND` is one process of the all-reduce.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

try:
    import torch
except ImportError as problem:
    torch = None
    WHY = str(problem)
else:
    WHY = ""

SIZE = 512
ELEMENTS = 1 << 20
TOLERANCE = 1e-2
"""Relative error of a bf16 product whose sums are kept in float32: bf16 has 8 bits, so rounding once gives 2**-9."""


def product(number: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(number)
    left = torch.randn(SIZE, SIZE, generator=generator).to(torch.bfloat16)
    right = torch.randn(SIZE, SIZE, generator=generator).to(torch.bfloat16)
    reference = left.double() @ right.double()
    device = torch.device("cuda", number)
    found = (left.to(device) @ right.to(device)).cpu().double()
    if not bool(torch.isfinite(found).all()):
        return {"error": None, "finite": False}
    return {"error": float((found - reference).norm() / reference.norm()), "finite": True}


def rank_of(rank: int, ranks: int, folder: str, backend: str) -> None:
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    values = torch.full((ELEMENTS,), float(rank + 1), dtype=torch.float32, device=device)
    values += torch.arange(ELEMENTS, device=device, dtype=torch.float32) % 7
    dist.all_reduce(values)
    expected = torch.arange(ELEMENTS, dtype=torch.float32) % 7 * ranks + ranks * (ranks + 1) / 2
    same = bool(torch.equal(values.cpu(), expected))
    with open(f"{folder}/{rank}.json", "w", encoding="utf-8") as stream:
        json.dump({"same": same}, stream)
    dist.destroy_process_group()


def reduction(ranks: int, backend: str, deadline: float) -> dict[str, Any]:
    """The ranks' answers; a rank that hangs is named."""
    ends = time.monotonic() + deadline
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(os.environ["IMAGEBUILD_IN"], "kernel.py")
        logs = [open(f"{folder}/{rank}.log", "wb") for rank in range(ranks)]
        children = [
            subprocess.Popen(
                [sys.executable, "-B", program, str(rank), str(ranks), folder, backend],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            for rank, log in enumerate(logs)
        ]
        hung = []
        for rank, child in enumerate(children):
            try:
                child.wait(max(0.1, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                hung.append(rank)
        for child in children:
            child.kill()
        for log in logs:
            log.close()
        out: dict[str, Any] = {"ranks": ranks, "backend": backend, "hung": hung, "same": [], "errors": {}}
        for rank in range(ranks):
            try:
                with open(f"{folder}/{rank}.json", encoding="utf-8") as stream:
                    out["same"].append(json.load(stream)["same"])
            except (OSError, ValueError):
                with open(f"{folder}/{rank}.log", encoding="utf-8", errors="replace") as stream:
                    out["errors"][str(rank)] = stream.read()[-3000:]
    return out


def main() -> int:
    if len(sys.argv) == 5:
        rank_of(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
        return 0
    with open(os.path.join(os.environ["IMAGEBUILD_IN"], "request.json"), encoding="utf-8") as stream:
        request = json.load(stream)
    place = os.environ["IMAGEBUILD_ANSWER"]
    answer: dict[str, Any] = {"torch": getattr(torch, "__version__", None), "why": WHY, "tolerance": TOLERANCE}

    def tell() -> None:
        with open(place + ".part", "w", encoding="utf-8") as stream:
            json.dump(answer, stream, indent=1, sort_keys=True)
        os.replace(place + ".part", place)

    if torch is None:
        tell()
        return 0
    answer["built_for"] = torch.version.cuda or torch.version.hip
    try:
        answer["available"] = bool(torch.cuda.is_available())
        count = torch.cuda.device_count()
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"[-3000:]
        tell()
        return 0
    answer["devices"] = count
    tell()
    if not answer["available"] or not count:
        return 0
    answer["products"] = []
    for number in range(count):
        try:
            answer["products"].append({"device": torch.cuda.get_device_name(number), **product(number)})
        except Exception as error:
            answer["products"].append({"failure": f"{type(error).__name__}: {error}"[-3000:]})
        tell()
    answer["reduction"] = reduction(count, "nccl", max(10.0, request["deadline"] * 0.6))
    tell()
    return 0


if __name__ == "__main__":
    sys.exit(main())
