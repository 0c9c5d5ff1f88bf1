"""What an installer makes of a wheel, without running one (packaging.python.org, Binary distribution format, Installing
a wheel; Entry points; Recording installed projects).

Equal to what pip leaves on disk, with these differences, each on purpose: INSTALLER says `imagebuild`; no bytecode is
made, so RECORD has no row of one; direct_url.json is never written, since the place that a file came from may change
while the file does not; the wheel's own signatures, which speak of another RECORD, are left out; scripts are executable
even where the wheel was made on a system that knows no such bit.
"""

from __future__ import annotations

import configparser
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from imagebuild.content.digest import Digest
from imagebuild.errors import clean
from imagebuild.overlay.contents import join
from imagebuild.overlay.record_rows import format_path, row_path
from imagebuild.overlay.wheel_archive import WheelArchive, bad_wheel
from imagebuild.overlay.wheel_hashes import format_hash

INSTALLER = b"imagebuild\n"
FILE_MODE = 0o644
SCRIPT_MODE = 0o755
SHEBANG_LIMIT = 127
"""Bytes of a script's first line that Linux reads."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Where an interpreter's installer puts things: image folders without leading `/` (sysconfig's install scheme).

    `headers` is the folder that gets one folder a distribution; `interpreter` the absolute path that scripts name.
    """

    purelib: str
    platlib: str
    scripts: str
    headers: str
    data: str
    interpreter: str

    def to_json(self) -> dict[str, str]:
        return {
            "purelib": self.purelib,
            "platlib": self.platlib,
            "scripts": self.scripts,
            "headers": self.headers,
            "data": self.data,
            "interpreter": self.interpreter,
        }


@dataclass(frozen=True, slots=True)
class MadeData:
    """Bytes that the installation itself makes."""

    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def sha256(self) -> Digest:
        return Digest.of(self.data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


@dataclass(frozen=True, slots=True)
class MemberData:
    """The bytes of one member of a wheel, as they are in it."""

    archive: WheelArchive
    name: str

    @property
    def size(self) -> int:
        return self.archive.members[self.name].size

    @property
    def sha256(self) -> Digest:
        return self.archive.members[self.name].sha256

    def open(self) -> BinaryIO:
        return self.archive.open(self.name)


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """One file of an installed wheel: image path, permission bits, and its bytes."""

    path: str
    mode: int
    data: MadeData | MemberData


def install_wheel(wheel: WheelArchive, scheme: Scheme) -> tuple[InstalledFile, ...]:
    """Every file that the installation makes, in path order, the new RECORD among them.

    Raises RefusedError `overlay.wheel-malformed` for unknown `.data` folders, two files for one place, entry points
    that no script can be made of, and a shebang that no kernel would read.
    """
    site = scheme.purelib if wheel.purelib else scheme.platlib
    places: dict[str, InstalledFile] = {}
    generated = {script.name for script in entry_points(wheel)}
    for member in wheel.members.values():
        place = _place(wheel, member.name, site, scheme)
        if place is None:
            continue
        kind, path = place
        mode = SCRIPT_MODE if member.executable else FILE_MODE
        data: MadeData | MemberData = MemberData(wheel, member.name)
        if kind == "scripts":
            if _is_wrapper(path.rpartition("/")[2], generated):
                continue
            mode = SCRIPT_MODE
            data = _script_data(wheel, member.name, scheme)
        _put(wheel, places, InstalledFile(path, mode, data))
    for script in entry_points(wheel):
        text = MadeData(script.text(_shebang(wheel, scheme)))
        _put(wheel, places, InstalledFile(join(scheme.scripts, script.name), SCRIPT_MODE, text))
    info = join(site, wheel.info)
    for name, content in (("INSTALLER", INSTALLER), ("REQUESTED", b"")):
        places[f"{info}/{name}"] = InstalledFile(f"{info}/{name}", FILE_MODE, MadeData(content))
    record = InstalledFile(f"{info}/RECORD", FILE_MODE, MadeData(_record(places.values(), site, f"{info}/RECORD")))
    places[record.path] = record
    return tuple(places[path] for path in sorted(places, key=str.encode))


def _put(wheel: WheelArchive, places: dict[str, InstalledFile], file: InstalledFile) -> None:
    if file.path in places:
        raise bad_wheel(wheel.where, f"two of its files go to /{clean(file.path, 200)}")
    places[file.path] = file


def _place(wheel: WheelArchive, name: str, site: str, scheme: Scheme) -> tuple[str, str] | None:
    """The install scheme's word and the image path for a member; None for one that is not installed.  Headers go
    into a folder of the name by which the distribution was asked for, as with pip."""
    head, _, rest = name.partition("/")
    if name in (f"{wheel.info}/INSTALLER", f"{wheel.info}/REQUESTED", f"{wheel.info}/direct_url.json"):
        return None
    if not head.endswith(".data") or not rest:
        return "site", join(site, name)
    kind, _, inner = rest.partition("/")
    folders = {
        "purelib": scheme.purelib,
        "platlib": scheme.platlib,
        "scripts": scheme.scripts,
        "headers": join(scheme.headers, wheel.name),
        "data": scheme.data,
    }
    if kind not in folders or not inner:
        raise bad_wheel(
            wheel.where,
            f"no installer knows where {clean(name, 200)} goes",
            expected=", ".join(f"{head}/{word}/…" for word in folders),
        )
    return kind, join(folders[kind], inner)


def _shebang(wheel: WheelArchive, scheme: Scheme) -> bytes:
    line = b"#!" + scheme.interpreter.encode()
    if b" " in line or len(line) > SHEBANG_LIMIT:
        raise bad_wheel(
            wheel.where,
            "its scripts cannot name the image's interpreter",
            expected=f"a path without blanks, at most {SHEBANG_LIMIT - 2} bytes",
            found=scheme.interpreter,
            hint="take a base whose interpreter has a shorter path",
        )
    return line


def _script_data(wheel: WheelArchive, name: str, scheme: Scheme) -> MadeData | MemberData:
    """A script of the wheel; `#!python` and what follows on that line become the image's interpreter."""
    with wheel.open(name) as stream:
        start = stream.read(8)
    if not start.startswith(b"#!python"):
        return MemberData(wheel, name)
    data = wheel.read(name)
    end = data.find(b"\n")
    return MadeData(_shebang(wheel, scheme) + (b"\n" if end < 0 else data[end:]))


def _is_wrapper(name: str, generated: set[str]) -> bool:
    """Whether a script of the wheel is one that old setuptools made for an entry point; the one made here stands
    instead."""
    lower = name.lower()
    for ending in (".exe", "-script.py", ".pya"):
        if lower.endswith(ending):
            return name[: -len(ending)] in generated
    return name in generated


_NAME = re.compile(r"[\w.][\w. -]*\Z")
_OBJECT = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*:\s*(?P<attribute>\w+(?:\.\w+)*)\s*(?:\[[^\]]*\])?\Z")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A console or gui script: `name` is the file's, `module` and `attribute` what it calls."""

    name: str
    module: str
    attribute: str

    def text(self, shebang: bytes) -> bytes:
        """The script: imports the object, and ends with what calling it gives (Entry points, Use for scripts)."""
        first = self.attribute.partition(".")[0]
        body = (
            "import sys\n\n"
            f"from {self.module} import {first}\n\n"
            'if __name__ == "__main__":\n'
            f"    sys.exit({self.attribute}())\n"
        )
        return shebang + b"\n" + body.encode()


