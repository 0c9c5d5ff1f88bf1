"""Where a root of a target lies in an image, found without running anything (images.md, Reading the base, 7)."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from imagebuild.errors import InputError, RefusedError, UnavailableError
from imagebuild.layer.entry import Found, Kind, Unknown, View
from imagebuild.overlay.contents import Contents, is_complete, join
from imagebuild.overlay.distributions import Distribution, Distributions, read_distributions
from imagebuild.overlay.import_hooks import Effect
from imagebuild.overlay.interpreters import Interpreter, RootConfig, default_interpreter, find_interpreters
from imagebuild.overlay.module_search import Hit, Place, Search, Shape, module_names, search
from imagebuild.overlay.search_path import SearchPath, Shadow, ShadowState, judge_hook, read_search_path


class RootSpec(Protocol):
    """What a target says of a root: exactly one of an import name, an absolute folder, and the site folder."""

    @property
    def python(self) -> str | None: ...

    @property
    def path(self) -> str | None: ...

    @property
    def purelib(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Root:
    """A root that was found.

    `folder` is the resolved image path that `NAME/relative` is relative to; `distribution` the one whose RECORD (or editable project) it
    is, None for none; `site` the folder of its search path that holds it ("" for a `path` root).  `evidence` says in words how it
    was found.  `shadows` lists every path whose presence or absence the answer rests on, for the lock to record; `not_proven` what
    unread layers, or hooks that could not be judged, leave open.
    """

    name: str
    folder: str
    distribution: Distribution | None
    site: str
    evidence: tuple[str, ...]
    shadows: tuple[Shadow, ...] = ()
    not_proven: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonLayout:
    """What `find_root` needs of a view, gathered once for all roots of a target."""

    distributions: Distributions
    paths: tuple[SearchPath, ...]
    default: Interpreter | None
    default_reason: str

    def import_order(self) -> tuple[str, ...]:
        """The folders in which the default interpreter looks for distributions, in order (`importlib.metadata` takes the first);
        every interpreter's where there is no default."""
        chosen = [path for path in self.paths if path.interpreter == self.default] or list(self.paths)
        return tuple(
            dict.fromkeys(entry.folder for path in chosen for entry in path.entries if entry.place is not Place.WORKDIR)
        )


def read_layout(
    view: View, contents: Contents, config: RootConfig, distributions: Distributions | None = None
) -> PythonLayout:
    """Distributions, interpreters and search paths of a view."""
    known = read_distributions(view, contents) if distributions is None else distributions
    interpreters = find_interpreters(view, contents, known.places)
    default, reason = default_interpreter(view, interpreters, config)
    paths = tuple(read_search_path(view, contents, known, item, config) for item in interpreters)
    return PythonLayout(known, paths, default, reason)


def find_root(
    spec: RootSpec,
    view: View,
    contents: Contents,
    config: RootConfig,
    *,
    name: str,
    layout: PythonLayout | None = None,
) -> Root:
    """The folder that `spec` means.

    Raises RefusedError `overlay.root-not-found`, `overlay.root-ambiguous` (several candidates and no interpreter that
    decides), `overlay.root-shadowed` (something else would be imported), `overlay.root-is-a-file`; InputError
    `overlay.bad-root`; UnavailableError `overlay.root-unread` where layers that were not read may hold it.
    """
    if spec.path is not None:
        return _path_root(spec.path, view, name)
    known = read_layout(view, contents, config) if layout is None else layout
    if spec.python is not None:
        return _python_root(spec.python, view, known, name)
    if spec.purelib:
        return _purelib_root(view, known, name)
    raise InputError("overlay.bad-root", f"root {name}: it says neither python, path nor purelib")


def _way_out(name: str, folder: str = "/FOLDER") -> str:
    return f"name the folder itself in target.yaml: `roots: {{{name}: {{path: {folder}}}}}`"


def _path_root(path: str, view: View, name: str) -> Root:
    plain = posixpath.normpath(path)
    if not path.startswith("/") or ".." in path.split("/"):
        raise InputError(
            "overlay.bad-root",
            f"root {name}: the path must be absolute and without `..`",
            expected="/an/absolute/folder",
            found=path,
        )
    written = plain.lstrip("/")
    folder = view.resolve(written)
    found = folder if isinstance(folder, Unknown) else view.lookup(folder)
    if isinstance(folder, Unknown) or isinstance(found, Unknown):
        raise _unread(name, f"/{written} may be there, or be a link", named=True)
    evidence = [f"target.yaml names {path}"]
    if folder != written:
        evidence.append(f"links lead to /{folder}")
    if isinstance(found, Found) and found.entry.kind is not Kind.DIRECTORY:
        raise RefusedError(
            "overlay.root-is-a-file",
            f"root {name}: /{folder} is no folder",
            expected="a folder",
            found=found.entry.kind.value,
        )
    state = ShadowState.PRESENT if isinstance(found, Found) else ShadowState.ABSENT
    if state is ShadowState.ABSENT:
        evidence.append("the base does not have it")
    return Root(name, folder, None, "", tuple(evidence), (Shadow(folder, "the root itself", state),))


