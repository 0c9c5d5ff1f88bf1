"""The patched model file itself: its own step, layer, MoE and MLP code, over a group of threads with stand-ins for the
kernels around it.  What the split step must give is what the unpatched file gives; what it must not touch stays as it
was, collective by collective and bit by bit."""

from __future__ import annotations
import __future__

import ast
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from imagebuild.overlay.patch_apply import apply_patch
from imagebuild.overlay.patch_parse import parse_patch

torch = pytest.importorskip("torch", reason="torch is not installed")

MODEL = "vllm/models/kimi_k3/nvidia/model.py"
SEQUENCE_PARALLEL = "vllm/models/common/ops/sequence_parallel.py"
HIDDEN, INTERMEDIATE, LATENT, LAYERS = 64, 128, 32, 3
ANNOTATIONS = __future__.annotations.compiler_flag
ROW_OPERATIONS = ("sp_all_gather", "sp_reduce_scatter", "sp_shard", "sp_padding_mask")
METHODS = {
    "KimiMLP": ["forward"],
    "KimiRoutedOutputTransform": ["forward"],
    "KimiMoE": ["forward"],
    "KimiDecoderLayer": ["_run_self_attn", "_pre_attn_norm", "_post_attn_norm", "forward"],
    "KimiLinearModel": ["_capture_aux_hidden_stream", "_aux_attn_res_stream", "forward"],
}


class Group:
    """Collectives among threads, in step; `log` has what rank 0 called, and on how many rows."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.barrier = threading.Barrier(ranks, timeout=60)
        self.slots: list[Any] = [None] * ranks
        self.log: list[tuple[str, int]] = []
        self.finite = True

    def exchange(self, name: str, rank: int, x: Any) -> list[Any]:
        if rank == 0:
            self.log.append((name, x.shape[0]))
        self.slots[rank] = x.clone()
        self.barrier.wait()
        everyone = list(self.slots)
        self.barrier.wait()
        return everyone

    def all_reduce(self, rank: int, x: Any) -> Any:
        parts = self.exchange("all-reduce", rank, x)
        self.finite &= all(bool(torch.isfinite(part).all()) for part in parts)
        return torch.stack(parts).float().sum(0).to(x.dtype)

    def all_gather(self, rank: int, x: Any) -> Any:
        return torch.cat(self.exchange("all-gather", rank, x))

    def reduce_scatter(self, rank: int, x: Any) -> Any:
        total = torch.stack(self.exchange("reduce-scatter", rank, x)).float().sum(0).to(x.dtype)
        return total.chunk(self.ranks)[rank]


class Unquantized:
    pass


class Projection:
    """An unquantised linear layer, as the engine's code sees it."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight
        self.quant_method = Unquantized()

    def __call__(self, x: Any) -> tuple[Any, None]:
        return x @ self.weight.t(), None


def rms_norm(x: Any, residual: Any = None) -> Any:
    if residual is not None:
        x = residual = x + residual
    wide = x.float()
    normed = (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)
    return normed if residual is None else (normed, residual)


def attn_res(
    prefix: Any, delta: Any, blocks: Any, *weights: Any, num_blocks: int, block_write_idx: int, **_: Any
) -> Any:
    """A row-wise stand-in that, like the kernel, adds to the prefix in place and writes a block."""
    if delta is not None:
        prefix.add_(delta)
    if block_write_idx >= 0:
        blocks[:, block_write_idx] = prefix
    return rms_norm(prefix + blocks[:, :num_blocks].sum(1).to(prefix.dtype))


def silu_and_mul(x: Any) -> Any:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def compile_methods(source: bytes) -> list[Any]:
    """Code that makes classes with nothing but the METHODS of the model file `source`."""
    codes = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name in METHODS:
            wanted = METHODS[node.name]
            node.body = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name in wanted]
            node.bases, node.decorator_list = [], []
            codes.append(compile(ast.Module([node], []), MODEL, "exec", ANNOTATIONS, dont_inherit=True))
    assert len(codes) == len(METHODS)
    return codes


def compile_row_operations(source: bytes) -> Any:
    """Code of the engine's own sharding and padding of rows."""
    body = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name in ROW_OPERATIONS]
    return compile(ast.Module(body, []), SEQUENCE_PARALLEL, "exec")


def row_operations(code: Any, group: Group, rank: int) -> dict[str, Any]:
    """The engine's own sharding and padding of rows, over `group`."""
    scope: dict[str, Any] = {
        "torch": torch,
        "get_tensor_model_parallel_rank": lambda: rank,
        "get_tensor_model_parallel_world_size": lambda: group.ranks,
        "tensor_model_parallel_all_gather": lambda x, dim: group.all_gather(rank, x),
        "tensor_model_parallel_reduce_scatter": lambda x, dim: group.reduce_scatter(rank, x),
        "_custom_collective": lambda name, x: None,
    }
    exec(code, scope)
    return {name: scope[name] for name in ROW_OPERATIONS}


