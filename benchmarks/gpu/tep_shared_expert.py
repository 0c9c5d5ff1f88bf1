"""The shared expert of one MoE layer, replicated against sharded over the tensor-parallel group.

Replicated: every rank owns a slice of the rows and streams the whole shared expert. Sharded: every rank holds the rows
of the group and streams its share of the shared expert. The arithmetic of the sharded arm is the overlay's own module,
loaded from `overlays/kimi-k3-tep-shared-tp/files/tep_shared_tp.py`; the routed experts are not run, their rows are given.

Timed, as the median over replays of a CUDA graph that walks through enough weight sets to leave the L2 cache behind:
  expert  the GEMMs, the activation and the addition of the routed rows, without collectives
  layer   the same with what surrounds it between two attention blocks: reduce-scatter before and all-gather after
          (replicated), one all-reduce before and one after (sharded), all over NCCL

Checked for every size, on fresh random inputs: relative error against a float64 reference on the CPU under 1e-2, with
every buffer of the run poisoned by a run on NaN first, the routed rows of padding NaN, eagerly and as a graph.

    python benchmarks/gpu/tep_shared_expert.py --ranks 1,2 --out result.json

Exit status: 0 every check passed, 1 a check failed, 2 wrong arguments, 3 nothing could be measured here.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from situ import fastest_situ, situ_in_torch
except ImportError:  # the reason is printed by main()
    torch = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "overlays/kimi-k3-tep-shared-tp/files/tep_shared_tp.py"
TIMED_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CHECKED_ROWS = (1, 2, 3, 7, 8, 33, 64, 127, 512)
TOLERANCE = 1e-2
STREAMED_PER_REPLAY = 320 << 20  # bytes; several times the L2 cache of the GPUs of interest


def load_overlay_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tep_shared_tp", MODULE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replicated(x: Any, gate_up: Any, down: Any, situ: Any) -> Any:
    """The shared expert on this rank's rows alone, as the engine runs it."""
    return torch.mm(situ(F.linear(x, gate_up)), down.t())


class Rank:
    """One process of the group: its device, its collectives and its overlay module."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.tep = load_overlay_module()
        self.situ, self.situ_kind = fastest_situ()
        self.device = torch.device("cuda", rank)

    def randn(self, *shape: int, scale: float = 1.0) -> Any:
        """Fresh BF16 values, the same on every rank."""
        values = (torch.randn(*shape, device=self.device) * scale).to(torch.bfloat16)
        if self.ranks > 1:
            dist.broadcast(values, 0)
        return values

    def all_reduce(self, x: Any) -> Any:
        if self.ranks > 1:
            dist.all_reduce(x)
        return x

    def worst(self, value: float) -> float:
        """The largest `value` over the ranks."""
        if self.ranks == 1:
            return value
        cell = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(cell, op=dist.ReduceOp.MAX)
        return float(cell)


def capture(run: Any) -> Any:
    """A CUDA graph of `run`, after warm-up on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph


def median_seconds(me: Rank, run: Any, replays: int) -> float:
    """Median time of a replay of `run`, the slowest rank's."""
    graph = capture(run)
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    if me.ranks > 1:
        dist.barrier(device_ids=[me.rank])
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for start, stop in marks:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return me.worst(statistics.median(start.elapsed_time(stop) for start, stop in marks) * 1e-3)


def relative_error(found: Any, reference: Any) -> float:
    """Norm of the difference over the norm of the reference; infinite where a value is not finite."""
    found = found.double()
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    return float((found - reference).norm() / reference.norm())


def check_rows(me: Rank, hidden: int, intermediate: int, latent_size: int, rows: int) -> dict[str, Any]:
    """Both arms for one number of rows against float64, on fresh inputs and poisoned buffers."""
    tep, rank, ranks = me.tep, me.rank, me.ranks
    gate_up = me.randn(2 * intermediate, hidden, scale=hidden**-0.5)
    down = me.randn(hidden, intermediate, scale=intermediate**-0.5)
    up = me.randn(hidden, latent_size, scale=latent_size**-0.5)
    x, latent = me.randn(rows, hidden), me.randn(rows, latent_size)
    span = tep.row_span(rows, rank, ranks)
    own_latent = torch.full((span.stop - span.start, latent_size), float("nan"), dtype=x.dtype, device=me.device)
    own_latent[: span.real] = latent[span.start : span.start + span.real]

    reference = torch.empty(rows, hidden, dtype=torch.float64, device=me.device)
    if rank == 0:
        wide = [tensor.cpu().double() for tensor in (x, gate_up, down, latent, up)]
        inner = situ_in_torch(wide[0] @ wide[1].t())
        reference.copy_(inner @ wide[2].t() + wide[3] @ wide[4].t())
    if ranks > 1:
        dist.broadcast(reference, 0)

    shard = tep.shard_of(gate_up, down, rank, ranks)
    static_x, sharded_out = x.clone(), torch.full_like(x, float("nan"))
    own_out = torch.full((span.stop - span.start, hidden), float("nan"), dtype=x.dtype, device=me.device)

    def add_routed(rows_of_latent: Any, residual: Any) -> Any:
        return residual.addmm_(rows_of_latent, up.t())

    def run() -> None:
        out = tep.run_split(
            static_x, shard, rank, ranks, activation=me.situ, routed=lambda own: own_latent, add_routed=add_routed,
            all_reduce=me.all_reduce,
        )  # fmt: skip
        sharded_out.copy_(out)
        own = tep.pad_rows(static_x, ranks)[span.start : span.stop]
        own_out.copy_(add_routed(own_latent, replicated(own, gate_up, down, me.situ)))

    errors: dict[str, float] = {}
    graph = capture(run)
    for how, go in (("eager", run), ("graph", graph.replay)):
        static_x.fill_(float("nan"))
        go()  # every buffer of the next run now holds NaN
        poisoned = not bool(torch.isfinite(sharded_out).any())
        static_x.copy_(x)
        go()
        errors[f"sharded_{how}"] = relative_error(sharded_out, reference) if poisoned else float("inf")
        if span.real:
            mine = reference[span.start : span.start + span.real]
            errors[f"replicated_{how}"] = relative_error(own_out[: span.real], mine)
    names = [f"{arm}_{how}" for arm in ("sharded", "replicated") for how in ("eager", "graph")]
    worst = {name: me.worst(errors.get(name, 0.0)) for name in names}
    passed = all(value < TOLERANCE for value in worst.values())
    return {"rows": rows, "relative_error": worst, "passed": passed}