def entry_points(wheel: WheelArchive) -> tuple[EntryPoint, ...]:
    """The scripts that `entry_points.txt` asks for, in order of their names.

    Raises RefusedError `overlay.wheel-malformed` where it cannot be read, or a name or object is none.
    """
    raw = wheel.texts.get("entry_points.txt")
    if raw is None:
        return ()
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    try:
        parser.read_string(raw.decode("utf-8"))
    except (configparser.Error, UnicodeDecodeError) as error:
        raise bad_wheel(wheel.where, f"its entry_points.txt cannot be read ({clean(str(error), 200)})") from error
    return tuple(_points(parser, wheel))


def _points(parser: configparser.ConfigParser, wheel: WheelArchive) -> Iterator[EntryPoint]:
    found: Mapping[str, str] = {
        name: value
        for section in ("gui_scripts", "console_scripts")
        if parser.has_section(section)
        for name, value in parser.items(section)
    }
    for name in sorted(found):
        match = _OBJECT.match(found[name].strip())
        parts = () if match is None else (*match["module"].split("."), *match["attribute"].split("."))
        if match is None or _NAME.match(name) is None or not all(part.isidentifier() for part in parts):
            raise bad_wheel(
                wheel.where,
                "no script can be made of an entry point",
                expected="NAME = MODULE:FUNCTION",
                found=clean(f"{name} = {found[name]}", 200),
            )
        yield EntryPoint(name, match["module"], match["attribute"])


def _record(files: Iterable[InstalledFile], site: str, own: str) -> bytes:
    """RECORD with one row a file, in order of the rows' paths; its own row has neither hash nor size."""
    rows = {row_path(site, own): b",,"}
    for file in files:
        rows[row_path(site, file.path)] = f",{format_hash(file.data.sha256)},{file.data.size}".encode("ascii")
    return b"".join(format_path(path) + rows[path] + b"\n" for path in sorted(rows))
