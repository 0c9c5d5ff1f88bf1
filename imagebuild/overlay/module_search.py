"""Where an import would find a package, folder by folder, as `importlib.machinery.PathFinder` looks (Python language reference,
The import system; PEP 420 for namespace packages).  Nothing is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from imagebuild.layer.entry import Absent, Found, Kind, View
from imagebuild.overlay.contents import join, real_path
from imagebuild.overlay.distributions import Distributions


class Shape(str, Enum):
    """What a name is in one folder of the search path."""

    PACKAGE = "package"
    """A folder with `__init__`: the search ends here."""
    MODULE = "module"
    """A file: the search ends here."""
    PORTION = "portion"
    """A folder without `__init__`: one portion of a namespace package, used only where no package or module follows."""
    UNKNOWN = "unknown"
    """Layers that were not read may hold it."""


class Place(str, Enum):
    """Why a folder is searched, in the words of messages."""

    WORKDIR = "WORKDIR"
    PYTHONPATH = "PYTHONPATH"
    STDLIB = "standard library"
    USER_SITE = "user site"
    SITE = "site folder"
    PTH = ".pth"
    FINDER = "editable finder"

    @property
    def is_own(self) -> bool:
        """Whether what an installer installed stands here; the other places can only hide it."""
        return self in (Place.SITE, Place.PTH, Place.FINDER)


@dataclass(frozen=True, slots=True)
class PathEntry:
    """One folder (real path) of a search path, and what put it there."""

    place: Place
    folder: str
    reason: str


@dataclass(frozen=True, slots=True)
class Hit:
    """What one folder holds under the name: `path` the package's folder (real path) or the module's file."""

    shape: Shape
    path: str
    entry: PathEntry
    why: str


def module_names(name: str) -> tuple[str, ...]:
    """The plain file names that make a module `name`; compiled ones with an interpreter's tag come on top."""
    return (f"{name}.py", f"{name}.pyc", f"{name}.so", f"{name}.abi3.so")


def is_extension(file_name: str, name: str) -> bool:
    """Whether a file is a compiled module `name`: NAME.so, NAME.abi3.so, NAME.cpython-312-x86_64-linux-gnu.so."""
    if not file_name.startswith(name + ".") or not file_name.endswith(".so"):
        return False
    tag = file_name[len(name) + 1 : -3]
    return tag in ("", "abi3") or ("." not in tag and tag.startswith(("cpython-", "pypy", "graalpy")))


def _makes_module(view: View, folder: str, children: dict[str, Found], name: str) -> str | None:
    """The file of `folder` that makes a module `name`: a regular one, or a link that does not dangle."""
    for item, found in children.items():
        if not item.startswith(name) or not (item in module_names(name) or is_extension(item, name)):
            continue
        if found.entry.kind is Kind.SYMLINK:
            real = real_path(view, join(folder, item))
            target = None if real is None else view.lookup(real)
            if isinstance(target, Absent) or (isinstance(target, Found) and target.entry.kind is Kind.DIRECTORY):
                continue
        elif found.entry.kind not in (Kind.FILE, Kind.HARDLINK):
            continue
        return item
    return None


def find_module(view: View, distributions: Distributions, entry: PathEntry, name: str) -> Hit | None:
    """What `entry.folder` holds under `name`; None for nothing, proved."""
    folder = real_path(view, entry.folder)
    if folder is None:
        return Hit(Shape.UNKNOWN, join(entry.folder, name), entry, f"/{entry.folder} may be a link")
    children, complete = view.children(folder)
    path = join(folder, name)
    portion: Hit | None = None
    if name in children:
        real = real_path(view, path)
        if real is None:
            return Hit(Shape.UNKNOWN, path, entry, f"/{path} leads to what was not read")
        shape = _folder_shape(view, distributions, real)
        if shape is not None:
            portion = Hit(shape, real, entry, f"/{path} is there")
            if shape is not Shape.PORTION:
                return portion
    file = _makes_module(view, folder, children, name)
    if file is not None:
        return Hit(Shape.MODULE, join(folder, file), entry, f"/{join(folder, file)} is there")
    if complete or isinstance(view.lookup(folder), Absent):
        return portion
    owners = distributions.owners(join(path, "__init__.py"))
    if owners:
        return Hit(Shape.PACKAGE, path, entry, f"/{owners[0].record} lists it")
    return Hit(Shape.UNKNOWN, path, entry, f"/{folder} was not read whole")


