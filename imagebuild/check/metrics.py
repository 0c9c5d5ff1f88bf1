"""Counters of a serving engine (Prometheus text), read before and after a run: what was really done in between."""

from __future__ import annotations

from collections.abc import Mapping

ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
LAST_LENGTH = "sglang:spec_accept_length"


def parse_counters(text: str) -> dict[str, float]:
    """The value of each metric, summed over its labels; lines that are none are skipped."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        tail = line.rsplit("}", 1)[-1] if "{" in line else line[len(name) :]
        try:
            found[name] = found.get(name, 0.0) + float(tail.split()[0])
        except (ValueError, IndexError):
            continue
    return found


def grown(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    """How far a counter grew; None where the engine does not have it (with or without Prometheus' `_total`)."""
    for key in (name, f"{name}_total"):
        if key in after:
            return after[key] - before.get(key, 0.0)
    return None


def acceptance_length(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Mean tokens a step of speculative decoding, the verified one included; None without speculation.

    vLLM counts accepted tokens and drafts.  SGLang only shows the length of its last steps: that value after the run.
    """
    accepted, drafts = grown(before, after, ACCEPTED), grown(before, after, DRAFTS)
    if accepted is not None and drafts:
        return 1 + accepted / drafts
    return after.get(LAST_LENGTH) or None
