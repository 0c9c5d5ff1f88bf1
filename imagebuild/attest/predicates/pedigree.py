"""CycloneDX `pedigree.patches`: what an overlay did to one package, as diffs, with where the change comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.overlay.changes import BlobChange, DeleteChange, EditChange, FileChange, PatchChange, StageChange
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.patch import Patch, format_patch
from imagebuild.overlay.patch_make import is_text, make_diff
from imagebuild.overlay.patch_parse import parse_patch

DIFF_LIMIT = 1 << 20
"""Bytes of one diff at most; a longer one is left out, its files are listed all the same."""
KINDS = {"upstream": "cherry-pick", "backport": "backport"}
"""Origins that CycloneDX has a word for; everything else is `unofficial`."""


@dataclass(frozen=True, slots=True)
class Touched:
    """What a path held before and holds after; None where there was or is nothing."""

    preimage: Digest | None
    postimage: Digest | None


def patches_of(
    overlay: Overlay, root: str, touched: Mapping[str, Touched], read: Callable[[Digest], bytes | None]
) -> Iterator[dict[str, Any]]:
    """One entry for each change of the overlay to files of `root`; `touched` by ROOT/relative path."""
    for change in overlay.changes:
        if isinstance(change, PatchChange):
            parsed = parse_patch(_bytes(overlay, change.patch))
            files = tuple(file for file in parsed.files if file.path.partition("/")[0] == root)
            if files:
                yield _entry(overlay, format_patch(Patch(files)))
        elif isinstance(change, FileChange) and change.to.partition("/")[0] == root:
            yield _entry(overlay, _whole_file(change.to, _bytes(overlay, change.file), touched, read))
        elif isinstance(change, EditChange) and change.path.partition("/")[0] == root:
            yield _entry(overlay, _edit(change, touched, read))
        elif isinstance(change, DeleteChange | BlobChange | StageChange) and any(_names(change, root)):
            yield _entry(overlay, None)


def _names(change: DeleteChange | BlobChange | StageChange, root: str) -> Iterator[bool]:
    places = change.out.values() if isinstance(change, StageChange) else [change.path or getattr(change, "glob", "")]
    for place in places:
        yield str(place).partition("/")[0] == root


def _bytes(overlay: Overlay, name: str) -> bytes:
    path = overlay.folder / name
    with io_faults(path, "reading"):
        return path.read_bytes()


def _whole_file(
    path: str, after: bytes, touched: Mapping[str, Touched], read: Callable[[Digest], bytes | None]
) -> bytes | None:
    known = touched.get(path)
    preimage = known.preimage if known is not None else None
    before = read(preimage) if preimage is not None else None
    if (preimage is not None and before is None) or not is_text(after) or not is_text(before or b""):
        return None
    return make_diff(path, before, after)


def _edit(change: EditChange, touched: Mapping[str, Touched], read: Callable[[Digest], bytes | None]) -> bytes | None:
    known = touched.get(change.path)
    before = read(known.preimage) if known is not None and known.preimage is not None else None
    find = change.find.encode("utf-8")
    if before is None or before.count(find) != 1:
        return None
    return make_diff(change.path, before, before.replace(find, change.replace.encode("utf-8")))


def _entry(overlay: Overlay, diff: bytes | None) -> dict[str, Any]:
    kind = KINDS.get(overlay.origin.kind, "unofficial") if overlay.origin is not None else "unofficial"
    out: dict[str, Any] = {"type": kind}
    shown: dict[str, Any] = {}
    if diff is not None and len(diff) <= DIFF_LIMIT:
        try:
            shown["text"] = {"contentType": "text/x-diff", "content": diff.decode("utf-8")}
        except UnicodeDecodeError:
            shown = {}
    if overlay.origin is not None and overlay.origin.url is not None:
        shown["url"] = overlay.origin.url
    if shown:
        out["diff"] = shown
    out["resolves"] = list(_resolves(overlay))
    return out


def _resolves(overlay: Overlay) -> Iterator[dict[str, Any]]:
    url = overlay.origin.url if overlay.origin is not None else None
    source = {"source": {"name": "upstream", "url": url}} if url is not None else {}
    for name in overlay.fixes:
        yield {"type": "security", "id": name, "name": name, **source}
    description = overlay.description.strip().splitlines()[0] if overlay.description.strip() else overlay.name
    yield {"type": "enhancement", "id": overlay.name, "name": overlay.name, "description": description, **source}