def _folder_shape(view: View, distributions: Distributions, folder: str) -> Shape | None:
    """The shape of a folder, None for what is no folder."""
    found = view.lookup(folder)
    if isinstance(found, Found) and found.entry.kind is not Kind.DIRECTORY:
        return None
    children, complete = view.children(folder)
    if not children and isinstance(found, Absent):
        return None
    if _makes_module(view, folder, children, "__init__") or distributions.owners(join(folder, "__init__.py")):
        return Shape.PACKAGE
    return Shape.PORTION if complete else Shape.UNKNOWN


@dataclass(frozen=True, slots=True)
class Search:
    """The answer for one search path.

    `winner` is the package or module that an import gives (None: none, or a namespace package), `portions` the folders of the
    namespace package that it gives then, `unknown` the folders before the winner of which it is not known, `looked` every folder before the
    winner that was proved to hold nothing under the name, `passed` the folders without `__init__` that the winner beats.
    `top` is what the first component of a dotted name is found as (the winner itself for a plain name).
    """

    winner: Hit | None
    portions: tuple[Hit, ...]
    unknown: tuple[Hit, ...]
    looked: tuple[PathEntry, ...]
    passed: tuple[Hit, ...] = ()
    top: Hit | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """The real folders of what was found; () where nothing was."""
        return (self.winner.path,) if self.winner is not None else tuple(item.path for item in self.portions)

    @property
    def first(self) -> Hit | None:
        return self.winner if self.winner is not None else (self.portions[0] if self.portions else None)


def search(
    view: View,
    distributions: Distributions,
    entries: Sequence[PathEntry],
    served: Sequence[tuple[str, PathEntry]],
    name: str,
) -> Search:
    """What `import NAME` (dotted) finds along `entries`; `served` are (package name, its folder) of finders that are asked last."""
    top, _, rest = name.partition(".")
    portions: dict[str, Hit] = {}
    unknown: list[Hit] = []
    looked: list[PathEntry] = []
    winner: Hit | None = None
    for entry in entries:
        hit = find_module(view, distributions, entry, top)
        if hit is None:
            looked.append(entry)
        elif hit.shape is Shape.UNKNOWN:
            unknown.append(hit)
        elif hit.shape is Shape.PORTION:
            portions.setdefault(hit.path, hit)
        else:
            winner = hit
            break
    if winner is None and not portions:
        for package, entry in served:
            real = real_path(view, entry.folder)
            if package == top and real is not None:
                shape = _folder_shape(view, distributions, real)
                if shape is not None:
                    winner = Hit(shape, real, entry, entry.reason)
                    break
    found = tuple(portions.values())
    passed = found if winner is not None else ()
    if not rest:
        return Search(winner, () if winner else found, tuple(unknown), tuple(looked), passed, winner)
    if winner is not None and winner.shape is Shape.MODULE:
        return Search(None, (), tuple(unknown), tuple(looked), passed, winner)
    above = {item.path: item.entry for item in ([winner] if winner is not None else found)}
    below = [PathEntry(entry.place, path, entry.reason) for path, entry in above.items()]
    inner = search(view, distributions, below, (), rest)

    def outer(hit: Hit) -> Hit:
        return replace(hit, entry=above[hit.entry.folder])

    return Search(
        None if inner.winner is None else outer(inner.winner),
        tuple(map(outer, inner.portions)),
        (*unknown, *map(outer, inner.unknown)),
        tuple(looked),
        passed,
        winner,
    )
