"""Which Python distributions an image holds, found by their metadata folders, nothing run.

Follows packaging.python.org: Recording installed projects, Core metadata, Direct URL, name normalisation (PEP 503); and the
older `*.egg-info` and `*.egg-link` of setuptools, which Debian and `setup.py develop` still leave.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from imagebuild.content.canonical import load_json
from imagebuild.errors import InputError, RefusedError
from imagebuild.layer.entry import Absent, Found, Kind, Lookup, Unknown, View
from imagebuild.overlay.contents import Contents, is_complete, join, read_text, real_path
from imagebuild.overlay.record_rows import RecordRow, image_path, record_rows

_SEPARATORS = re.compile(r"[-_.]+")
_STDLIB = re.compile(r"(?:.*/)?lib(?:64)?/python3\.\d+\Z")


def normalise_name(name: str) -> str:
    """The one form of a distribution's name that is compared (PEP 503: lower case, runs of `-_.` become `-`)."""
    return _SEPARATORS.sub("-", name).lower()


@dataclass(frozen=True, slots=True)
class Distribution:
    """One installed distribution.

    `name` is normalised, `version` as its METADATA says (its folder's name where METADATA was not captured: then
    `unread` names it).  `info` is the metadata folder (or old egg-info file), `site` the folder that holds it.  `installer` is
    the word of INSTALLER (`pip`, `uv`), `debian` where the system's packages put it, else "".  `record` is the path of its
    RECORD, None where it has none.  `rows` maps image paths to the rows that list them.  `signatures` are RECORD.jws and
    RECORD.p7s.  `editable` is the project's folder in the image for an editable installation.
    """

    name: str
    version: str
    info: str
    site: str
    installer: str = ""
    record: str | None = None
    rows: Mapping[str, RecordRow] = field(default_factory=dict, repr=False, compare=False)
    signatures: tuple[str, ...] = ()
    editable: str | None = None
    unread: tuple[str, ...] = ()

    @property
    def dist_info(self) -> bool:
        """Whether this is a `*.dist-info` (the only form that has a RECORD)."""
        return self.info.endswith(".dist-info")

    @property
    def label(self) -> str:
        """What a message calls it."""
        return f"{self.name} {self.version} (/{self.info})"


@dataclass(frozen=True, slots=True)
class Places:
    """Where Python is, gathered in one walk over the view.

    `infos` are `*.dist-info`, `*.egg-info` and `*.egg-link` paths, `sites` folders that hold one or that are named as site folders,
    `venvs` folders with a pyvenv.cfg, `stdlibs` folders named like `lib/python3.12`.  `complete`: every layer was read.
    """

    infos: tuple[str, ...]
    sites: tuple[str, ...]
    stdlibs: tuple[str, ...]
    venvs: tuple[str, ...]
    complete: bool


_INFO = re.compile(r"(?:.*/)?[^/]+\.(?:dist-info|egg-info|egg-link)(?=/|\Z)")
_SITE = re.compile(r"(?:.*/)?(?:site|dist)-packages(?=/|\Z)")


def find_places(view: View, paths: Iterable[str] | None = None) -> Places:
    """Gathers the places of a view.

    `paths` may be any superset of the view's paths, the keys of all its layers' entries for instance: names are looked at
    first, and only what bears on Python is looked up, which spares a walk over everything.
    """
    infos: set[str] = set()
    sites: set[str] = set()
    venvs: set[str] = set()
    stdlibs: set[str] = set()
    for path in (path for path, _ in view.walk()) if paths is None else paths:
        if "-info" in path or path.endswith(".egg-link"):
            match = _INFO.match(path)
            if match is not None:
                infos.add(match[0])
        if "-packages" in path:
            match = _SITE.match(path)
            if match is not None:
                sites.add(match[0])
        if "lib" in path and _STDLIB.match(path):
            stdlibs.add(path)
        if path.endswith("pyvenv.cfg") and path.rpartition("/")[2] == "pyvenv.cfg":
            venvs.add(path.rpartition("/")[0])
    seen = sorted(path for path in infos if not isinstance(view.lookup(path), Absent))
    sites.update(path.rpartition("/")[0] for path in seen)
    return Places(
        tuple(seen),
        tuple(sorted(path for path in sites if _is_folder(view, path))),
        tuple(sorted(path for path in stdlibs if _is_folder(view, path))),
        tuple(sorted(path for path in venvs if isinstance(view.lookup(join(path, "pyvenv.cfg")), Found))),
        is_complete(view),
    )


