# SPDX-License-Identifier: Apache-2.0
"""Kimi-K3: the shared expert sharded over the tensor-parallel group in decode steps.

Under sequence parallelism with MegaMoE every rank owns a slice of the rows and a
whole copy of the BF16 shared expert, so a decode step streams that copy on every
rank to serve a few rows. With ``VLLM_KIMI_K3_TEP_SHARED_TP=1`` a decode step keeps
the rows of the whole group on every rank instead, and each MoE layer

1. zero-pads the rows to a multiple of the group size,
2. runs the routed experts on this rank's slice of the rows, as before,
3. runs this rank's shard of the shared expert on all rows, which gives a partial sum,
4. adds the routed rows into this rank's slice of that partial, through the existing
   up-projection epilogue, and
5. all-reduces the partial once, which finishes both branches.

A shard is a pair of views into the replicated weights: nothing is copied, and a
reload of the weights needs no action here. Prefill and mixed steps, and every step
without the variable, run the code that was there before.

The sum over the intermediate dimension is split into one BF16 partial per rank, so
results are reordered with respect to the replicated expert, not bitwise equal to it.

The first half of this module needs nothing but torch; vLLM is imported only by the
functions at its end.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

# Rows of a BF16 matrix that start on 16 bytes keep the vectorised GEMM kernels
# eligible on a column slice of the down projection.
_ALIGNMENT = 8


class RowSpan(NamedTuple):
    """This rank's slice ``[start, stop)`` of the padded rows, and how many of its
    first rows are rows of the step (the others are padding)."""

    start: int
    stop: int
    real: int


class SharedShard(NamedTuple):
    """One rank's shard of the shared expert, as views into the whole weights.

    gate_up: ``[2, width, hidden]``, the gate rows and the up rows.
    down: ``[hidden, width]``, a slice of the columns.
    """

    gate_up: torch.Tensor
    down: torch.Tensor


def row_span(rows: int, rank: int, ranks: int) -> RowSpan:
    """The slice of ``rows``, padded to a multiple of ``ranks``, that ``rank`` owns."""
    chunk = -(-rows // ranks)
    start = rank * chunk
    return RowSpan(start, start + chunk, min(max(rows - start, 0), chunk))


def pad_rows(x: torch.Tensor, ranks: int) -> torch.Tensor:
    """``x`` with zero rows appended up to a multiple of ``ranks``."""
    missing = -x.shape[0] % ranks
    return F.pad(x, (0, 0, 0, missing)) if missing else x


def why_not_shardable(
    gate_up: torch.Tensor, down: torch.Tensor, ranks: int
) -> str | None:
    """Why a shared expert of these whole weights has no shard over ``ranks``, or None.

    gate_up: ``[2 * intermediate, hidden]``, gate rows before up rows.
    down: ``[hidden, intermediate]``.
    """
    if gate_up.dtype != torch.bfloat16 or down.dtype != torch.bfloat16:
        return f"its weights are {gate_up.dtype} and {down.dtype}, not BF16"
    hidden, intermediate = down.shape
    if tuple(gate_up.shape) != (2 * intermediate, hidden):
        return (
            f"its weights have the shapes {tuple(gate_up.shape)} and "
            f"{tuple(down.shape)}"
        )
    if not (gate_up.is_contiguous() and down.is_contiguous()):
        return "its weights are not stored row by row"
    if intermediate % (ranks * _ALIGNMENT):
        return (
            f"its intermediate size {intermediate} does not divide over {ranks} ranks"
        )
    return None


def shard_of(
    gate_up: torch.Tensor, down: torch.Tensor, rank: int, ranks: int
) -> SharedShard:
    """Views of the shard that ``rank`` runs; see :func:`why_not_shardable`."""
    hidden, intermediate = down.shape
    width = intermediate // ranks
    columns = slice(rank * width, (rank + 1) * width)
    return SharedShard(
        gate_up.view(2, intermediate, hidden)[:, columns], down[:, columns]
    )


def shared_partial(
    x: torch.Tensor,
    shard: SharedShard,
    activation: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The shard's partial ``[rows, hidden]`` of the shared expert for ``x``.

    activation: maps ``[rows, 2 * width]`` (gate, then up) to ``[rows, width]``.
    """
    rows, (_, width, hidden) = x.shape[0], shard.gate_up.shape
    gate_up = x.new_empty(rows, 2 * width)
    # The halves of a shard are apart in the whole weight. A batched GEMM reads them
    # where they are and writes them side by side; joining them first would keep a
    # copy of two thirds of the shard resident.
    torch.bmm(
        x.expand(2, rows, hidden),
        shard.gate_up.transpose(1, 2),
        out=gate_up.view(rows, 2, width).transpose(0, 1),
    )
    return torch.mm(activation(gate_up), shard.down.t())


