"""Which ROOT/relative path a path of a diff, or of a source tree, means.

A repository keeps a package under its own name (`vllm/envs.py`) or below a folder (`python/sglang/…`); a root holds the
installed package.  The mapping is decided over the whole diff: what the files that exist agree on holds for the new ones,
so that `tests/new.py` never lands inside a package.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

_USUAL_PREFIXES = ("", "src/", "python/", "lib/")


@dataclass(frozen=True, slots=True)
class WantedPath:
    """A path as the diff writes it; `new` where the diff creates it."""

    path: str
    new: bool


@dataclass(frozen=True, slots=True)
class Mapped:
    """Where a path goes: `target` ROOT/relative, or None; `several` where more than one root would do."""

    path: str
    target: str | None
    several: tuple[str, ...] = ()


def map_paths(
    wanted: Sequence[WantedPath],
    roots: Collection[str],
    folders: Collection[str],
    exists: Callable[[str], bool],
) -> dict[str, Mapped]:
    """Maps each path.

    `roots` are the names of all roots, `folders` those of them that stand for a folder (`path`, `purelib`) rather than a
    package, below which any path may lie; `exists` tells whether the base has a file.  In order: the path as it is, where
    its first component is a root; the path from a later component that is a root's name; the path below a folder root;
    and, where nothing else of the diff was found by name, the path below a package's root (a diff made inside it).
    """
    existing = [item.path for item in wanted if not item.new]
    by_name = {path: [c for c in _named(path, roots) if exists(c)] for path in existing}
    plain = any(path in found for path, found in by_name.items())
    out: dict[str, Mapped] = {}
    prefixes: set[str] = set()
    for path, found in by_name.items():
        if plain:
            found = [path] if path in found else []
        below = found or [f"{root}/{path}" for root in sorted(folders) if exists(f"{root}/{path}")]
        out[path] = _one(path, below)
        if found and len(found) == 1:
            prefixes.add(path[: len(path) - len(found[0])])
    if existing and not any(item.target for item in out.values()):
        for path in existing:
            out[path] = _one(path, [f"{root}/{path}" for root in sorted(roots) if exists(f"{root}/{path}")])
    inside = {
        item.target[: -len(item.path)] for item in out.values() if item.target and item.target.endswith("/" + item.path)
    }
    for item in wanted:
        if item.new:
            out[item.path] = _new(item.path, roots, prefixes, inside)
    return out


def _named(path: str, roots: Collection[str]) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[at:]) for at in range(len(parts) - 1) if parts[at] in roots]


def _one(path: str, found: list[str]) -> Mapped:
    if path in found:
        return Mapped(path, path)
    if len(found) > 1:
        return Mapped(path, None, tuple(found))
    return Mapped(path, found[0] if found else None)


def _new(path: str, roots: Collection[str], prefixes: set[str], inside: set[str]) -> Mapped:
    """A path that the diff creates: by the prefixes that its neighbours have shown, else by the usual ones."""
    usual = () if prefixes or inside else _USUAL_PREFIXES
    found = []
    for prefix in sorted(prefixes | set(usual)):
        rest = path.removeprefix(prefix)
        if path.startswith(prefix) and "/" in rest and rest.partition("/")[0] in roots:
            found.append(rest)
    if found:
        return _one(path, found)
    return _one(path, [start + path for start in sorted(inside)])
