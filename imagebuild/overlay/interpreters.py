"""The Python interpreters of an image and the order of their site folders, read off the folders' names.

The order is that of CPython's `site` module, with the changes that Debian and Fedora make to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagebuild.layer.entry import Absent, Found, Kind, Unknown, View
from imagebuild.overlay.contents import Contents, join, read_text, real_path
from imagebuild.overlay.distributions import Places

_SITE = re.compile(r"(?:(?P<prefix>.*)/)?lib(?:64)?/python(?P<version>3\.\d+)/(?P<name>site|dist)-packages\Z")
_STDLIB = re.compile(r"(?:(?P<prefix>.*)/)?lib(?:64)?/python(?P<version>3\.\d+)\Z")
_PROGRAM = re.compile(r"python(3\.\d+)\Z")
_DEBIAN = "usr/lib/python3/dist-packages"


@dataclass(frozen=True, slots=True)
class RootConfig:
    """What of the image config bears on imports: `Env` lines, `WorkingDir`, `User`."""

    env: tuple[str, ...] = ()
    working_dir: str = "/"
    user: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """The environment; of two lines with one name the last counts, as in engines."""
        return dict(line.split("=", 1) for line in self.env if "=" in line)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One interpreter, or one virtual environment.

    `prefix` is its `sys.prefix`, `version` `3.X`, `stdlib` the folder of the standard library, `sites` the site folders in `sys.path` order
    (real paths), `user_site` whether the user's site folder is used, `own_sites` how many of `sites` stand before the user's
    (a virtual environment that sees the system's packages has its own first).
    """

    prefix: str
    version: str
    stdlib: str
    sites: tuple[str, ...]
    user_site: bool = True
    own_sites: int = 0

    @property
    def label(self) -> str:
        return f"Python {self.version} of /{self.prefix}"


def _may_exist(view: View, path: str) -> bool:
    where = real_path(view, path)
    return where is None or not isinstance(view.lookup(where), Absent)


def _exists(view: View, path: str) -> bool:
    where = real_path(view, path)
    return where is not None and isinstance(view.lookup(where), Found)


def _real_sites(view: View, folders: Sequence[str]) -> tuple[str, ...]:
    out: list[str] = []
    for folder in folders:
        real = real_path(view, folder) or folder
        if real not in out:
            out.append(real)
    return tuple(out)


def _system(view: View, prefix: str, version: str) -> Interpreter:
    """The interpreter installed in `prefix`: Debian's own has dist-packages, Fedora's looks in /usr/local first."""
    stdlib = join(prefix, f"lib/python{version}")
    local = f"usr/local/lib/python{version}"
    if prefix == "usr" and (_exists(view, _DEBIAN) or _exists(view, f"{local}/dist-packages")):
        folders = [f"{local}/dist-packages", _DEBIAN, f"usr/lib/python{version}/dist-packages"]
        return Interpreter(prefix, version, stdlib, _real_sites(view, folders))
    prefixes = ["usr/local", "usr"] if prefix == "usr" and not _exists(view, f"{local}/os.py") else [prefix]
    folders = []
    for place in prefixes:
        if _exists(view, join(place, f"lib64/python{version}/site-packages")):
            folders.append(join(place, f"lib64/python{version}/site-packages"))
        folders.append(join(place, f"lib/python{version}/site-packages"))
    if _exists(view, join(prefix, f"lib64/python{version}/os.py")):
        stdlib = join(prefix, f"lib64/python{version}")
    return Interpreter(prefix, version, stdlib, _real_sites(view, folders))


def read_venv(view: View, contents: Contents, prefix: str) -> dict[str, str] | None:
    """The keys of PREFIX/pyvenv.cfg (lower case), None where it is not there or was not captured."""
    text = read_text(view, contents, join(prefix, "pyvenv.cfg"))
    if text is None:
        return None
    out = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            out[key.strip().lower()] = value.strip()
    return out


