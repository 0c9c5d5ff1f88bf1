"""The patched projection against float64, on a GPU: `LogitsProcessor._apply_head_fp32` of the installed vllm.

Prints one JSON document. Exit status: 0 every check passed, 1 a check failed, 3 nothing could be checked here.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

SIZES = ((1, 64, 640), (7, 1000, 640), (32, 4096, 2048), (256, 32000, 4096))
"""Rows, vocabulary, hidden size."""
TOLERANCE = 1e-5
"""Norm of the error over the norm of the float64 reference; rounding the same logits to BF16 alone gives over 1e-3."""


def say(verdict: str, reason: str, code: int, **facts: Any) -> int:
    print(json.dumps({"verdict": verdict, "reason": reason, **facts}, sort_keys=True))
    return code


def relative(found: Any, reference: Any) -> float:
    found = found.cpu().double()
    return float((found - reference).norm() / reference.norm())


def main() -> int:
    try:
        import torch
        from vllm.model_executor.layers.logits_processor import LogitsProcessor
    except ImportError as error:
        return say("not-run", f"not importable here: {error}", 3)
    if not torch.cuda.is_available():
        return say("not-run", "no GPU", 3)
    cases = []
    for number, (rows, vocabulary, hidden) in enumerate(SIZES):
        for dtype in (torch.bfloat16, torch.float16):
            for biased in (False, True):
                generator = torch.Generator().manual_seed(number)
                states = torch.randn(rows, hidden, generator=generator).to(dtype)
                weight = (torch.randn(vocabulary, hidden, generator=generator) * hidden**-0.5).to(dtype)
                bias = torch.randn(vocabulary, generator=generator).to(dtype) if biased else None
                reference = states.double() @ weight.double().t()
                if bias is not None:
                    reference += bias.double()
                head = SimpleNamespace(weight=weight.cuda())
                given = bias.cuda() if bias is not None else None
                found = LogitsProcessor._apply_head_fp32(SimpleNamespace(), head, states.cuda(), given)
                error, rounded = relative(found, reference), relative(found.to(dtype), reference)
                good = found.dtype == torch.float32 and found.shape == reference.shape and error < TOLERANCE < rounded
                cases.append(
                    {
                        "rows": rows, "vocabulary": vocabulary, "hidden": hidden, "dtype": str(dtype), "bias": biased,
                        "error": error, "error_rounded": rounded, "passed": bool(good),
                    }
                )  # fmt: skip
    bad = [case for case in cases if not case["passed"]]
    worst = max(case["error"] for case in cases)
    told = {"cases": cases, "tolerance": TOLERANCE, "device": torch.cuda.get_device_name()}
    if bad:
        return say("failed", f"{len(bad)} of {len(cases)} cases are wrong", 1, **told)
    return say("passed", f"{len(cases)} cases, largest relative error {worst:.1e}", 0, **told)


if __name__ == "__main__":
    sys.exit(main())
