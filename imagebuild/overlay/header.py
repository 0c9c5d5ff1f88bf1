"""A patch's own provenance header (DEP-3, with Yocto's Upstream-Status) against overlay.yaml: they must agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from imagebuild.errors import InputError, SeveralErrors
from imagebuild.overlay.document import Overlay


def check_header(overlay: Overlay, patch: str, fields: Mapping[str, str]) -> None:
    """Compares the header `fields` of the patch file `patch` (names in any case) with the overlay's own statements.

    A field that only one side has is no contradiction, nor are the free texts Subject and Description.  Raises
    InputError `overlay.header-disagrees`, or SeveralErrors of them.
    """
    faults: list[InputError] = []
    for name, text in fields.items():
        compare = _COMPARE.get(name.lower())
        mine = None if compare is None else compare(overlay, " ".join(text.split()))
        if mine is not None:
            faults.append(
                InputError(
                    "overlay.header-disagrees",
                    f"{overlay.folder / patch}: the header's {name} is not what overlay.yaml says",
                    expected=mine,
                    found=text,
                    hint="correct the one that is wrong; overlay.yaml is what evidence and waivers are made from",
                    details={"file": str(overlay.folder / patch), "field": name},
                )
            )
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise SeveralErrors(faults)


def _differs(mine: str | None, theirs: str) -> str | None:
    return mine if mine is not None and mine != theirs else None


def _origin(overlay: Overlay, text: str) -> str | None:
    """`Origin: KIND, URL` or `Origin: KIND, commit:ID`; the kind may be missing (DEP-3)."""
    origin = overlay.origin
    if origin is None:
        return None
    kind, comma, rest = text.partition(",")
    if kind.strip().lower() in ("upstream", "backport", "vendor", "other"):
        if kind.strip().lower() != origin.kind:
            return origin.kind
        text = rest.strip() if comma else ""
    commit = re.match(r"commit:\s*([0-9a-fA-F]+)", text)
    if commit and origin.commit is not None:
        theirs = commit.group(1).lower()
        same = theirs.startswith(origin.commit) or origin.commit.startswith(theirs)
        return None if same else f"commit:{origin.commit}"
    if text.startswith(("http://", "https://")) and origin.url is not None:
        return _differs(origin.url, text)
    return None


def _forwarded(overlay: Overlay, text: str) -> str | None:
    mine = overlay.forwarded
    if mine is None or (text.lower() == "yes" and mine.startswith("http")):
        return None
    return _differs(mine, text.lower() if text.lower() in ("no", "not-needed") else text)


def _upstream_status(overlay: Overlay, text: str) -> str | None:
    """Yocto writes `Submitted [URL]`: the word counts."""
    word = re.split(r"[\s\[(:]", text, maxsplit=1)[0]
    return _differs(overlay.upstream_status, word)


def _last_update(overlay: Overlay, text: str) -> str | None:
    return _differs(None if overlay.last_update is None else overlay.last_update.isoformat(), text)


_COMPARE: Mapping[str, Callable[[Overlay, str], str | None]] = {
    "origin": _origin,
    "author": lambda overlay, text: _differs(overlay.author, text),
    "from": lambda overlay, text: _differs(overlay.author, text),
    "forwarded": _forwarded,
    "applied-upstream": lambda overlay, text: _differs(overlay.applied_upstream, text),
    "last-update": _last_update,
    "upstream-status": _upstream_status,
}