def time_rows(me: Rank, sets: list[tuple[Any, Any]], rows: int, ranks: int, replays: int) -> dict[str, Any]:
    """Median seconds for one layer. With `ranks` above the group's size, one rank of that many, without collectives."""
    tep, real_group = me.tep, ranks == me.ranks
    rank = me.rank if real_group else 0
    hidden = sets[0][0].shape[1]
    x, span = me.randn(rows, hidden), tep.row_span(rows, rank, ranks)
    chunk = span.stop - span.start
    own, routed = tep.pad_rows(x, ranks)[span.start : span.stop].contiguous(), me.randn(chunk, hidden)
    shards = [tep.shard_of(gate_up, down, rank, ranks) for gate_up, down in sets]
    attention = me.randn(chunk * ranks, hidden)
    # Averaged, not summed: `before` is reduced in place again and again and has to stay finite.
    before, scattered, gathered = attention.clone(), torch.empty_like(own), torch.empty_like(attention)

    def split(x_all: Any, shard: Any, all_reduce: Any) -> Any:
        return tep.run_split(
            x_all, shard, rank, ranks, activation=me.situ, routed=lambda own_rows: routed,
            add_routed=lambda rows_of, residual: residual.add_(rows_of), all_reduce=all_reduce,
        )  # fmt: skip

    def expert_replicated() -> None:
        for gate_up, down in sets:
            replicated(own, gate_up, down, me.situ).add_(routed)

    def expert_sharded() -> None:
        for shard in shards:
            split(x, shard, lambda partial: partial)

    def layer_replicated() -> None:
        for gate_up, down in sets:
            dist.reduce_scatter_tensor(scattered, attention, op=dist.ReduceOp.AVG)
            dist.all_gather_into_tensor(gathered, replicated(own, gate_up, down, me.situ).add_(routed))

    def layer_sharded() -> None:
        for shard in shards:
            dist.all_reduce(before, op=dist.ReduceOp.AVG)
            split(x, shard, me.all_reduce)

    timed = {"expert": (expert_replicated, expert_sharded)}
    if real_group and ranks > 1:
        timed["layer"] = (layer_replicated, layer_sharded)
    row: dict[str, Any] = {"rows": rows, "ranks": ranks, "collectives": real_group and ranks > 1}
    for name, arms in timed.items():
        for arm, run in zip(("replicated", "sharded"), arms, strict=True):
            row[f"{name}_{arm}_us"] = round(median_seconds(me, run, replays) / len(sets) * 1e6, 2)
    return row


def copy_bandwidth(device: Any) -> float:
    """Bytes a second of a device-to-device copy of 2 GiB, read and written both counted."""
    source = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3)
    return 2 * source.numel() / statistics.median(times[2:])