def _unread(name: str, why: str, *, named: bool = False) -> UnavailableError:
    return UnavailableError(
        "overlay.root-unread",
        f"root {name}: it could not be found in the layers that were read: {why}",
        hint="read every layer: `imagebuild lock TARGET --complete`" + ("" if named else ", or " + _way_out(name)),
    )


def _ambiguous(name: str, candidates: Sequence[tuple[str, str]], why: str) -> RefusedError:
    listed = "; ".join(f"/{folder} ({reason})" for folder, reason in candidates)
    return RefusedError(
        "overlay.root-ambiguous",
        f"root {name}: several folders fit, and nothing decides between them: {why}",
        expected="one folder",
        found=listed,
        hint=_way_out(name, "/" + candidates[0][0]),
        details={"candidates": ["/" + folder for folder, _ in candidates]},
    )


def _purelib_root(view: View, layout: PythonLayout, name: str) -> Root:
    fits: dict[str, SearchPath] = {}
    for path in layout.paths:
        folder = path.interpreter.sites[0]
        if isinstance(view.lookup(folder), Found):
            fits.setdefault(folder, path)
    if layout.default is not None:
        own = [item for item in fits.items() if item[1].interpreter == layout.default]
        fits = dict(own) or fits
    if not fits:
        if not is_complete(view):
            raise _unread(name, "no site folder was seen")
        raise RefusedError("overlay.root-not-found", f"root {name}: the image has no site folder", hint=_way_out(name))
    if len(fits) > 1:
        if layout.default is None and not is_complete(view):
            raise _unread(name, layout.default_reason)
        listed = [(folder, path.interpreter.label) for folder, path in fits.items()]
        raise _ambiguous(name, listed, layout.default_reason)
    (folder, path) = next(iter(fits.items()))
    decided = path.interpreter == layout.default
    evidence = (layout.default_reason,) if decided else (f"the only site folder: {path.interpreter.label}",)
    not_proven = () if decided or is_complete(view) else (f"root {name}: {layout.default_reason}",)
    shadow = Shadow(folder, "the root itself", ShadowState.PRESENT)
    return Root(name, folder, None, folder, evidence, (shadow,), not_proven)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What one interpreter imports: by installed folders alone (`own`), and by its whole search path (`all`)."""

    path: SearchPath
    own: Search
    all: Search

    @property
    def search(self) -> Search:
        return self.own if self.own.folders else self.all


def _python_root(package: str, view: View, layout: PythonLayout, name: str) -> Root:
    candidates = []
    for path in layout.paths:
        own = search(view, layout.distributions, path.own(), path.served, package)
        whole = search(view, layout.distributions, path.entries, path.served, package)
        candidate = _Candidate(path, own, whole)
        first = candidate.search.first
        if first is not None and (own.folders or first.entry.place is not Place.WORKDIR):
            candidates.append(candidate)
    chosen, reasons = _choose(candidates, package, view, layout, name)
    hit = _settle(chosen[0], package, name)
    for candidate in chosen:
        _refuse_shadowed(candidate, hit, package, name)
    return _finish(chosen, hit, package, view, layout, name, reasons)


def _choose(
    candidates: Sequence[_Candidate], package: str, view: View, layout: PythonLayout, name: str
) -> tuple[list[_Candidate], list[str]]:
    """The default interpreter's candidate, or all of them where they agree."""
    if not candidates:
        why = f"no search path that was found holds {package}"
        if not is_complete(view):
            raise _unread(name, why)
        raise RefusedError(
            "overlay.root-not-found",
            f"root {name}: no interpreter of the image finds {package}",
            expected=f"a package {package} in a site folder, or where a .pth file or direct_url.json points",
            found="interpreters: "
            + ("; ".join(path.interpreter.label for path in layout.paths) or "none")
            + "".join(
                f"; {item.name} is editable: /{item.editable}" for item in layout.distributions.items if item.editable
            ),
            hint=_way_out(name),
        )
    own = [item for item in candidates if item.path.interpreter == layout.default]
    if own:
        return own, [layout.default_reason]
    if len({item.search.folders for item in candidates}) == 1:
        label = candidates[0].path.interpreter.label
        return list(candidates), [f"{label} finds it; {layout.default_reason}"]
    if layout.default is None and not is_complete(view):
        raise _unread(name, layout.default_reason)
    raise _ambiguous(
        name,
        [(item.search.folders[0], item.path.interpreter.label) for item in candidates],
        layout.default_reason if layout.default is None else f"{layout.default.label} finds none of them",
    )