class Step:
    """One model over a group of threads; `source` is the model file that gives its code."""

    def __init__(self, source: bytes, sequence_parallel: bytes, ranks: int, attn_res: bool, aux: set[int]) -> None:
        # Compiled before the threads start: Python's parser is not for several at once.
        self.methods, self.row_operations = compile_methods(source), compile_row_operations(sequence_parallel)
        self.ranks, self.use_attn_res, self.aux = ranks, attn_res, aux
        generator = torch.Generator().manual_seed(11)

        def draw(*shape: int) -> Any:
            return (torch.randn(*shape, generator=generator) * shape[-1] ** -0.5).bfloat16()

        self.weights = [
            SimpleNamespace(
                attention=[draw(HIDDEN, HIDDEN) for _ in range(ranks)],
                gate_up=draw(2 * INTERMEDIATE, HIDDEN),
                down=draw(HIDDEN, INTERMEDIATE),
                latent=draw(LATENT, HIDDEN),
                up=draw(HIDDEN, LATENT),
            )
            for _ in range(LAYERS)
        ]

    def run(self, x: Any, context: Any, make_split: Callable[[Group, int], Any] | None) -> tuple[Any, Group]:
        """Rank 0's answer, after checking that every rank has the same, and the group with its log."""
        group = Group(self.ranks)
        answers: list[Any] = [None] * self.ranks
        faults: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                with torch.inference_mode():
                    model = self.model(group, rank, SimpleNamespace(**vars(context)))
                    if make_split is not None:
                        model.decode_split = make_split(group, rank)
                    answers[rank] = model.forward(None, torch.arange(x.shape[0]), None, inputs_embeds=x.clone())
            except BaseException as fault:
                faults.append(fault)
                group.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for fault in faults:
            if not isinstance(fault, threading.BrokenBarrierError):
                raise fault
        assert not faults
        flat = [torch.cat([a[0], *a[1]], dim=1) if isinstance(a, tuple) else a for a in answers]
        assert all(torch.equal(flat[0], other) for other in flat[1:])
        return flat[0], group

    def model(self, group: Group, rank: int, context: Any) -> Any:
        globals_: dict[str, Any] = {
            "torch": torch,
            "envs": SimpleNamespace(VLLM_MOE_SKIP_PADDING=True, VLLM_KIMI_K3_AUX_ATTN_RES_STREAM=False),
            "get_pp_group": lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True),
            "is_forward_context_available": lambda: True,
            "get_forward_context": lambda: context,
            "attn_res": attn_res,
            "UnquantizedLinearMethod": Unquantized,
            "tensor_model_parallel_all_reduce": lambda y: group.all_reduce(rank, y),
            **row_operations(self.row_operations, group, rank),
        }
        for code in self.methods:
            exec(code, globals_)

        def build(name: str, **values: Any) -> Any:
            thing = globals_[name]()
            vars(thing).update(values)
            return thing

        def mlp(weights: Any) -> Any:
            return build(
                "KimiMLP",
                shard_sequence_parallel=False,
                gemm_rs_ar=None,
                act_fn=silu_and_mul,
                gate_up_proj=Projection(weights.gate_up),
                down_proj=Projection(weights.down),
            )

        def experts(latent: Any, weight: Any, ids: Any) -> Any:
            # As the kernel may: rows marked as padding are left as they were allocated.
            out = torch.tanh(latent * weight)
            out[context.is_padding[: out.shape[0]]] = float("nan")
            return out

        def moe(weights: Any) -> Any:
            transform = build("KimiRoutedOutputTransform", norm=rms_norm, up_proj=Projection(weights.up))
            layer = build("KimiMoE", use_mega_moe=True, experts=experts)
            layer.shared_experts = callable_by_forward(mlp(weights))
            layer.routed_output_transform = callable_by_forward(transform)
            layer._maybe_overlap_router_and_down_proj = lambda y: (y @ weights.latent.t(), 2.0, 0)
            return layer

        layers = []
        norm = SimpleNamespace(weight=None, variance_epsilon=0.0)
        for index, weights in enumerate(self.weights):
            is_moe = index > 0
            layer = build(
                "KimiDecoderLayer",
                use_sequence_parallel=True,
                is_moe_layer=is_moe,
                mlp=callable_by_forward(moe(weights) if is_moe else mlp(weights)),
                self_attn=lambda hidden_states, positions, w=weights: hidden_states.cumsum(0) @ w.attention[rank].t(),
                use_attn_res=self.use_attn_res,
                is_block_write_layer=index % 2 == 0,
                block_write_idx=index // 2,
                prev_valid_blocks=(index + 1) // 2,
                self_attention_res_norm=norm,
                mlp_res_norm=norm,
                self_attention_res_proj=SimpleNamespace(weight=torch.zeros(1, HIDDEN)),
                mlp_res_proj=SimpleNamespace(weight=torch.zeros(1, HIDDEN)),
                input_layernorm=rms_norm,
                post_attention_layernorm=rms_norm,
            )
            if self.use_attn_res:
                layer.input_layernorm = layer.post_attention_layernorm = norm
            layers.append(callable_by_forward(layer))
        return build(
            "KimiLinearModel",
            use_sequence_parallel=True,
            use_attn_res=self.use_attn_res,
            num_attn_res_blocks=(LAYERS + 1) // 2,
            start_layer=0,
            end_layer=LAYERS,
            layers=layers,
            aux_hidden_state_layers=self.aux,
            collect_remote_aux_hidden_states=lambda tensors: [],
            output_attn_res_norm=norm,
            output_attn_res_proj=SimpleNamespace(weight=torch.zeros(1, HIDDEN)),
            decode_split=None,
        )


