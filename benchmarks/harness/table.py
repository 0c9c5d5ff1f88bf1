"""The results as one table and one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.measure import Result, Way

HEADINGS = {
    "cold": "cold: the machine has never seen the base",
    "complete": "cold: the machine has never seen the base",
    "again": "again: another change, the base at hand",
    "locked": "locked: committed lock, nothing else at hand",
    "unchanged": "already pushed",
    "verify": "already pushed",
    "imports": "alone",
    "alone": "alone",
}

_TOLD = {
    "kind",
    "transfer",
    "read_bytes",
    "not_proven",
    "unchanged",
    "passed",
    "entries",
    "hashed",
    "read",
    "peak_memory_bytes",
}


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 20 else f"{value:.1f} s" if value >= 5 else f"{value:.2f} s"


def size(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.1f} MB"
    return f"{value / 1e3:.0f} KB" if value >= 1e3 else f"{value:.0f} B"


def ratio(of: float, to: float) -> str:
    """`of` in units of `to`: 1/20 or 3.1."""
    if of <= 0 or to <= 0:
        return ""
    return f"1/{to / of:.0f}" if of * 9.5 <= to else f"1/{to / of:.1f}" if of < to else f"{of / to:.1f}"


def markdown(ways: list[Way], results: Mapping[str, Result], delay: float) -> str:
    """One table; ratios are to docker's classic builder of the same kind (cold or again), and at a delay to crane."""
    rows = ["| way | wall | to docker's | bytes down | bytes up | requests | least – most |"]
    rows.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    docker = {"cold": "docker", "complete": "docker", "again": "docker-again"}
    heading = ""
    for way in ways:
        result = results[way.key]
        now = f"at {delay * 1000:.0f} ms a request" if way.delayed else HEADINGS[way.kind]
        if now != heading:
            heading = now
            rows.append(f"| **{now}** | | | | | | |")
        if result.skipped or not result.walls:
            rows.append(f"| {way.title} | {result.skipped or 'not measured'} | | | | | |")
            continue
        rival = results.get("crane-delayed" if way.delayed else docker.get(way.kind, "docker"))
        against = ratio(result.wall, rival.wall) if rival and rival.walls and way.kind != "alone" else ""
        if way.kind in ("alone", "imports"):
            against, traffic = "", "| | | "
        else:
            asked = str(result.middle("requests"))
            if result.rounds:
                asked += f", {max(result.rounds)} rounds"
            traffic = f"| {size(result.middle('down'))} | {size(result.middle('up'))} | {asked} "
        if way.delayed and against:
            against += " of crane's"
        spread = f"{seconds(min(result.walls))} – {seconds(max(result.walls))}"
        rows.append(f"| {way.title} | {seconds(result.wall)} | {against} {traffic}| {spread} |")
    return "\n".join(rows) + "\n"


def _said(outputs: list[str]) -> list[Any]:
    """What the last run's programs printed, where that was JSON."""
    out = []
    for text in outputs:
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict):
            out.append({key: value[key] for key in value.keys() & _TOLD})
    return out


def document(ways: list[Way], results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """One JSON object a way."""
    out = []
    for way in ways:
        result = results[way.key]
        entry: dict[str, Any] = {"way": way.key, "title": way.title, "kind": way.kind, "base": way.base}
        if result.skipped or not result.walls:
            out.append({**entry, "skipped": result.skipped or "not measured"})
            continue
        out.append(
            {
                **entry,
                "delayed": way.delayed,
                "wall_seconds": round(result.wall, 4),
                "walls": [round(wall, 4) for wall in result.walls],
                "parts": [{name: round(wall, 4) for name, wall in part.items()} for part in result.parts],
                "requests": result.middle("requests"),
                "downloaded_bytes": result.middle("down"),
                "uploaded_bytes": result.middle("up"),
                "base_blob_requests": result.middle("base_blobs"),
                "sequential_rounds": max(result.rounds) if result.rounds else None,
                "said": _said(result.outputs),
                "same_tree": result.same_tree,
                "faults": result.faults,
            }
        )
    return out