def _is_folder(view: View, path: str) -> bool:
    found = view.lookup(path)
    return found.entry.kind is Kind.DIRECTORY if isinstance(found, Found) else isinstance(found, Unknown)


@dataclass(frozen=True, slots=True)
class Distributions:
    """All distributions of a view, in path order of their metadata, and what could not be found out."""

    places: Places
    items: tuple[Distribution, ...]
    not_proven: tuple[str, ...] = ()
    _owners: Mapping[str, tuple[Distribution, ...]] = field(default_factory=dict, repr=False, compare=False)
    _folders: Mapping[str, tuple[Distribution, ...]] = field(default_factory=dict, repr=False, compare=False)

    def owners(self, path: str) -> tuple[Distribution, ...]:
        """The distributions whose RECORD lists `path` (resolved image path)."""
        return self._owners.get(path, ())

    def folder_owners(self, folder: str) -> tuple[Distribution, ...]:
        """The distributions whose RECORD lists something below `folder`."""
        return self._folders.get(folder, ())

    def named(self, name: str, sites: Iterable[str] | None = None) -> tuple[Distribution, ...]:
        """Those of that name (any spelling); with `sites` only the ones in these folders, in their order."""
        wanted = normalise_name(name)
        found = tuple(item for item in self.items if item.name == wanted)
        if sites is None:
            return found
        return tuple(item for site in sites for item in found if item.site == site)

    def at(self, info: str) -> Distribution | None:
        """The distribution with that metadata folder."""
        return next((item for item in self.items if item.info == info), None)


def read_distributions(view: View, contents: Contents, places: Places | None = None) -> Distributions:
    """Every distribution that the read layers show.

    Metadata that is damaged is no error here (it may belong to a distribution that nobody touches): it is listed in
    `not_proven`, and whoever needs that distribution refuses.
    """
    places = find_places(view) if places is None else places
    not_proven: list[str] = []
    folders: dict[str, str] = {}
    items = [_read_one(view, contents, info, folders, not_proven) for info in places.infos]
    owners: dict[str, tuple[Distribution, ...]] = {}
    above: dict[str, tuple[Distribution, ...]] = {}
    for item in items:
        own: set[str] = set()
        for path in item.rows:
            owners[path] = (*owners.get(path, ()), item)
            folder = path.rpartition("/")[0]
            while folder and folder not in own:
                own.add(folder)
                above[folder] = (*above.get(folder, ()), item)
                folder = folder.rpartition("/")[0]
    return Distributions(places, tuple(items), tuple(not_proven), owners, above)