def callable_by_forward(thing: Any) -> Any:
    type(thing).__call__ = lambda self, *args, **kwargs: self.forward(*args, **kwargs)
    return thing


@pytest.fixture(scope="module")
def sources(wheel_file: Callable[[str], bytes], overlay_folder: Path) -> tuple[bytes, bytes, bytes]:
    """The model file before and after the patch, and the file of the row operations."""
    before = after = wheel_file(MODEL)
    for name in sorted((overlay_folder / "patches").iterdir()):
        for file in parse_patch(name.read_bytes()).files:
            if file.path == MODEL:
                after = apply_patch(after, file.hunks, MODEL)
    assert after != before
    return before, after, wheel_file(SEQUENCE_PARALLEL)


def step_of(prompts: int) -> Any:
    return SimpleNamespace(
        is_padding=None,
        cudagraph_runtime_mode=SimpleNamespace(name="NONE"),
        attn_metadata={"kda": SimpleNamespace(num_prefills=prompts)},
    )


def splitter(tep: ModuleType) -> Callable[[Group, int], Any]:
    graphs = SimpleNamespace(cudagraph_mode=None)
    return lambda group, rank: tep.DecodeSplit(
        rank, group.ranks, lambda x: group.all_reduce(rank, x), graphs, lambda: None
    )


CASES = [(2, 5, True, set()), (4, 7, False, {1, 2}), (4, 2, True, {0, 2}), (4, 8, True, set()), (8, 9, False, {0})]


@pytest.mark.parametrize(("ranks", "rows", "attn_res", "aux"), CASES)
def test_split_decode_step_gives_what_the_unpatched_file_gives(
    sources: tuple[bytes, bytes, bytes], tep: ModuleType, ranks: int, rows: int, attn_res: bool, aux: set[int]
) -> None:
    before, after, operations = sources
    x = torch.randn(rows, HIDDEN).bfloat16()
    stock, stock_group = Step(before, operations, ranks, attn_res, aux).run(x, step_of(0), None)
    split, group = Step(after, operations, ranks, attn_res, aux).run(x, step_of(0), splitter(tep))
    assert float((split.double() - stock.double()).norm() / stock.double().norm()) < 2e-2
    assert not torch.equal(split, stock)
    # The dense layer's attention, then attention and experts of each MoE layer; the experts' rows are padded.
    padded = -(-rows // ranks) * ranks
    moe_layers = LAYERS - 1
    assert group.log == [("all-reduce", rows)] + [("all-reduce", rows), ("all-reduce", padded)] * moe_layers
    assert group.finite
    assert {name for name, _ in stock_group.log} == {"all-gather", "reduce-scatter"}


@pytest.mark.parametrize("switch", ["on, prompts in the step", "off"])
@pytest.mark.parametrize(("ranks", "rows", "attn_res", "aux"), CASES[:3])
def test_other_steps_are_those_of_the_unpatched_file(
    sources: tuple[bytes, bytes, bytes],
    tep: ModuleType,
    switch: str,
    ranks: int,
    rows: int,
    attn_res: bool,
    aux: set[int],
) -> None:
    before, after, operations = sources
    x = torch.randn(rows, HIDDEN).bfloat16()
    prompts, make = (0, None) if switch == "off" else (1, splitter(tep))
    stock, stock_group = Step(before, operations, ranks, attn_res, aux).run(x, step_of(prompts), None)
    found, group = Step(after, operations, ranks, attn_res, aux).run(x, step_of(prompts), make)
    assert torch.equal(found, stock)
    assert group.log == stock_group.log


def test_the_plan_is_made_only_when_the_variable_is_set(sources: tuple[bytes, bytes, bytes]) -> None:
    """In the constructor of the patched model the plan stands under the variable, and None is what stands otherwise."""
    (model,) = (n for n in ast.parse(sources[1]).body if isinstance(n, ast.ClassDef) and n.name == "KimiLinearModel")
    (init,) = (n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    made = SimpleNamespace(start_layer=0, end_layer=2, layers=[1, 2, 3])
    start = next(i for i, n in enumerate(init.body) if "self.decode_split" in ast.unparse(n))
    code = compile(ast.Module(init.body[start : start + 2], []), MODEL, "exec", ANNOTATIONS, dont_inherit=True)
    for on in (False, True):
        scope = {
            "self": made,
            "envs": SimpleNamespace(VLLM_KIMI_K3_TEP_SHARED_TP=on),
            "vllm_config": "config",
            "plan_decode_split": lambda config, layers: (config, layers),
        }
        exec(code, scope)
        assert made.decode_split == (("config", [1, 2]) if on else None)
