"""Evidence that a switched branch ran in this very run: a counter of the engine that grew, or a line of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuild.check.metrics import grown

SHOWN = 300
"""Characters of a line that evidence quotes."""


@dataclass(frozen=True, slots=True)
class WantedProof:
    """What an overlay with a switch says of itself: a `counter` of the engine, or `log`, a regular expression that fits in
    a line of the server's log.  With neither nothing can be proven."""

    overlay: str
    counter: str | None = None
    log: str | None = None


def counter_proof(
    wanted: WantedProof, before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, Any] | None:
    """None where the counter is missing or stood still."""
    growth = grown(before, after, wanted.counter) if wanted.counter is not None else None
    return {"overlay": wanted.overlay, "counter": wanted.counter, "grown": growth} if growth else None


def log_proof(wanted: WantedProof, log: str) -> dict[str, Any] | None:
    """How many lines the expression fits, and the first of them; None where there is none.  `log` is all that the server
    printed since its start for this run."""
    if wanted.log is None:
        return None
    expression = re.compile(wanted.log)
    lines = [line for line in log.splitlines() if expression.search(line)]
    if not lines:
        return None
    return {"overlay": wanted.overlay, "log": wanted.log, "lines": len(lines), "first": lines[0][:SHOWN]}


def all_proven(wanted: Sequence[WantedProof], found: Iterable[Mapping[str, Any] | None]) -> list[dict[str, Any]] | None:
    """The evidence in order, None unless each overlay has one; nothing wanted proves nothing."""
    by_name = {one["overlay"]: dict(one) for one in found if one is not None}
    if not wanted or any(one.overlay not in by_name for one in wanted):
        return None
    return [by_name[one.overlay] for one in wanted]


def unproven(wanted: Sequence[WantedProof]) -> str:
    """What an unproven run is told."""
    words = []
    for one in wanted:
        if one.counter is not None:
            words.append(f"{one.overlay}: the counter {one.counter} did not grow, or /metrics does not show it")
        elif one.log is not None:
            words.append(f"{one.overlay}: no line of the server's log matches {one.log!r} (an endpoint shows no log)")
        else:
            words.append(f"{one.overlay}: the overlay declares no proof of its switch")
    return "nothing in this run proves that the switched branch ran: " + "; ".join(words)
