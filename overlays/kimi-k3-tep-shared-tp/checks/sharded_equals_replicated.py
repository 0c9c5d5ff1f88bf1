"""Compares the sharded shared expert with the replicated one, over groups of real processes.

    python checks/sharded_equals_replicated.py [--ranks 1,2,4,8] [--backend gloo|nccl] [--rows 0,1,3,...]

Every rank runs the overlay's module on the rows of the group, and the replicated path
on its own rows, both with random weights and inputs drawn afresh (the seed is in the
answer). A case passes when, on every rank,

* the result is within BF16 tolerance of the replicated path and of float64,
* every element given to the all-reduce is finite and its padding rows are zero,
  although every buffer that torch allocates is filled with NaN first and the routed
  rows of padding are NaN,
* there is exactly one all-reduce (none for a step without rows), and the ranks agree
  bit by bit.

The controls break the module on purpose; each has to be noticed. One JSON document on
stdout. Exit status: 0 passed, 1 failed, 2 wrong arguments, 3 could not be run here.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import multiprocessing
import os
import secrets
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
except ImportError:
    torch = None  # type: ignore[assignment]

MODULE = Path(__file__).resolve().parents[1] / "files" / "tep_shared_tp.py"
TOLERANCE = 1e-2
BETA, LINEAR_BETA = 4.0, 25.0  # SiTU of the Kimi-K3 configuration


def load_module() -> Any:
    spec = importlib.util.spec_from_file_location("tep_shared_tp", MODULE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def situ(x: Any) -> Any:
    """SiTU of ``[rows, 2 * width]`` in float32, or in float64 for float64 input."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    gate, up = wide.chunk(2, dim=-1)
    gated = BETA * torch.tanh(gate / BETA) * torch.sigmoid(gate)
    return (gated * LINEAR_BETA * torch.tanh(up / LINEAR_BETA)).to(x.dtype)


def normalized(x: Any) -> Any:
    """RMS normalisation, as before the up-projection of the routed rows."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def relative_error(found: Any, reference: Any) -> float:
    """Norm of the difference over the norm of the reference; infinite when a value is
    not finite."""
    found, reference = found.double(), reference.double()
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    if reference.numel() == 0:
        return 0.0
    return float((found - reference).norm() / reference.norm())


class Reduction:
    """The group's all-reduce; keeps what it saw of its inputs."""

    def __init__(self, group: Any, rows: int) -> None:
        self.group = group
        self.rows = rows
        self.calls = 0
        self.finite = True
        self.padding_zero = True

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        self.finite &= bool(torch.isfinite(x).all())
        self.padding_zero &= not bool(x[self.rows :].any())
        x = x.clone()
        dist.all_reduce(x, group=self.group)
        return x


