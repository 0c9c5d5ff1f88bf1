"""Where the image comes from, as a drawing with its words: base, overlays, layers, image, release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imagebuild.content.digest import Digest
from imagebuild.release.report_facts import ReportFacts
from imagebuild.release.report_markup import Child, Markup, code, element

WIDTH, BOX, GAP, MARGIN = 360, 52, 26, 8
TEXT_WIDTH = 42
"""Characters of the drawing's type that fit into a box."""


@dataclass(frozen=True, slots=True)
class Node:
    """One box: what it is, its name in full, and the word on the arrow that leads to it ("" for none)."""

    kind: str
    title: str
    name: str
    arrow: str = ""
    digest: Digest | None = None


def nodes_of(report: ReportFacts) -> tuple[Node, ...]:
    """From the base to the release, in the order in which one makes the next."""
    return tuple(_nodes(report))


def _nodes(report: ReportFacts) -> Iterator[Node]:
    facts = report.facts
    inputs, result = facts.lock.inputs, facts.lock.result
    yield Node("base", "Base image, pinned", f"{inputs.base}@{inputs.base_digest}", "", inputs.base_digest)
    for platform in inputs.platforms:
        count = len(platform.layers)
        yield Node(
            "kept",
            f"{platform.platform}: {count} layer{'' if count == 1 else 's'} kept as they are",
            str(platform.manifest),
            "manifest of",
            platform.manifest,
        )
    for overlay in facts.overlays:
        yield Node("overlay", f"Overlay {overlay.name}", overlay.description.strip().splitlines()[0], "changed by")
    yield Node("content", "Content id, from the lock's inputs", str(inputs.content_id), "locked as", inputs.content_id)
    for made in result.platforms:
        for layer in made.layers:
            yield Node(
                "layer", f"{made.platform}: layer of {layer.role}", str(layer.digest), "written as", layer.digest
            )
        yield Node("image", f"{made.platform}: image manifest", str(made.manifest), "on top of the base", made.manifest)
    if inputs.is_index:
        yield Node("image", "Image index", str(result.digest), "listed by", result.digest)
    published = "published as" if facts.image is not None else "stored as"
    yield Node("release", "Release" if facts.image is not None else "Local layout", report.reference, published)


def graph_figure(report: ReportFacts) -> Markup:
    """The drawing, and below it the same in words."""
    nodes = nodes_of(report)
    title = f"From the base to {report.facts.name}"
    words = "; ".join(f"{n.arrow} {n.title} {n.name}".strip() for n in nodes)
    parts: list[Child] = [
        element("title", title, id="graph-title"),
        element("desc", words, id="graph-words"),
    ]
    for number, node in enumerate(nodes):
        parts += _box(number, node)
    height = MARGIN * 2 + len(nodes) * BOX + (len(nodes) - 1) * GAP
    drawing = element(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby="graph-title graph-words",
        class_="graph",
    )
    items = [
        element("li", *([node.arrow + ": "] if node.arrow else []), element("strong", node.title), ", ", _name(node))
        for node in nodes
    ]
    caption = element("figcaption", "The same in words, in this order:")
    return element("figure", drawing, caption, element("ol", *items))


def _name(node: Node) -> Child:
    return node.name if node.kind == "overlay" else code(node.name)


def _box(number: int, node: Node) -> list[Child]:
    top = MARGIN + number * (BOX + GAP)
    middle = WIDTH // 2
    out: list[Child] = []
    if number:
        start = top - GAP
        out.append(element("line", x1=middle, y1=start, x2=middle, y2=top - 5, class_="edge"))
        tip = f"{middle - 4},{top - 6} {middle + 4},{top - 6} {middle},{top}"
        out.append(element("polygon", points=tip, class_="tip"))
        out.append(element("text", node.arrow, x=middle + 10, y=start + 17, class_="arrow"))
    out.append(element("rect", x=MARGIN, y=top, width=WIDTH - 2 * MARGIN, height=BOX, rx=6, class_=f"box {node.kind}"))
    out.append(element("text", short(node.title, TEXT_WIDTH), x=MARGIN + 12, y=top + 21, class_="name"))
    shown = f"sha256:{node.digest.hex[:24]}…" if node.digest is not None else short(node.name, TEXT_WIDTH)
    out.append(element("text", shown, x=MARGIN + 12, y=top + 40, class_="digest"))
    return out


def short(text: str, limit: int) -> str:
    """The text, with its middle left out where it is too long for a box."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[-(limit - 1 - head) :]}"
