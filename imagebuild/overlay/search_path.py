"""The search path of one interpreter of an image: `sys.path` as `site` would build it, and the hooks that run on the way
(Python library reference, modules `sys` and `site`; using Python, environment variables)."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from imagebuild.layer.entry import Absent, Found, View
from imagebuild.overlay.contents import Contents, join, read_text, real_path
from imagebuild.overlay.distributions import Distributions
from imagebuild.overlay.import_hooks import Effect, finder_mapping, imported_modules, judge_line, judge_text
from imagebuild.overlay.interpreters import Interpreter, RootConfig, read_venv
from imagebuild.overlay.module_search import PathEntry, Place, Shape, find_module


class ShadowState(str, Enum):
    """What is known of a path that could hide a package; the values are those of the lock's facts."""

    ABSENT = "absent"
    PRESENT = "present"
    NOT_PROVEN = "not-proven"


@dataclass(frozen=True, slots=True)
class Shadow:
    """A path whose presence or absence the finding of a root rests on; PRESENT ones were judged harmless."""

    path: str
    reason: str
    state: ShadowState


@dataclass(frozen=True, slots=True)
class Hook:
    """Code that runs at start: an `import` line of the `.pth` file `path`, or a whole customize module (`line` is "").

    `text` is None where it was not captured.
    """

    path: str
    line: str
    text: str | None
    modules: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SearchPath:
    """`entries` in order; `served` packages of editable finders, asked last; `hooks`; the .pth files that were `consulted`;
    `not_proven` in words."""

    interpreter: Interpreter
    entries: tuple[PathEntry, ...]
    served: tuple[tuple[str, PathEntry], ...]
    hooks: tuple[Hook, ...]
    consulted: tuple[Shadow, ...]
    not_proven: tuple[str, ...]

    def own(self) -> tuple[PathEntry, ...]:
        """The folders that installers fill."""
        return tuple(entry for entry in self.entries if entry.place.is_own)


def home_folders(view: View, contents: Contents, config: RootConfig) -> tuple[str, ...]:
    """The home folders that a user site may lie in: that of HOME or of the config's user, and root's (images are often run as root
    whatever they say)."""
    out: list[str] = []
    home = config.variables.get("HOME", "")
    user = config.user.partition(":")[0]
    if home.startswith("/"):
        out.append(home.strip("/"))
    elif user not in ("", "root", "0"):
        passwd = read_text(view, contents, "etc/passwd") or ""
        lines = [line.split(":") for line in passwd.splitlines()]
        known = [parts[5].strip("/") for parts in lines if len(parts) > 5 and user in (parts[0], parts[2])]
        out += known[:1] or ([f"home/{user}"] if not user.isdigit() else [])
    if "root" not in out:
        out.append("root")
    return tuple(out)


def _absolute(path: str, working_dir: str) -> str:
    return posixpath.normpath(posixpath.join("/", working_dir, path)).lstrip("/")


def _switch(variables: Mapping[str, str], name: str) -> bool:
    """Whether a variable of Python's that counts as soon as it is not empty is set."""
    return variables.get(name, "") != ""


def read_search_path(
    view: View, contents: Contents, distributions: Distributions, interpreter: Interpreter, config: RootConfig
) -> SearchPath:
    """The order is CPython's: the working directory (`python -m`, `python -c`), PYTHONPATH, the standard library, a virtual
    environment's own site folder, the user's, the other site folders; each site folder is followed by what its `.pth` files
    add, in the files' order by name."""
    builder = _Builder(view, contents, distributions, interpreter, config)
    return builder.build()