def _venv(view: View, prefix: str, version: str, settings: Mapping[str, str]) -> Interpreter:
    own = _real_sites(view, [join(prefix, f"lib/python{version}/site-packages")])
    home = settings.get("home", "").strip("/")
    base = home.rpartition("/")[0]
    program = real_path(view, join(home, f"python{version}"))
    if program is not None and isinstance(view.lookup(program), Found):
        base = program.rpartition("/")[0].rpartition("/")[0]
    system = _system(view, base, version)
    if settings.get("include-system-site-packages", "").lower() == "true":
        sites = own + tuple(site for site in system.sites if site not in own)
        return Interpreter(prefix, version, system.stdlib, sites, True, len(own))
    return Interpreter(prefix, version, system.stdlib, own, False, len(own))


def find_interpreters(view: View, contents: Contents, places: Places) -> tuple[Interpreter, ...]:
    """Every interpreter that the view shows a site folder or a standard library of, in path order."""
    wanted: dict[tuple[str, str], None] = {}
    for folder in sorted({*places.sites, *places.stdlibs}):
        match = _SITE.match(folder) or _STDLIB.match(folder)
        if match is None:
            continue
        prefix, version = match["prefix"] or "", match["version"]
        if folder.endswith("/dist-packages") and prefix == "usr/local":
            prefix = "usr"
        if prefix.endswith("/.local") or prefix == ".local":
            continue
        if prefix in places.venvs or _may_exist(view, join(prefix, f"lib/python{version}/os.py")):
            wanted[prefix, version] = None
        elif prefix == "usr/local" or _may_exist(view, join(prefix, f"lib64/python{version}/os.py")):
            wanted["usr" if prefix == "usr/local" else prefix, version] = None
    out = []
    for prefix, version in sorted(wanted, key=lambda key: (key[0], int(key[1][2:]))):
        settings = read_venv(view, contents, prefix) if prefix in places.venvs else None
        out.append(_system(view, prefix, version) if settings is None else _venv(view, prefix, version, settings))
    return tuple(out)


def default_interpreter(
    view: View, interpreters: Sequence[Interpreter], config: RootConfig
) -> tuple[Interpreter | None, str]:
    """The interpreter that `python3` (else `python`) of PATH starts, and why; None and why where it cannot be told.

    A virtual environment is known by the pyvenv.cfg above the folder of the program as PATH names it, before links are followed
    (PEP 405); VIRTUAL_ENV alone decides only where PATH cannot be followed, since no interpreter reads it.
    """
    variables = config.variables
    path = variables.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    reason = "no folder of PATH holds python3"
    for name in ("python3", "python"):
        for folder in (item.strip("/") for item in path.split(":") if item.startswith("/")):
            found = _program(view, folder, name)
            if found is None:
                continue
            if isinstance(found, Unknown):
                reason = f"/{folder}/{name} of PATH lies in layers that were not read"
                break
            for item in interpreters:
                if _is_of(view, item, folder, found):
                    return item, f"{name} of PATH is /{folder}/{name}: {item.label}"
            reason = f"/{folder}/{name} of PATH is no interpreter whose folders were found"
            break
        else:
            continue
        break
    virtual = variables.get("VIRTUAL_ENV", "").strip("/")
    for item in interpreters:
        if virtual and item.prefix == (real_path(view, virtual) or virtual):
            return item, f"VIRTUAL_ENV is /{virtual}: {item.label}"
    return None, reason


def _program(view: View, folder: str, name: str) -> str | Unknown | None:
    where = view.resolve(join(folder, name))
    if isinstance(where, Unknown):
        return where
    found = view.lookup(where)
    if isinstance(found, Unknown):
        return found
    return where if isinstance(found, Found) and found.entry.kind in (Kind.FILE, Kind.HARDLINK) else None


def _is_of(view: View, item: Interpreter, folder: str, program: str) -> bool:
    above = real_path(view, folder.rpartition("/")[0])
    if above is not None and _exists(view, join(above, "pyvenv.cfg")):
        return item.prefix == above
    prefix = program.rpartition("/")[0].rpartition("/")[0]
    version = _PROGRAM.match(program.rpartition("/")[2])
    return item.prefix == prefix and (version is None or item.version == version[1])
