"""The overlay's module: the split of rows and weights, the partial sums, and when a step is left alone."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

HIDDEN, INTERMEDIATE, LATENT = 64, 128, 32


def silu_and_mul(x: Any) -> Any:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@pytest.fixture
def weights() -> Any:
    torch.manual_seed(7)
    return SimpleNamespace(
        gate_up=(torch.randn(2 * INTERMEDIATE, HIDDEN) * HIDDEN**-0.5).bfloat16(),
        down=(torch.randn(HIDDEN, INTERMEDIATE) * INTERMEDIATE**-0.5).bfloat16(),
        up=(torch.randn(HIDDEN, LATENT) * LATENT**-0.5).bfloat16(),
    )


@pytest.mark.parametrize(("rows", "ranks"), [(0, 4), (1, 4), (3, 4), (4, 4), (5, 4), (9, 8), (16, 1)])
def test_row_spans_cover_each_row_once(tep: ModuleType, rows: int, ranks: int) -> None:
    spans = [tep.row_span(rows, rank, ranks) for rank in range(ranks)]
    chunk = -(-rows // ranks)
    assert [span.start for span in spans] == [rank * chunk for rank in range(ranks)]
    assert all(span.stop - span.start == chunk for span in spans)
    covered = [row for span in spans for row in range(span.start, span.start + span.real)]
    assert covered == list(range(rows))


def test_padding_is_zero_and_absent_where_rows_divide(tep: ModuleType) -> None:
    x = torch.ones(5, HIDDEN)
    padded = tep.pad_rows(x, 4)
    assert padded.shape == (8, HIDDEN)
    assert not padded[5:].any()
    assert torch.equal(padded[:5], x)
    assert tep.pad_rows(x, 5) is x


def test_shards_are_views_that_follow_reloaded_weights(tep: ModuleType, weights: Any) -> None:
    shard = tep.shard_of(weights.gate_up, weights.down, 1, 4)
    width = INTERMEDIATE // 4
    assert torch.equal(shard.gate_up[0], weights.gate_up[width : 2 * width])
    assert torch.equal(shard.gate_up[1], weights.gate_up[INTERMEDIATE + width : INTERMEDIATE + 2 * width])
    assert torch.equal(shard.down, weights.down[:, width : 2 * width])
    weights.gate_up.fill_(3)
    weights.down.fill_(5)
    assert bool((shard.gate_up == 3).all())
    assert bool((shard.down == 5).all())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda gate_up, down: (gate_up.to(torch.float8_e4m3fn), down), "not BF16"),
        (lambda gate_up, down: (gate_up, down.half()), "not BF16"),
        (lambda gate_up, down: (gate_up[:INTERMEDIATE], down), "shapes"),
        (lambda gate_up, down: (gate_up, down.t().contiguous().t()), "not stored row by row"),
        (lambda gate_up, down: (gate_up, down), None),
    ],
)
def test_only_whole_bf16_weights_are_shardable(tep: ModuleType, weights: Any, change: Any, reason: str | None) -> None:
    found = tep.why_not_shardable(*change(weights.gate_up, weights.down), 4)
    assert found is None if reason is None else reason in found


def test_an_intermediate_size_that_does_not_divide_is_left_alone(tep: ModuleType, weights: Any) -> None:
    assert "does not divide" in tep.why_not_shardable(weights.gate_up, weights.down, 3)
    assert "does not divide" in tep.why_not_shardable(weights.gate_up, weights.down, 32)


def split_over_group(tep: ModuleType, weights: Any, x: Any, latent: Any, ranks: int, add_routed: Any) -> Any:
    """Every rank in turn; the all-reduce keeps the partials, whose sum is the answer."""
    partials: list[Any] = []
    for rank in range(ranks):
        span = tep.row_span(x.shape[0], rank, ranks)

        def routed(own: Any, span: Any = span) -> Any:
            out = torch.full((own.shape[0], LATENT), float("nan"), dtype=x.dtype)
            out[: span.real] = latent[span.start : span.start + span.real]
            return out

        def keep(partial: Any) -> Any:
            partials.append(partial.clone())
            return partial

        tep.run_split(
            x,
            tep.shard_of(weights.gate_up, weights.down, rank, ranks),
            rank,
            ranks,
            activation=silu_and_mul,
            routed=routed,
            add_routed=add_routed,
            all_reduce=keep,
        )
    return partials


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("rows", [1, 7, 8])
def test_partials_sum_to_the_replicated_layer(
    tep: ModuleType, weights: Any, rows: int, ranks: int, in_place: bool
) -> None:
    x, latent = torch.randn(rows, HIDDEN).bfloat16(), torch.randn(rows, LATENT).bfloat16()

    def add_routed(rows_of_latent: Any, residual: Any) -> Any:
        if in_place:
            return residual.addmm_(rows_of_latent, weights.up.t())
        return torch.addmm(residual, rows_of_latent, weights.up.t())

    partials = split_over_group(tep, weights, x, latent, ranks, add_routed)
    assert len(partials) == ranks
    for partial in partials:
        assert bool(torch.isfinite(partial).all())
        assert not bool(partial[rows:].any())
    exact = silu_and_mul(x.double() @ weights.gate_up.double().t()) @ weights.down.double().t()
    exact += latent.double() @ weights.up.double().t()
    total = torch.stack(partials).double().sum(0)[:rows]
    assert float((total - exact).norm() / exact.norm()) < 1e-2


def test_a_step_without_rows_runs_the_routed_experts_and_reduces_nothing(tep: ModuleType, weights: Any) -> None:
    calls: list[str] = []
    out = tep.run_split(
        torch.empty(0, HIDDEN, dtype=torch.bfloat16),
        tep.shard_of(weights.gate_up, weights.down, 0, 2),
        0,
        2,
        activation=silu_and_mul,
        routed=lambda own: calls.append(f"routed {own.shape[0]}") or own.new_empty(0, LATENT),
        add_routed=lambda rows, residual: calls.append("added"),
        all_reduce=lambda partial: calls.append("reduced"),
    )
    assert out.shape == (0, HIDDEN)
    assert calls == ["routed 0"]


def context(mode: str = "NONE", metadata: Any = None) -> Any:
    return SimpleNamespace(cudagraph_runtime_mode=SimpleNamespace(name=mode), attn_metadata=metadata)


DECODE = {"kda": SimpleNamespace(num_prefills=0), "drafter": SimpleNamespace()}
MIXED = {"kda": SimpleNamespace(num_prefills=1), "mla": SimpleNamespace(num_prefills=0)}


@pytest.mark.parametrize(
    ("step", "decode"),
    [
        (context("NONE", DECODE), True),
        (context("FULL", DECODE), True),
        (context("PIECEWISE", DECODE), False),
        (context("NONE", MIXED), False),
        (context("FULL", MIXED), False),
        (context("NONE", None), False),
        (context("NONE", [DECODE, DECODE]), False),
        (context("NONE", {"other": SimpleNamespace()}), False),
    ],
)
def test_decode_steps_are_those_whose_layers_count_no_prompts(tep: ModuleType, step: Any, decode: bool) -> None:
    assert tep.is_decode_step(step) is decode


def graphs(mixed: str | None) -> Any:
    mode = None if mixed is None else SimpleNamespace(mixed_mode=lambda: SimpleNamespace(name=mixed))
    return SimpleNamespace(cudagraph_mode=mode)


@pytest.mark.parametrize(("mixed", "taken"), [("NONE", True), ("PIECEWISE", True), (None, True), ("FULL", False)])
def test_one_full_graph_for_prompts_too_is_left_alone(tep: ModuleType, mixed: str | None, taken: bool) -> None:
    split = tep.DecodeSplit(0, 2, lambda x: x, graphs(mixed), lambda: None)
    assert split.takes(context("FULL", DECODE)) is taken


def test_the_first_split_step_is_announced_once(tep: ModuleType) -> None:
    said: list[str] = []
    split = tep.DecodeSplit(0, 2, lambda x: x, graphs("NONE"), lambda: said.append("first"))
    assert not split.takes(context("NONE", MIXED))
    assert said == []
    assert split.takes(context("NONE", DECODE))
    assert split.takes(context("NONE", DECODE))
    assert said == ["first"]


class Unquantized:
    pass


def moe_layer(weights: Any, **changes: Any) -> Any:
    shared = SimpleNamespace(
        shard_sequence_parallel=False,
        gate_up_proj=SimpleNamespace(quant_method=Unquantized(), weight=weights.gate_up),
        down_proj=SimpleNamespace(quant_method=Unquantized(), weight=weights.down),
    )
    layer = SimpleNamespace(
        use_sequence_parallel=True,
        is_moe_layer=True,
        self_attn=SimpleNamespace(gemm_rs_ar=None),
        mlp=SimpleNamespace(use_mega_moe=True, shared_experts=shared),
    )
    for path, value in changes.items():
        *parents, name = path.split("__")
        owner = layer
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, value)
    return layer


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"use_sequence_parallel": False}, "without sequence parallelism"),
        ({"self_attn__gemm_rs_ar": object()}, "reduce-scatter"),
        ({"mlp__use_mega_moe": False}, "MegaMoE"),
        ({"mlp__shared_experts": None}, "no shared expert"),
        ({"mlp__shared_experts__shard_sequence_parallel": True}, "sharded already"),
        ({"mlp__shared_experts__down_proj__quant_method": object()}, "quantised"),
        ({"mlp__shared_experts__gate_up_proj__quant_method": object()}, "quantised"),
        ({"is_moe_layer": False, "mlp": SimpleNamespace(shard_sequence_parallel=True)}, "dense MLPs"),
        ({"is_moe_layer": False, "mlp": SimpleNamespace(shard_sequence_parallel=False)}, "no MoE layer"),
    ],
)
def test_models_that_are_left_alone(tep: ModuleType, weights: Any, changes: Any, reason: str | None) -> None:
    found = tep.why_left_alone([moe_layer(weights, **changes)], 2, Unquantized)
    assert found is None if reason is None else reason in found


def test_one_unsuited_layer_leaves_the_whole_model_alone(tep: ModuleType, weights: Any) -> None:
    quantised = moe_layer(weights, mlp__shared_experts__down_proj__quant_method=object())
    assert "quantised" in tep.why_left_alone([moe_layer(weights), quantised], 2, Unquantized)
