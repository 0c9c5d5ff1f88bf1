"""SiTU, the gated activation of Kimi-K3's experts: in torch, and as one kernel where Triton works."""

from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BETA, LINEAR_BETA = 4.0, 25.0  # of the Kimi-K3 configuration
BLOCK = 512


def situ_in_torch(x: Any) -> Any:
    """SiTU of `[rows, 2 * width]` (gate, then up) in float32, or in the precision of `x` where that is higher."""
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    gated = BETA * torch.tanh(gate / BETA) * torch.sigmoid(gate)
    return (gated * LINEAR_BETA * torch.tanh(up / LINEAR_BETA)).to(x.dtype)


if triton is not None:

    @triton.jit
    def _situ_kernel(x, out, width, beta, linear_beta, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0)
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < width
        gate = tl.load(x + row * 2 * width + column, mask=inside).to(tl.float32)
        up = tl.load(x + row * 2 * width + width + column, mask=inside).to(tl.float32)
        # tanh(v) = 2 * sigmoid(2 * v) - 1
        gate = beta * (2 * tl.sigmoid(2 * gate / beta) - 1) * tl.sigmoid(gate)
        up = linear_beta * (2 * tl.sigmoid(2 * up / linear_beta) - 1)
        tl.store(out + row * width + column, (gate * up).to(out.dtype.element_ty), mask=inside)


def situ_in_one_kernel(x: Any) -> Any:
    """SiTU of a contiguous `[rows, 2 * width]` on a GPU."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty(rows, width)
    if rows:
        _situ_kernel[(rows, triton.cdiv(width, BLOCK))](x, out, width, BETA, LINEAR_BETA, block=BLOCK)
    return out


def fastest_situ() -> tuple[Any, str]:
    """The activation to time, and its name for the report."""
    return (situ_in_torch, "torch") if triton is None else (situ_in_one_kernel, "triton")
