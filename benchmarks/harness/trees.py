"""Whether a way's result is the file tree that was asked for.

The expected tree is the base's with the changed files in it.  Everything is compared but times and extended attributes:
kind, permission bits, owner, sha256 of the data, link target.  Read with the standard library, not with what is measured.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from harness.registry import Registry

Node = tuple[str, int, int, int, str]
"""Kind, permission bits, owner, group, and digest or link target."""
Tree = dict[str, Node]

DERIVED = re.compile(
    r"\.dist-info/(RECORD|imagebuild\.json|sboms(/imagebuild\.cdx\.json)?)$|/__pycache__/[^/]+\.cpython-\d+\.pyc$"
)
"""What a way may derive from the change: RECORD, provenance, and bytecode that is no longer valid.  Only ours does."""


class _Padded:
    """A stream followed by zeros: umoci 0.4.7 ends its tar with the last byte of the last file, without the padding that
    the format asks for."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile) -> None:
        self._stream = stream
        self._left = 4 * tarfile.RECORDSIZE

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        if data or size < 0:
            return data
        self._left -= size
        return bytes(size) if self._left >= 0 else b""


def _nodes(path: Path) -> Iterator[tuple[str, Node]]:
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as stream:
        archive = tarfile.open(fileobj=cast(BinaryIO, _Padded(stream)), mode="r|")  # noqa: SIM115  holds nothing to close
        for member in archive:
            name = member.name.lstrip("/").removeprefix("./").rstrip("/")
            if name in ("", "."):
                continue
            value = member.linkname
            if member.isreg():
                data = archive.extractfile(member)
                assert data is not None
                value = hashlib.file_digest(cast(Any, data), "sha256").hexdigest()
            kind = member.type.decode("ascii").replace("\0", "0")
            # Symbolic links have no permission bits of their own: writers differ in what they note.
            mode = 0o777 if member.issym() else member.mode & 0o7777
            yield name, (kind, mode, member.uid, member.gid, value)


def apply(tree: Tree, layer: Path) -> None:
    """Puts one layer onto the tree (image-spec layer.md, Applying changesets)."""
    nodes, hidden = list(_nodes(layer)), set()
    for name, _ in nodes:
        folder, _, last = name.rpartition("/")
        if last == ".wh..wh..opq":
            hidden |= {path for path in tree if path.startswith(f"{folder}/")}
        elif last.startswith(".wh."):
            gone = f"{folder}/{last[4:]}".lstrip("/")
            hidden |= {path for path in tree if path == gone or path.startswith(f"{gone}/")}
    for path in hidden:
        del tree[path]
    for name, node in nodes:
        if name.rpartition("/")[2].startswith(".wh."):
            continue
        if node[0] == "1":
            node = tree[node[4].lstrip("/").removeprefix("./")]
        tree[name] = node


def base_tree(digest: str, layers: Sequence[Path], cache: Path) -> Tree:
    """The whole tree of a base, read once and kept by the base's digest."""
    kept = cache / f"{digest.removeprefix('sha256:')}.tree"
    if kept.is_file():
        found: Tree = pickle.loads(kept.read_bytes())
        return found
    tree: Tree = {}
    for layer in layers:
        apply(tree, layer)
    cache.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(tree))
    return tree


def faults(
    registry: Registry, repository: str, tag: str, base: Sequence[str], tree: Tree, changed: Mapping[str, bytes]
) -> list[str]:
    """What is wrong with `repository:tag`, at most 20 lines; [] where it is the base with the changed files.

    `base` are the digests of the base's layers, `tree` its files, `changed` the wanted bytes by path.
    """
    _, manifest = registry.manifest(repository, tag)
    layers = [layer["digest"] for layer in manifest["layers"]]
    if layers[: len(base)] != list(base):
        return [f"the base's layers are not the lowest ones: {layers[: len(base)]}"]
    config = json.loads(registry.blob(manifest["config"]["digest"]).read_bytes())
    if len(config["rootfs"]["diff_ids"]) != len(layers):
        return ["the config names another number of layers"]
    found = dict(tree)
    for digest in layers[len(base) :]:
        apply(found, registry.blob(digest))
    wanted = dict(tree)
    for path, data in changed.items():
        kind, mode, uid, gid, _ = wanted.get(path, ("0", 0o644, 0, 0, ""))
        wanted[path] = (kind, mode, uid, gid, hashlib.sha256(data).hexdigest())
    out = [
        f"{path}: {found.get(path)}, not {wanted.get(path)}"
        for path in sorted(found.keys() | wanted.keys())
        if found.get(path) != wanted.get(path) and not DERIVED.search(path)
    ]
    return out[:20]