def _headers(text: str) -> dict[str, str]:
    """The first value of each header of a core metadata file, up to the blank line."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            break
        name, colon, value = line.partition(":")
        if colon and not line[:1].isspace():
            out.setdefault(name.strip().lower(), value.strip())
    return out


def _from_folder(info: str) -> tuple[str, str]:
    stem = info.rpartition("/")[2].rpartition(".")[0]
    name, _, rest = stem.partition("-")
    return name, re.sub(r"-py3\.\d+\Z", "", rest)


def _read_one(
    view: View, contents: Contents, info: str, folders: dict[str, str], not_proven: list[str]
) -> Distribution:
    site = info.rpartition("/")[0]
    unread: list[str] = []

    def text(name: str) -> str | None:
        path = join(info, name) if name else info
        found = _there(view, path)
        if isinstance(found, Unknown):
            unread.append(path)
            return None
        if not isinstance(found, Found):
            return None
        read = read_text(view, contents, path)
        if read is None:
            unread.append(path)
        return read

    name, version = _from_folder(info)
    if info.endswith(".egg-link"):
        target = text("")
        project = (target or "").splitlines()[:1]
        editable = project[0].strip().strip("/") if project and project[0].startswith("/") else None
        if editable is not None:
            editable = real_path(view, editable) or editable
        return Distribution(normalise_name(name), version, info, site, editable=editable, unread=tuple(unread))

    if info.endswith(".dist-info"):
        metadata = text("METADATA")
    else:
        entry = view.lookup(info)
        is_file = isinstance(entry, Found) and entry.entry.kind in (Kind.FILE, Kind.HARDLINK)
        metadata = text("" if is_file else "PKG-INFO")
    headers = _headers(metadata or "")
    name, version = headers.get("name", name), headers.get("version", version)

    installer = ((text("INSTALLER") if info.endswith(".dist-info") else None) or "").strip()
    if not installer and site.endswith("python3/dist-packages"):
        installer = "debian"
    rows: dict[str, RecordRow] = {}
    record: str | None = None
    signatures: tuple[str, ...] = ()
    editable = None
    if info.endswith(".dist-info"):
        path = f"{info}/RECORD"
        if not _is_absent(view, path):
            record = path
            data = text("RECORD")
            if data is not None:
                try:
                    rows = _rows(view, site, data, folders)
                except RefusedError as error:
                    not_proven.append(f"/{path}: {error.message}")
                    unread.append(path)
        signatures = tuple(
            f"{path}{suffix}" for suffix in (".jws", ".p7s") if isinstance(view.lookup(path + suffix), Found)
        )
        editable = _editable(text("direct_url.json"), f"{info}/direct_url.json", not_proven)
        if editable is not None:
            editable = real_path(view, editable) or editable
    for path in unread:
        if path.endswith(("/RECORD", "/METADATA")) and not any(path in text for text in not_proven):
            not_proven.append(f"/{path} was not read")
    return Distribution(
        normalise_name(name), version, info, site, installer, record, rows, signatures, editable, tuple(unread)
    )


def _there(view: View, path: str) -> Lookup:
    """The node that `path` leads to, links followed."""
    where = real_path(view, path)
    return Unknown(0) if where is None else view.lookup(where)


def _is_absent(view: View, path: str) -> bool:
    found = _there(view, path)
    return not isinstance(found, (Found, Unknown))


def _rows(view: View, site: str, text: str, folders: dict[str, str]) -> dict[str, RecordRow]:
    """The rows by image path, links in their folders followed; `folders` remembers those."""
    out: dict[str, RecordRow] = {}
    for row in record_rows(text.encode("utf-8", "surrogateescape")):
        if row.path:
            folder, _, name = image_path(site, row.path).rpartition("/")
            real = folders.get(folder)
            if real is None:
                real = folders[folder] = real_path(view, folder) or folder
            out[join(real, name)] = row
    return out


def _editable(text: str | None, path: str, not_proven: list[str]) -> str | None:
    """The project's folder where direct_url.json says that the installation is editable (Direct URL data structure,
    `dir_info.editable`, a `file:` URL)."""
    if text is None:
        return None
    try:
        value = load_json(text.encode("utf-8", "surrogateescape"), f"/{path}")
    except InputError as error:
        not_proven.append(error.message)
        return None
    if not isinstance(value, dict) or not isinstance(value.get("dir_info"), dict):
        return None
    url = value.get("url")
    if value["dir_info"].get("editable") is not True or not isinstance(url, str) or not url.startswith("file:"):
        return None
    try:
        return unquote(urlsplit(url).path).strip("/")
    except ValueError:
        not_proven.append(f"/{path}: the URL cannot be read")
        return None
