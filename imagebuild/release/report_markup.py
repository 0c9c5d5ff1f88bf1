"""HTML and SVG as values: text from outside is escaped because there is no other way to put it in.

A child that is a `str` is text; only `element` and `joined` make `Markup`.  Attribute values are escaped likewise.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from imagebuild.errors import clean

VOID = frozenset({"meta", "br", "hr", "wbr"})
TEXT_LIMIT = 1 << 20
"""Characters of one piece of text."""


@dataclass(frozen=True, slots=True)
class Markup:
    """Finished HTML."""

    text: str


Child = str | Markup | None
Attribute = str | int | bool | None


def escaped(text: str) -> str:
    """Text as HTML: markup characters as entities; control characters and those that turn the direction of reading as
    U+FFFD, so that what a reviewer sees is what stands there."""
    return html.escape(clean(text, TEXT_LIMIT), quote=True)


def joined(children: Iterable[Child]) -> Markup:
    """Pieces one after the other; None is left out."""
    parts = []
    for child in children:
        if child is not None:
            parts.append(child.text if isinstance(child, Markup) else escaped(child))
    return Markup("".join(parts))


def element(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element.  `class_` is class, `aria_label` aria-label; True is an attribute without value, False and None none."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        words.append(shown if value is True else f'{shown}="{escaped(str(value))}"')
    opened = f"<{' '.join(words)}>"
    return Markup(opened if name in VOID else f"{opened}{joined(children).text}</{name}>")


def code(text: str) -> Markup:
    """A name, digest or command.  A short one is kept on one line of a table."""
    return element("code", text, class_="short" if len(text) <= 40 else None)


def link(address: str) -> Markup:
    """An address as a link; anything but http and https stays text, whatever it calls itself."""
    if not address.startswith(("https://", "http://")):
        return joined([address])
    return element("a", address, href=address, rel="noreferrer noopener")


def table(
    caption: Child, header: Iterable[Child], rows: Iterable[Sequence[Child]], *, class_: str | None = None
) -> Markup:
    """A table with a caption and column headers; the first cell of each row is the row's header."""
    head = element("thead", element("tr", *[element("th", one, scope="col") for one in header]))
    body = []
    for row in rows:
        first, *rest = row
        body.append(element("tr", element("th", first, scope="row"), *[element("td", one) for one in rest]))
    made = element("table", element("caption", caption), head, element("tbody", *body), class_=class_)
    return scrolled(made, caption)


def scrolled(inside: Markup, label: Child) -> Markup:
    """A part that is scrolled sideways by itself where the page is narrow, by keyboard too."""
    name = "wide part" if label is None else plain(label)
    return element("div", inside, class_="scroll", role="region", aria_label=name, tabindex=0)


def plain(child: str | Markup) -> str:
    """What somebody reads of it."""
    if isinstance(child, str):
        return child
    import re

    return html.unescape(re.sub(r"<[^>]*>", "", child.text))


def section(name: str, title: str, *children: Child) -> Markup:
    """A part of the page with its heading; `name` is its anchor."""
    return element(
        "section", element("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title"
    )
