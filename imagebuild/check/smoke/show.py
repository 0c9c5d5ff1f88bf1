"""Evidence of a smoke test in words for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from imagebuild.content.text import table
from imagebuild.errors import clean


def evidence_text(document: Mapping[str, Any], *, parts: bool = False) -> str:
    """The steps as a table, then image and machine, the verdict last.  With `parts` each thing that was looked at."""
    rows: list[list[str]] = []
    for step in document["steps"]:
        rows.append([_word(step, "name"), _word(step, "verdict"), _seconds(step.get("seconds")), _word(step, "reason")])
        if parts:
            rows += [
                [f"  {_word(one, 'name')}", _word(one, "verdict"), "", _word(one, "reason")]
                for one in step.get("parts", ())
            ]
    lines = [table(rows, ["step", "verdict", "seconds", "why"]), *_around(document)]
    verdict = f"{document.get('verdict')}: {document.get('target')} ({document.get('platform')})"
    if not document.get("complete", True):
        names = ", ".join(str(step.get("name")) for step in document["steps"])
        verdict += f": only {names}, which is not the whole smoke test"
    reason = document.get("reason")
    if reason:
        verdict += f": {clean(str(reason), 600)}"
    return "\n".join([*lines, verdict])


def _around(document: Mapping[str, Any]) -> Iterator[str]:
    image, hardware = document.get("image") or {}, document.get("hardware") or {}
    yield f"image     {image.get('digest')} of {image.get('reference')}"
    yield f"content   {image.get('content_id')}"
    told = list(hardware.get("accelerators") or ())
    named: dict[str, int] = {}
    for one in told:
        name = f"{one.get('name') or 'unnamed'} {one.get('capability') or one.get('architecture')}"
        named[name] = named.get(name, 0) + 1
    machine = [f"{count} x {name}" for name, count in named.items()]
    for key, word in (("driver", "driver"), ("mec_firmware", "MEC firmware"), ("huge_pages", "huge pages")):
        if hardware.get(key):
            machine.append(f"{word} {hardware[key]}")
    machine += [str(hardware[key]) for key in ("cpu", "kernel") if hardware.get(key)]
    yield "machine   " + (", ".join(clean(one, 200) for one in machine) or "nothing is known of it")
    site = f" at {document['site']}" if document.get("site") else ""
    commit = f", workspace {document['source_commit']}" if document.get("source_commit") else ""
    tool = document.get("tool") or {}
    yield f"run       by {document.get('runner')}{site}, {document.get('finished')}, imagebuild {tool.get('version')}{commit}"
    for name, why in (document.get("left_out") or {}).items():
        yield f"left out  {name}: {why}"


def _word(value: Mapping[str, Any], key: str) -> str:
    return clean(str(value.get(key) or ""), 400)


def _seconds(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, (int, float)) else ""