def run_case(tep: Any, group: Any, ranks: int, rows: int, options: Any, device: Any, seed: int) -> dict[str, Any]:
    """What this rank finds for one step of ``rows`` rows."""
    rank = dist.get_rank(group)
    hidden, intermediate, latent_size = (
        options.hidden,
        options.intermediate,
        options.latent,
    )
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 1.0) -> Any:
        values = torch.randn(*shape, generator=generator) * scale
        return values.to(torch.bfloat16).to(device)

    gate_up = draw(2 * intermediate, hidden, scale=hidden**-0.5)
    down = draw(hidden, intermediate, scale=intermediate**-0.5)
    up = draw(hidden, latent_size, scale=latent_size**-0.5)
    x, latent = draw(rows, hidden), draw(rows, latent_size)
    chunk = -(-rows // ranks)
    first, last = min(rank * chunk, rows), min((rank + 1) * chunk, rows)

    def routed(own: Any) -> Any:
        # The engine's MoE kernel writes into an uninitialised buffer: what it leaves
        # in padding rows is not ours to read.
        assert tuple(own.shape) == (chunk, hidden)
        out = torch.full((chunk, latent_size), float("nan"), dtype=x.dtype, device=device)
        out[: last - first] = latent[first:last]
        return out

    def add_routed(rows_of_latent: Any, residual: Any) -> Any:
        return residual.addmm_(normalized(rows_of_latent), up.t())

    reduction = Reduction(group, rows)
    found = tep.run_split(
        x,
        tep.shard_of(gate_up, down, rank, ranks),
        rank,
        ranks,
        activation=situ,
        routed=routed,
        add_routed=add_routed,
        all_reduce=reduction,
    )
    own = x[first:last]
    replicated = torch.mm(situ(F.linear(own, gate_up)), down.t())
    if last > first:
        replicated = add_routed(latent[first:last], replicated)
    inner = situ(x.double() @ gate_up.double().t()) @ down.double().t()
    exact = inner + normalized(latent.double()) @ up.double().t()
    leader = found.clone()
    if rows:
        dist.broadcast(leader, dist.get_global_rank(group, 0), group=group)
    errors = {
        "replicated": relative_error(found[first:last], replicated),
        "float64": relative_error(found, exact),
    }
    return {
        "errors": errors,
        "shape": list(found.shape) == [rows, hidden],
        "initialised": reduction.finite and reduction.padding_zero,
        "one_reduction": reduction.calls == (1 if rows else 0),
        # Not-a-number is unequal to itself, so a poisoned result never agrees.
        "ranks_agree": bool(torch.equal(leader, found)),
    }


def passes(found: dict[str, Any]) -> bool:
    facts = ("shape", "initialised", "one_reduction", "ranks_agree")
    close = all(error < TOLERANCE for error in found["errors"].values())
    return close and all(found[fact] for fact in facts)


def break_padding(tep: Any) -> None:
    """Adds what the routed experts return for padding rows."""
    right = tep.row_span

    def wrong(rows: int, rank: int, ranks: int) -> Any:
        span = right(rows, rank, ranks)
        return span._replace(real=span.stop - span.start)

    tep.row_span = wrong


def break_buffer(tep: Any) -> None:
    """Leaves the last column of the partial unwritten."""
    right = tep.shared_partial

    def wrong(x: Any, shard: Any, activation: Any) -> Any:
        partial = right(x, shard, activation)
        out = torch.empty_like(partial)
        out[:, :-1] = partial[:, :-1]
        return out

    tep.shared_partial = wrong


def break_shard(tep: Any) -> None:
    """Gives every rank the first rank's shard."""
    right = tep.shard_of
    tep.shard_of = lambda gate_up, down, rank, ranks: right(gate_up, down, 0, ranks)


CONTROLS = {
    "padding-added": break_padding,
    "buffer-unwritten": break_buffer,
    "shard-repeated": break_shard,
}


def work(rank: int, options: Any, folder: str) -> None:
    """One process: every case of every group that it belongs to."""
    # Fills whatever torch allocates uninitialised with NaN.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    world = max(options.ranks)
    dist.init_process_group(
        options.backend,
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(minutes=5),
    )
    answers = []
    with torch.inference_mode():
        for ranks in options.ranks:
            group = dist.new_group(list(range(ranks)))
            if rank >= ranks:
                continue
            for number, rows in enumerate(options.rows):
                seed = options.seed + 1000 * ranks + number
                answers.append((f"{ranks}/{rows}", run_case(load_module(), group, ranks, rows, options, device, seed)))
            if ranks == world and world > 1:
                for name, damage in CONTROLS.items():
                    tep = load_module()
                    damage(tep)
                    # One row less than a whole chunk for each rank leaves one padding row.
                    found = run_case(tep, group, ranks, 3 * ranks - 1, options, device, options.seed)
                    answers.append((name, found))
    Path(f"{folder}/{rank}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


def merge(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst of what the ranks found."""
    facts = ("shape", "initialised", "one_reduction", "ranks_agree")
    errors = {name: max(one["errors"][name] for one in found) for name in found[0]["errors"]}
    return {"errors": errors, **{fact: all(one[fact] for one in found) for fact in facts}}


def finite(errors: dict[str, float]) -> dict[str, float | str]:
    """JSON knows no infinity."""
    return {name: value if value < float("inf") else "not finite" for name, value in errors.items()}


def check(options: Any) -> dict[str, Any]:
    """Runs the groups and builds the document."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        # Fresh processes, forked from one that has imported torch and done nothing else with it.
        multiprocessing.set_forkserver_preload(["torch"])
        torch.multiprocessing.start_processes(
            work, (options, folder), nprocs=max(options.ranks), start_method="forkserver"
        )
        for rank in range(max(options.ranks)):
            for name, answer in json.loads(Path(f"{folder}/{rank}.json").read_text()):
                found.setdefault(name, []).append(answer)
    cases, controls = [], []
    for name, answers in found.items():
        merged = merge(answers)
        passed = passes(merged)
        shown = {**merged, "errors": finite(merged["errors"])}
        if name in CONTROLS:
            controls.append({"name": name, "noticed": not passed, **shown})
        else:
            ranks, rows = (int(part) for part in name.split("/"))
            cases.append({"ranks": ranks, "rows": rows, "passed": passed, **shown})
    good = all(case["passed"] for case in cases) and all(one["noticed"] for one in controls)
    return {"verdict": "passed" if good else "failed", "cases": cases, "controls": controls}


def arguments(argv: list[str]) -> argparse.Namespace:
    def integers(text: str) -> list[int]:
        return [int(part) for part in text.split(",") if part]

    parser = argparse.ArgumentParser(description="sharded against replicated shared expert")
    parser.add_argument("--ranks", type=integers, default=[1, 2, 4, 8])
    parser.add_argument("--rows", type=integers, default=[0, 1, 2, 3, 5, 7, 8, 13, 33, 64])
    parser.add_argument("--backend", choices=["gloo", "nccl"], help="default: nccl where a GPU is, else gloo")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--latent", type=int, default=128)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    document: dict[str, Any] = {
        "kind": "overlay-check",
        "schemaVersion": 1,
        "name": "sharded-equals-replicated",
        "module_sha256": hashlib.sha256(MODULE.read_bytes()).hexdigest(),
    }
    if torch is None:
        document |= {"verdict": "not-run", "reason": "torch is not installed"}
    else:
        options.backend = options.backend or ("nccl" if torch.cuda.is_available() else "gloo")
        devices = torch.cuda.device_count() if options.backend == "nccl" else max(options.ranks)
        left_out = [ranks for ranks in options.ranks if ranks > devices]
        options.ranks = sorted(ranks for ranks in options.ranks if ranks <= devices)
        document |= {
            "backend": options.backend,
            "torch": torch.__version__,
            "seed": options.seed,
            "tolerance": TOLERANCE,
            "not_run": [{"ranks": ranks, "reason": f"the machine has {devices} GPUs"} for ranks in left_out],
        }
        if options.ranks:
            # Deterministic cuBLAS, which the NaN filling asks for; inherited by the workers.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            document |= check(options)
        else:
            document |= {"verdict": "not-run", "reason": f"the machine has {devices} GPUs"}
    print(json.dumps(document, indent=1, sort_keys=True))
    return {"passed": 0, "failed": 1}.get(document["verdict"], 3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