class _Builder:
    """Mutable while one search path is put together."""

    def __init__(
        self,
        view: View,
        contents: Contents,
        distributions: Distributions,
        interpreter: Interpreter,
        config: RootConfig,
    ) -> None:
        self._view = view
        self._contents = contents
        self._distributions = distributions
        self._interpreter = interpreter
        self._config = config
        self._entries: list[PathEntry] = []
        self._served: list[tuple[str, PathEntry]] = []
        self._hooks: list[Hook] = []
        self._consulted: list[Shadow] = []
        self._not_proven: list[str] = []

    def build(self) -> SearchPath:
        variables = self._config.variables
        interpreter = self._interpreter
        if not _switch(variables, "PYTHONSAFEPATH"):
            self._add(Place.WORKDIR, _absolute("", self._config.working_dir), "WORKDIR of the config")
        for item in variables["PYTHONPATH"].split(":") if variables.get("PYTHONPATH") else ():
            self._add(Place.PYTHONPATH, _absolute(item, self._config.working_dir), "PYTHONPATH of the config")
        if _switch(variables, "PYTHONHOME"):
            self._not_proven.append("PYTHONHOME of the config moves the interpreter's own folders")
        self._add(Place.STDLIB, interpreter.stdlib, f"standard library of {interpreter.label}")
        settings = join(interpreter.prefix, "pyvenv.cfg")
        if not isinstance(self._view.lookup(settings), Absent):
            known = read_venv(self._view, self._contents, interpreter.prefix) is not None
            state = ShadowState.PRESENT if known else ShadowState.NOT_PROVEN
            self._consulted.append(Shadow(settings, "settings of a virtual environment", state))
            if not known:
                self._not_proven.append(f"/{settings}: whether there is such a file, and what it says, was not read")
        for site in interpreter.sites[: interpreter.own_sites]:
            self._site(Place.SITE, site)
        if interpreter.user_site and not _switch(variables, "PYTHONNOUSERSITE"):
            for folder in self._user_sites(variables):
                self._site(Place.USER_SITE, folder)
        for site in interpreter.sites[interpreter.own_sites :]:
            self._site(Place.SITE, site)
        self._customize("sitecustomize")
        if interpreter.user_site and not _switch(variables, "PYTHONNOUSERSITE"):
            self._customize("usercustomize")
        return SearchPath(
            interpreter,
            tuple(self._entries),
            tuple(self._served),
            tuple(self._hooks),
            tuple(self._consulted),
            tuple(self._not_proven),
        )

    def _user_sites(self, variables: Mapping[str, str]) -> list[str]:
        tail = f"lib/python{self._interpreter.version}/site-packages"
        base = variables.get("PYTHONUSERBASE", "")
        if base:
            return [join(_absolute(base, self._config.working_dir), tail)]
        return [join(home, f".local/{tail}") for home in home_folders(self._view, self._contents, self._config)]

    def _add(self, place: Place, folder: str, reason: str) -> None:
        real = real_path(self._view, folder)
        where = folder if real is None else real
        known = {(entry.folder, entry.place.is_own) for entry in self._entries}
        if (where, place.is_own) not in known:
            self._entries.append(PathEntry(place, where, reason))

    def _site(self, place: Place, folder: str) -> None:
        self._add(place, folder, f"/{folder}")
        folder = real_path(self._view, folder) or folder
        children, _ = self._view.children(folder)
        for name in sorted(children):
            if name.endswith(".pth") and not name.startswith("."):
                self._pth(place, folder, name)

    def _pth(self, place: Place, site: str, name: str) -> None:
        path = join(site, name)
        text = read_text(self._view, self._contents, path)
        state = ShadowState.NOT_PROVEN if text is None else ShadowState.PRESENT
        self._consulted.append(Shadow(path, "a .pth file of the site folder", state))
        if text is None:
            self._not_proven.append(f"/{path}: a .pth file that was not read")
            return
        pth_place = Place.PTH if place is Place.SITE else place
        for line in (raw.rstrip() for raw in text.splitlines()):
            if not line.strip() or line.startswith("#"):
                continue
            if line.startswith(("import ", "import\t")):
                modules = self._modules(site, line)
                self._hooks.append(Hook(path, line, line, modules))
                for text_of_module in modules.values():
                    for package, served in (finder_mapping(text_of_module) or {}).items():
                        entry = PathEntry(Place.FINDER, _absolute(served, "/"), f"/{path}: editable finder")
                        self._served.append((package, entry))
                continue
            folder = posixpath.normpath(posixpath.join("/", site, line)).lstrip("/")
            real = real_path(self._view, folder)
            if real is None or not isinstance(self._view.lookup(real), Absent):
                self._add(pth_place, folder, f"/{path}")

    def _modules(self, site: str, line: str) -> dict[str, str]:
        out = {}
        for module in imported_modules(line):
            text = read_text(self._view, self._contents, join(site, module + ".py")) if "." not in module else None
            if text is not None:
                out[module] = text
        return out

    def _customize(self, name: str) -> None:
        """Only the first one of the search path runs; the working directory is not on the path yet at that time."""
        unread: list[str] = []
        for entry in self._entries:
            if entry.place is Place.WORKDIR:
                continue
            hit = find_module(self._view, self._distributions, entry, name)
            if hit is None or hit.shape is Shape.PORTION:
                if isinstance(self._view.lookup(entry.folder), Found):
                    self._consulted.append(Shadow(join(entry.folder, f"{name}.py"), name, ShadowState.ABSENT))
                continue
            if hit.shape is Shape.UNKNOWN:
                self._consulted.append(Shadow(join(entry.folder, f"{name}.py"), name, ShadowState.NOT_PROVEN))
                unread.append(f"/{entry.folder}")
                continue
            if real_path(self._view, hit.path) is None:
                self._consulted.append(Shadow(hit.path, name, ShadowState.NOT_PROVEN))
                self._not_proven.append(f"/{hit.path} runs at start and leads to what was not read")
                break
            text = read_text(self._view, self._contents, hit.path) if hit.path.endswith(".py") else None
            self._consulted.append(Shadow(hit.path, name, ShadowState.PRESENT))
            self._hooks.append(Hook(hit.path, "", text))
            break
        if unread:
            self._not_proven.append(f"whether {', '.join(unread)} holds {name}: not read whole")


def judge_hook(hook: Hook, package: str) -> tuple[Effect, str]:
    """What a hook does to imports of `package`, and why, for messages."""
    where = f"/{hook.path}"
    if hook.line:
        verdict = judge_line(hook.path.rpartition("/")[2], hook.line, package, dict(hook.modules))
        return verdict.effect, f"{where}: an import line: {verdict.why}"
    if hook.text is None:
        return Effect.SHADOWS, f"{where} runs at start and is no text that was read"
    verdict = judge_text(hook.text, package)
    return verdict.effect, f"{where} runs at start: {verdict.why}"