def run_split(
    x: torch.Tensor,
    shard: SharedShard,
    rank: int,
    ranks: int,
    *,
    activation: Callable[[torch.Tensor], torch.Tensor],
    routed: Callable[[torch.Tensor], torch.Tensor],
    add_routed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    all_reduce: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """One MoE layer over the rows of the whole group; the same rows on every rank.

    Args:
        x: ``[rows, hidden]``, equal on every rank of the group.
        shard: This rank's shard of the shared expert.
        activation: The gated activation of the shared expert.
        routed: Routed experts of this rank's rows ``[chunk, hidden]``. It is called
            on every rank, also for padding rows alone, because it is collective.
        add_routed: Projects routed rows and adds them into its second argument, in
            place or as a new tensor.
        all_reduce: Sums a tensor over the group.

    Returns:
        ``[rows, hidden]``, the sum of shared and routed experts.

    Every element that is reduced was written here: the padding rows of ``x`` are
    zeros, whose partial is zero, and what ``routed`` returns for them is not read.
    """
    rows = x.shape[0]
    span = row_span(rows, rank, ranks)
    x = pad_rows(x, ranks)
    latent = routed(x[span.start : span.stop])
    partial = shared_partial(x, shard, activation)
    if span.real:
        own = partial[span.start : span.start + span.real]
        merged = add_routed(latent[: span.real], own)
        if merged is not own:
            own.copy_(merged)
    # An empty step has nothing to sum, on any rank.
    return all_reduce(partial)[:rows] if rows else partial


def is_decode_step(context: Any) -> bool:
    """Whether the step that ``context`` describes holds no prompt rows.

    A piecewise graph is keyed by its row count alone and serves prompts too, so it
    never counts. The answer depends on what the scheduler gave to every rank of the
    group alike.

    Args:
        context: vLLM's forward context: ``cudagraph_runtime_mode`` and
            ``attn_metadata`` are read.
    """
    if context.cudagraph_runtime_mode.name == "PIECEWISE":
        return False
    metadata = context.attn_metadata
    if not isinstance(metadata, dict):
        return False
    # Some attention backends do not count prompts; Kimi-K3's own layers do.
    prompts = [
        layer.num_prefills
        for layer in metadata.values()
        if hasattr(layer, "num_prefills")
    ]
    return bool(prompts) and not any(prompts)


class DecodeSplit:
    """Runs the MoE layers of a decode step with the shared expert sharded.

    Args:
        rank: This rank's position in the tensor-parallel group.
        ranks: Size of the group.
        all_reduce: Sums a tensor over the group.
        graphs: The compilation config; its ``cudagraph_mode`` is read at each step,
            because it is settled only after the model is built.
        on_first_step: Called when the first step runs split, before it runs.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        all_reduce: Callable[[torch.Tensor], torch.Tensor],
        graphs: Any,
        on_first_step: Callable[[], None],
    ) -> None:
        self.rank = rank
        self.ranks = ranks
        self.all_reduce = all_reduce
        self.graphs = graphs
        self.on_first_step: Callable[[], None] | None = on_first_step

    def takes(self, context: Any) -> bool:
        """Whether this step runs split."""
        mode = self.graphs.cudagraph_mode
        # One full graph for prompts and decodes alike would freeze the choice.
        if mode is not None and mode.mixed_mode().name == "FULL":
            return False
        if not is_decode_step(context):
            return False
        if self.on_first_step is not None:
            self.on_first_step()
            self.on_first_step = None
        return True

    def run_moe(self, moe: Any, x: torch.Tensor) -> torch.Tensor:
        """``moe`` on the rows of the whole group; ``x`` is ``[rows, hidden]``."""
        shared = moe.shared_experts

        def routed(own_rows: torch.Tensor) -> torch.Tensor:
            return moe.experts(*moe._maybe_overlap_router_and_down_proj(own_rows))

        return run_split(
            x,
            shard_of(
                shared.gate_up_proj.weight,
                shared.down_proj.weight,
                self.rank,
                self.ranks,
            ),
            self.rank,
            self.ranks,
            activation=shared.act_fn,
            routed=routed,
            add_routed=moe.routed_output_transform,
            all_reduce=self.all_reduce,
        )


def why_left_alone(layers: Iterable[Any], ranks: int, unquantized: type) -> str | None:
    """Why the decoder ``layers`` keep the replicated shared expert, or None.

    Args:
        layers: The decoder layers of the model.
        ranks: Size of the tensor-parallel group.
        unquantized: The class of the quant method of an unquantised projection.
    """
    found = False
    for layer in layers:
        if not layer.use_sequence_parallel:
            return "the model runs without sequence parallelism"
        if getattr(layer.self_attn, "gemm_rs_ar", None) is not None:
            return "attention ends in a fused reduce-scatter (VLLM_ENABLE_GEMM_RS)"
        if not layer.is_moe_layer:
            if layer.mlp.shard_sequence_parallel:
                return "the dense MLPs are sharded already"
            continue
        moe = layer.mlp
        if not moe.use_mega_moe:
            return "the routed experts do not run as MegaMoE"
        shared = moe.shared_experts
        if shared is None:
            return "there is no shared expert"
        if shared.shard_sequence_parallel:
            return "the shared expert is sharded already"
        for projection in (shared.gate_up_proj, shared.down_proj):
            if not isinstance(projection.quant_method, unquantized):
                return "the shared expert is quantised"
        reason = why_not_shardable(
            shared.gate_up_proj.weight, shared.down_proj.weight, ranks
        )
        if reason is not None:
            return f"the shared expert cannot be sharded: {reason}"
        found = True
    return None if found else "there is no MoE layer"


def plan_decode_split(vllm_config: Any, layers: Iterable[Any]) -> DecodeSplit | None:
    """What runs the decode steps of a model, or None for the replicated path.

    Called while the model is built, when ``VLLM_KIMI_K3_TEP_SHARED_TP`` is set. The log
    says at once why nothing changes, or, when the first step runs so, that it does.
    """
    import vllm.envs as envs
    from vllm.distributed import (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
        tensor_model_parallel_all_reduce,
    )
    from vllm.logger import init_logger
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    logger = init_logger(__name__)
    layers = list(layers)
    ranks = get_tensor_model_parallel_world_size()
    if vllm_config.lora_config is not None:
        reason: str | None = "LoRA adapters wrap the projections"
    elif envs.VLLM_BATCH_INVARIANT:
        reason = "batch-invariant kernels are asked for (VLLM_BATCH_INVARIANT)"
    else:
        reason = why_left_alone(layers, ranks, UnquantizedLinearMethod)
    if reason is not None:
        logger.warning_once("VLLM_KIMI_K3_TEP_SHARED_TP=1 changes nothing: %s.", reason)
        return None

    def on_first_step() -> None:
        logger.info_once(
            "Kimi-K3 TEP shared expert: decode shards %d MoE layers over %d ranks.",
            sum(layer.is_moe_layer for layer in layers),
            ranks,
        )

    return DecodeSplit(
        get_tensor_model_parallel_rank(),
        ranks,
        tensor_model_parallel_all_reduce,
        vllm_config.compilation_config,
        on_first_step,
    )