def measure(rank: int, ranks: int, options: argparse.Namespace, rendezvous: str, result: str) -> None:
    """The work of one process; rank 0 writes `result`."""
    torch.cuda.set_device(rank)
    torch.manual_seed(int.from_bytes(os.urandom(6), "big"))
    if ranks > 1:
        # The device is bound, so that the communicator is made at once and not inside a timed region.
        where = torch.device("cuda", rank)
        dist.init_process_group("nccl", init_method=rendezvous, rank=rank, world_size=ranks, device_id=where)
    me = Rank(rank, ranks)
    report: dict[str, Any] = {"activation": me.situ_kind, "sizes": []}
    with torch.inference_mode():
        report["copy_bytes_per_second"] = copy_bandwidth(me.device)
        for intermediate in options.intermediate:
            checks = [check_rows(me, options.hidden, intermediate, options.latent, rows) for rows in CHECKED_ROWS]
            whole = 3 * intermediate * options.hidden * 2
            timings = []
            for group in [ranks] + ([size for size in options.one_rank_of if size > ranks] if ranks == 1 else []):
                streamed = whole // group
                count = max(2, -(-STREAMED_PER_REPLAY // streamed))
                sets = [
                    (
                        me.randn(2 * intermediate, options.hidden, scale=options.hidden**-0.5),
                        me.randn(options.hidden, intermediate, scale=intermediate**-0.5),
                    )
                    for _ in range(count)
                ]
                for rows in options.rows:
                    row = time_rows(me, sets, rows, group, options.replays)
                    for arm, size in (("replicated", whole), ("sharded", streamed)):
                        row[f"{arm}_weight_bytes"] = size
                        row[f"{arm}_floor_us"] = round(size / report["copy_bytes_per_second"] * 1e6, 2)
                    timings.append(row)
                del sets
                torch.cuda.empty_cache()
            report["sizes"].append({"intermediate": intermediate, "checks": checks, "timings": timings})
    if rank == 0:
        Path(result).write_text(json.dumps(report))
    if ranks > 1:
        dist.destroy_process_group()


def command_output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()
    except OSError:
        return ""


def describe_machine() -> dict[str, Any]:
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "driver": command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
        "topology": re.sub("\x1b\\[[0-9;]*m", "", command_output("nvidia-smi", "topo", "-m")).split("\n"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
        "nccl_environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


def print_table(report: dict[str, Any]) -> None:
    columns = ("expert_replicated_us", "expert_sharded_us", "layer_replicated_us", "layer_sharded_us")
    heads = ("expert repl", "expert shard", "layer repl", "layer shard", "floor repl", "floor shard")
    print("inter  ranks  rows " + " ".join(f"{head:>12}" for head in heads) + "   (microseconds)")
    for run in report["runs"]:
        for size in run.get("sizes", []):
            for row in size["timings"]:
                cells = [row.get(name) for name in (*columns, "replicated_floor_us", "sharded_floor_us")]
                mark = " " if row["collectives"] or row["ranks"] == 1 else "*"
                line = " ".join(f"{'-' if cell is None else format(cell, '.1f'):>12}" for cell in cells)
                print(f"{size['intermediate']:5}  {row['ranks']:4}{mark} {row['rows']:5} {line}")
    print("* one rank of that many on one GPU, without collectives")


def arguments(argv: list[str]) -> argparse.Namespace:
    def integers(text: str) -> list[int]:
        return [int(part) for part in text.split(",") if part]

    parser = argparse.ArgumentParser(description="replicated against sharded shared expert of one MoE layer")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--intermediate", type=integers, default=[2048, 4096])
    parser.add_argument("--latent", type=int, default=3584, help="width of the routed rows before their up-projection")
    parser.add_argument("--ranks", type=integers, default=[1, 2, 4, 8])
    parser.add_argument(
        "--one-rank-of", type=integers, default=[2, 4, 8], help="groups of which one GPU plays one rank"
    )
    parser.add_argument("--rows", type=integers, default=list(TIMED_ROWS))
    parser.add_argument("--replays", type=int, default=30)
    parser.add_argument("--commit", default="", help="commit of the measured tree, where git cannot tell")
    parser.add_argument("--out", type=Path, help="file of the result; else $OUT/tep-shared-expert.json, else stdout")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    if torch is None or not torch.cuda.is_available():
        print("not run: torch with a CUDA device is needed", file=sys.stderr)
        return 3
    runs: list[dict[str, Any]] = []
    for ranks in options.ranks:
        if ranks > torch.cuda.device_count():
            reason = f"the machine has {torch.cuda.device_count()} GPUs"
            runs.append({"ranks": ranks, "verdict": "not-run", "reason": reason})
            continue
        with tempfile.TemporaryDirectory() as folder:
            result, rendezvous = f"{folder}/result.json", f"file://{folder}/rendezvous"
            torch.multiprocessing.spawn(measure, (ranks, options, rendezvous, result), nprocs=ranks)
            report = json.loads(Path(result).read_text())
        passed = all(check["passed"] for size in report["sizes"] for check in size["checks"])
        runs.append({"ranks": ranks, "verdict": "passed" if passed else "failed", **report})
    failed = any(run["verdict"] == "failed" for run in runs)
    document = {
        "kind": "gpu-benchmark",
        "schemaVersion": 1,
        "name": "tep-shared-expert",
        "verdict": "failed" if failed else "passed",
        "commit": options.commit or command_output("git", "rev-parse", "HEAD"),
        "module_sha256": hashlib.sha256(MODULE.read_bytes()).hexdigest(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "tolerance": TOLERANCE,
        "hidden": options.hidden,
        "latent": options.latent,
        "replays": options.replays,
        "runs": runs,
    }
    text = json.dumps(document, indent=1, sort_keys=True)
    target = options.out or (Path(os.environ["OUT"]) / "tep-shared-expert.json" if os.environ.get("OUT") else None)
    if target is None:
        print(text)
    else:
        target.write_text(text + "\n")
    print_table(document)
    print(
        f"checks: {document['verdict']}; runs: " + ", ".join(f"{run['ranks']} ranks {run['verdict']}" for run in runs)
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
