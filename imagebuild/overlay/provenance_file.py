"""`imagebuild.json` in the dist-info of a patched distribution: what a running container can say of its patches
(images.md, Writing the layers, 11)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from imagebuild.content.canonical import document_json
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ProvenanceBase:
    """The pinned base: its name as written, and the digest of what was pinned (index or manifest)."""

    reference: str
    digest: Digest


@dataclass(frozen=True, slots=True)
class ProvenanceEntry:
    """One changed path (image path, without leading `/`); None for a side that does not exist.  Bytecode that goes with its source and
    the provenance files themselves are none."""

    path: str
    preimage: Digest | None
    postimage: Digest | None


def provenance_json(content_id: Digest, base: ProvenanceBase, entries: Iterable[ProvenanceEntry]) -> bytes:
    """The file's bytes: sorted, one fact a line, a final newline; equal facts give equal bytes whatever the order.

    Only what is needed to check the image stands in it: content id, base, and the digest of each path before and after (`absent`
    where there is none).  Raises RefusedError `overlay.provenance-path` for a path twice and for one that is not UTF-8.
    """
    files: dict[str, dict[str, str]] = {}
    for entry in entries:
        path = "/" + entry.path.lstrip("/")
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            raise _bad_path(path, "is not UTF-8") from None
        if path in files:
            raise _bad_path(path, "stands in the changes twice")
        files[path] = {"preimage": _text(entry.preimage), "postimage": _text(entry.postimage)}
    return document_json(
        {
            "kind": "imagebuild-provenance",
            "schemaVersion": SCHEMA_VERSION,
            "content_id": str(content_id),
            "base": {"reference": base.reference, "digest": str(base.digest)},
            "files": files,
        }
    )


def _text(digest: Digest | None) -> str:
    return "absent" if digest is None else str(digest)


def _bad_path(path: str, what: str) -> RefusedError:
    return RefusedError(
        "overlay.provenance-path",
        f"a changed path cannot be written into the provenance file: it {what}: {path!a}",
        expected="distinct paths in UTF-8",
    )