def _settle(chosen: _Candidate, package: str, name: str) -> Hit:
    """The one folder; a module file and a namespace of several portions are refused."""
    found = chosen.search
    hit = found.first
    assert hit is not None
    if found.winner is None and len(found.portions) > 1:
        raise _ambiguous(
            name,
            [(item.path, item.entry.reason) for item in found.portions],
            f"{package} is a namespace package of several portions",
        )
    if hit.shape is Shape.MODULE:
        folder = hit.path.rpartition("/")[0]
        raise RefusedError(
            "overlay.root-is-a-file",
            f"root {name}: {package} is a single file, /{hit.path}",
            expected="a package, which is a folder",
            found="/" + hit.path,
            hint=_way_out(name, "/" + folder),
        )
    return hit


def _shadowed(name: str, package: str, hit: Hit, by: str, folder: str) -> RefusedError:
    return RefusedError(
        "overlay.root-shadowed",
        f"root {name}: another {package} than the installed one may be imported: {by}",
        expected=f"{package} from /{hit.path}",
        found=by,
        hint=f"{_way_out(name, '/' + folder)} to patch exactly that folder, or take what shadows it out of the base",
        details={"path": "/" + hit.path, "shadow": by},
    )


def _refuse_shadowed(chosen: _Candidate, hit: Hit, package: str, name: str) -> None:
    first, known = chosen.all.top, chosen.search.top
    # Another package of the same top-level name hides the whole dotted name, whether or not it has the rest.
    differs = first is not None and (known is None or first.path != known.path)
    other = first if differs else chosen.all.first
    if other is not None and other.path != hit.path:
        by = f"{other.entry.place.value} comes first ({other.entry.reason}): /{other.path}"
        raise _shadowed(name, package, hit, by, other.path)
    top = package.partition(".")[0]
    for hook in chosen.path.hooks:
        effect, why = judge_hook(hook, top)
        if effect is Effect.SHADOWS:
            raise _shadowed(name, package, hit, why, hit.path)


def _finish(
    chosen: Sequence[_Candidate],
    hit: Hit,
    package: str,
    view: View,
    layout: PythonLayout,
    name: str,
    evidence: list[str],
) -> Root:
    top = package.partition(".")[0]
    distribution = _owner(layout.distributions, hit)
    evidence.append(hit.why)
    if hit.entry.place in (Place.PTH, Place.FINDER, Place.PYTHONPATH, Place.USER_SITE):
        evidence.append(f"{hit.entry.place.value}: {hit.entry.reason}")
    if distribution is not None:
        evidence.append(f"it belongs to {distribution.label}")
        if distribution.editable is not None:
            evidence.append(f"an editable installation of /{distribution.editable}")
    shadows = [Shadow(hit.path, "the root itself", ShadowState.PRESENT)]
    not_proven: list[str] = []
    for candidate in chosen:
        not_proven += candidate.path.not_proven
        shadows += candidate.path.consulted
        for hook in candidate.path.hooks:
            effect, why = judge_hook(hook, top)
            (not_proven if effect is Effect.NOT_PROVEN else evidence).append(why)
        for entry in candidate.all.looked:
            shadows += _absent(view, entry.folder, top, entry.place.value)
        for item in candidate.all.passed:
            init = join(item.path, "__init__.py")
            shadows.append(Shadow(init, f"{item.entry.place.value}: a folder, no package", ShadowState.ABSENT))
        for item in candidate.all.unknown:
            shadows.append(Shadow(item.path, item.entry.place.value, ShadowState.NOT_PROVEN))
            not_proven.append(f"{item.entry.place.value}: whether /{item.path} is there ({item.why})")
        if layout.default != candidate.path.interpreter and not is_complete(view):
            not_proven.append(layout.default_reason)
    return Root(
        name,
        hit.path,
        distribution,
        hit.entry.folder,
        tuple(dict.fromkeys(evidence)),
        tuple(dict.fromkeys(shadows)),
        tuple(dict.fromkeys(f"root {name}: {text}" for text in not_proven)),
    )


def _absent(view: View, folder: str, top: str, reason: str) -> list[Shadow]:
    """What keeps a searched folder from holding the package: the folder's own absence, or that of each name."""
    children = view.children(folder)[0]
    if not children and not isinstance(view.lookup(folder), Found):
        return [Shadow(folder, reason, ShadowState.ABSENT)]
    return [
        Shadow(join(folder, item), reason, ShadowState.PRESENT if item in children else ShadowState.ABSENT)
        for item in (top, *module_names(top))
    ]


def _owner(distributions: Distributions, hit: Hit) -> Distribution | None:
    """The distribution whose RECORD lists the package's `__init__`, or else something below it, or whose editable project holds it."""
    owners = distributions.owners(join(hit.path, "__init__.py"))
    if owners:
        return owners[0]
    below = hit.path + "/"
    listed = [item for item in distributions.items if any(path.startswith(below) for path in item.rows)]
    if len(listed) == 1:
        return listed[0]
    projects = [
        item for item in distributions.items if item.editable is not None and below.startswith(item.editable + "/")
    ]
    return max(projects, key=lambda item: len(item.editable or ""), default=None)
