"""Compiled forms that would run instead of a changed Python source (images.md, Writing the layers, 7).

CPython loads `__pycache__/NAME.TAG.pyc` instead of `NAME.py` when the pyc's header fits the source: equal time and size, or for
an unchecked-hash pyc always (PEP 552, PEP 3147, PEP 488).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from imagebuild.layer.entry import Absent, Found, Kind, Unknown, View
from imagebuild.overlay.contents import is_below, join, real_path
from imagebuild.overlay.findings import Finding, Severity
from imagebuild.overlay.module_search import is_extension


class PycKind(str, Enum):
    """How a pyc is checked against its source (PEP 552)."""

    TIMESTAMP = "timestamp"
    CHECKED_HASH = "checked-hash"
    UNCHECKED_HASH = "unchecked-hash"


@dataclass(frozen=True, slots=True)
class PycHead:
    """The 16-byte header of a pyc: `magic` of the Python version; `mtime` and `size` of the source modulo 2**32 for TIMESTAMP (else None),
    `source_hash` (8 bytes, siphash of the source) for the other two (else b"")."""

    magic: bytes
    kind: PycKind
    mtime: int | None
    size: int | None
    source_hash: bytes

    def runs_for(self, mtime: int, size: int) -> bool:
        """Whether Python would run this pyc for a source with that time and size without reading the source."""
        if self.kind is PycKind.TIMESTAMP:
            return (self.mtime, self.size) == (mtime & 0xFFFFFFFF, size & 0xFFFFFFFF)
        return self.kind is PycKind.UNCHECKED_HASH


def parse_pyc_head(head: bytes) -> PycHead | None:
    """Reads the header (PEP 552); None for what no Python accepts: too short, no `\\r\\n` in the magic, unknown flags."""
    if len(head) < 16 or head[2:4] != b"\r\n":
        return None
    flags = int.from_bytes(head[4:8], "little")
    if flags == 0:
        return PycHead(
            head[:4],
            PycKind.TIMESTAMP,
            int.from_bytes(head[8:12], "little"),
            int.from_bytes(head[12:16], "little"),
            b"",
        )
    if flags & ~0b11 or not flags & 0b1:
        return None
    kind = PycKind.CHECKED_HASH if flags & 0b10 else PycKind.UNCHECKED_HASH
    return PycHead(head[:4], kind, None, None, head[8:16])


@dataclass(frozen=True, slots=True)
class Pyc:
    """One pyc of the base: its image path, entry, and header (None: no Python accepts it)."""

    path: str
    found: Found
    head: PycHead | None


@dataclass(frozen=True, slots=True)
class Bytecode:
    """What to do about the compiled forms of one source.

    `whiteouts` are paths to hide, `pycs` what was found there; `watched` paths whose absence the lock records (the folders that hold
    bytecode, where they are not there); `findings` compiled neighbours that win over the source; `not_proven` in words.
    """

    whiteouts: tuple[str, ...]
    pycs: tuple[Pyc, ...]
    watched: tuple[str, ...]
    findings: tuple[Finding, ...]
    not_proven: tuple[str, ...]


def find_bytecode(
    view: View,
    path: str,
    *,
    deleted: bool = False,
    environment: Mapping[str, str] | None = None,
    gone: Collection[str] = (),
) -> Bytecode:
    """The compiled forms of the source at `path` (resolved) that is replaced, added or (`deleted`) removed.

    An added source counts too: bytecode that an older copy left behind is as stale.  `environment` is the config's: PYTHONPYCACHEPREFIX moves
    the caches.  `gone` are files and folders that the overlay deletes anyway; they are no finding.  Paths that do not end in `.py` have no compiled form.
    """
    folder, _, name = path.rpartition("/")
    if not name.endswith(".py"):
        return Bytecode((), (), (), (), ())
    stem = name.removesuffix(".py")
    pycs: list[Pyc] = []
    watched: list[str] = []
    not_proven: list[str] = []
    caches = [join(folder, "__pycache__")]
    prefix = (environment or {}).get("PYTHONPYCACHEPREFIX", "")
    if prefix.startswith("/"):
        caches.append(join(prefix.strip("/"), folder))
    for cache in caches:
        real = real_path(view, cache)
        if real is None:
            not_proven.append(f"bytecode of /{path}: /{cache} may be a link in layers that were not read")
            continue
        children, complete = view.children(real)
        if not complete:
            not_proven.append(f"bytecode of /{path}: /{real} was not read whole")
        elif not children and isinstance(view.lookup(real), Absent):
            watched.append(real)
        for child, found in children.items():
            if child.startswith(stem + ".") and child.endswith(".pyc") and found.entry.kind is not Kind.DIRECTORY:
                pycs.append(Pyc(join(real, child), found, parse_pyc_head(found.data.head)))
    if deleted:
        legacy = join(folder, f"{stem}.pyc")
        known = view.lookup(legacy)
        if isinstance(known, Found):
            pycs.append(Pyc(legacy, known, parse_pyc_head(known.data.head)))
        elif isinstance(known, Unknown):
            not_proven.append(f"bytecode of /{path}: whether /{legacy} is there was not read")
        else:
            watched.append(legacy)
    findings = () if deleted else _neighbours(view, folder, stem, path, gone, not_proven)
    paths = tuple(sorted(item.path for item in pycs))
    return Bytecode(paths, tuple(pycs), tuple(watched), findings, tuple(not_proven))


def _neighbours(
    view: View, folder: str, stem: str, path: str, gone: Collection[str], not_proven: list[str]
) -> tuple[Finding, ...]:
    """What an import finds before `folder/stem.py`: a package of that name, then a compiled module."""
    children, complete = view.children(folder)
    if not complete:
        not_proven.append(f"compiled neighbours of /{path}: /{folder} was not read whole")
    out = []
    for child in children:
        where = join(folder, child)
        if is_below(where, gone):
            continue
        if is_extension(child, stem):
            message = f"Python loads this compiled module and never reads {stem}.py beside it: delete it in the overlay"
            out.append(Finding("overlay.compiled-neighbour", Severity.BLOCKING, where, message))
        elif child == stem and stem != "__init__":
            inside, _ = view.children(where)
            init = join(where, "__init__.py")
            if "__init__.py" in inside and not is_below(init, gone):
                message = f"Python imports this package and never reads {stem}.py beside it"
                out.append(Finding("overlay.package-wins", Severity.BLOCKING, where, message))
    return tuple(out)


_JIT_FOLDERS = frozenset({"jit", "aot", "jit_cache", "aot_cache"})
_JIT_MODULE = re.compile(r"[^/]+\.(?:so|hsaco|cubin)\Z")
_SHOWN = 3
_JIT_SOURCES = (".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".hip", ".jinja", ".json", ".csv")


def find_jit_caches(
    view: View, package: str, changed: Collection[str], gone: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Modules built beforehand from sources of the package folder `package` (as `aiter/jit/module_*.so`), which would be loaded
    in place of what a changed source would build.  Empty where nothing of `changed` lies in the package.

    Whether a module was built from a changed file cannot be read off it: these are warnings, one for each topmost cache folder
    (kernels come by the hundred), which names the first modules.  `gone` are deleted paths.
    """
    inside = package + "/"
    if not any(path.startswith(inside) and path.endswith(_JIT_SOURCES) for path in changed):
        return ()
    held: dict[str, list[str]] = {}
    for path in view.named(package):
        parts = path[len(inside) :].split("/")
        if path in changed or len(parts) < 2 or not _JIT_MODULE.match(parts[-1]):
            continue
        depth = next((number for number, part in enumerate(parts[:-1], 1) if part in _JIT_FOLDERS), 0)
        if not depth or is_below(path, gone):
            continue
        found = view.lookup(path)
        if isinstance(found, Found) and found.entry.kind is not Kind.DIRECTORY:
            held.setdefault(join(package, "/".join(parts[:depth])), []).append("/".join(parts[depth:]))
    out = []
    for folder, modules in sorted(held.items()):
        shown = ", ".join(sorted(modules)[:_SHOWN]) + (", …" if len(modules) > _SHOWN else "")
        message = f"built beforehand, perhaps from a changed source ({len(modules)}: {shown}): delete in the overlay those that were"
        out.append(Finding("overlay.jit-cache", Severity.WARNING, folder, message))
    return tuple(out)
