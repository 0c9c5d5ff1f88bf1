"""Files that follow from the changes: RECORDs, and the provenance file and SBOM in each patched distribution."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from imagebuild.build.contents import Contents
from imagebuild.build.origins import BROUGHT
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.overlay.patch import Patch, format_patch
from imagebuild.overlay.patch_apply import apply_patch
from imagebuild.overlay.patch_make import make_file_patch
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.overlay.provenance_file import ProvenanceBase, ProvenanceEntry, provenance_json
from imagebuild.target.lock_types import Inputs, LayerItem, PathFact, PlatformInputs

RECORD = "record:"
PROVENANCE = "provenance:"
SBOM = "sbom:"


def compile_patch(path: str, before: bytes, after: bytes) -> bytes:
    """The patch by which a derived file is made again without looking at the image."""
    return format_patch(Patch((make_file_patch(path.lstrip("/"), before, after),)))


def patched_paths(items: Iterable[LayerItem]) -> list[ProvenanceEntry]:
    """What a provenance file lists: changes, RECORDs and SBOMs; not itself, not new folders, not bytecode that goes with
    its source."""
    return [
        ProvenanceEntry(item.path, item.preimage, item.postimage)
        for item in items
        if item.origin.startswith(("change:", RECORD, SBOM, *BROUGHT))
    ]


def provenance_files(
    inputs: Inputs, changes: Collection[LayerItem], artefacts: Iterable[LayerItem] = ()
) -> dict[str, bytes]:
    """The provenance files of one platform by image path, all of one content, from the items of its layers.  A file that is
    brought and then changed is listed as what stands there in the end, against what the base had."""
    paths = [item.path for item in changes if item.origin.startswith(PROVENANCE)]
    if not paths:
        return {}
    brought = {entry.path: entry for entry in patched_paths(artefacts)}
    entries = dict(brought)
    for entry in patched_paths(changes):
        below = brought.get(entry.path)
        entries[entry.path] = entry if below is None else replace(entry, preimage=below.preimage)
    base = ProvenanceBase(inputs.base, inputs.base_digest)
    return dict.fromkeys(paths, provenance_json(inputs.content_id, base, entries.values()))


def derived_files(
    inputs: Inputs, platform: PlatformInputs, contents: Contents, read: Callable[[PathFact], bytes]
) -> dict[str, bytes]:
    """Bytes of the derived files of a locked platform, by image path.

    Raises RefusedError `lock.content-missing` where a preimage, a compiled patch or an SBOM is not to be had.
    """
    out = provenance_files(inputs, platform.changes, platform.artefacts)
    facts = {fact.path: fact for fact in platform.facts}
    for item in platform.changes:
        if item.origin.startswith(SBOM):
            assert item.postimage is not None
            document = contents.get(item.postimage)
            if document is None:
                raise _missing(item, item.postimage, inputs.target)
            out[item.path] = document
        elif item.kind == "file" and item.patch is not None:
            assert item.preimage is not None
            before = contents.get(item.preimage)
            if before is None and item.path in facts:
                before = read(facts[item.path])
            patch = contents.get(item.patch)
            if before is None or patch is None:
                raise _missing(item, item.preimage if before is None else item.patch, inputs.target)
            (file,) = parse_patch(patch).files
            out[item.path] = apply_patch(before, file.hunks, item.path)
    return out


def _missing(item: LayerItem, digest: Digest, target: str) -> RefusedError:
    return RefusedError(
        "lock.content-missing",
        f"what {item.path} is made from is neither in the content folder nor in the cache",
        expected=str(digest),
        hint=f"imagebuild lock {target}",
    )
