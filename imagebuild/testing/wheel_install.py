"""What an installer leaves on disk of a wheel, as items of a layer (binary distribution format, Installing a wheel).

pip is not run: it would write the files of *this* machine's interpreter.  The shape follows what pip and uv write:
scripts, INSTALLER, REQUESTED, and a RECORD in each one's own line endings and order.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath, relpath
from typing import BinaryIO, Literal, cast

from imagebuild.errors import InputError
from imagebuild.testing.base_tar import Item, file_item, folder_item, link_item

Installer = Literal["pip", "uv"]

STAND_IN_BYTECODE = bytes.fromhex(
    "630000000000000000000000000100000000000000f308000000970064005a0079012902544e2901da115354414e445f494e5f42595445"
    "434f4445a900f300000000fa0a3c7374616e642d696e3efa083c6d6f64756c653e720500000001000000730b000000f003010101d81418"
    "d100117203000000"
)
"""CPython 3.12's marshalled code of the one statement `STAND_IN_BYTECODE = True`.

Compiling a base's real modules needs the base's interpreter, and its output would differ from one patch release to the
next.  So a base's `.pyc` holds this instead: header, time and size are right, 3.12 loads it, and a module that was
taken from it shows itself, which is what a test of stale bytecode wants to see.
"""

_MAGIC_312 = b"\xcb\x0d\x0d\x0a"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one interpreter's files are, without leading `/`.

    `site` is the folder of pure and platform modules alike, `scripts` the folder of commands, `interpreter` the absolute
    path that stands in the first line of a script, `home` the folder of the interpreter of a virtual environment ("" for
    none).
    """

    prefix: str
    site: str
    scripts: str
    interpreter: str
    home: str = ""

    def preamble(self) -> Iterator[Item]:
        """What the environment itself consists of."""
        if not self.home:
            return
        yield folder_item(self.prefix)
        yield file_item(
            f"{self.prefix}/pyvenv.cfg",
            f"home = {self.home}\ninclude-system-site-packages = false\nversion = 3.12.3\n".encode(),
        )
        yield link_item(f"{self.prefix}/bin/python", f"{self.home}/python3.12")
        yield link_item(f"{self.prefix}/bin/python3", "python")
        yield link_item(f"{self.prefix}/lib64", "lib")


def dist_packages(version: str) -> Layout:
    """Debian's and Ubuntu's own interpreter (`version` as 3.12) with packages beside it, as in the engine images."""
    return Layout(
        "usr/local", f"usr/local/lib/python{version}/dist-packages", "usr/local/bin", f"/usr/bin/python{version}"
    )


DIST_PACKAGES = dist_packages("3.12")

VENV = Layout("opt/venv", "opt/venv/lib/python3.12/site-packages", "opt/venv/bin", "/opt/venv/bin/python", "/usr/bin")


def bytecode_path(path: str) -> str:
    """`a/b.py` -> `a/__pycache__/b.cpython-312.pyc` (PEP 3147)."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}__pycache__/{name.removesuffix('.py')}.cpython-312.pyc"


def bytecode(mtime: int, size: int) -> bytes:
    """A stand-in `.pyc` that is valid for a source of this time and size (PEP 552, timestamp-based)."""
    return _MAGIC_312 + struct.pack("<III", 0, mtime & 0xFFFFFFFF, size & 0xFFFFFFFF) + STAND_IN_BYTECODE


def _digest(data: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={value}"


def record_line(path: str, data: bytes) -> str:
    """A RECORD's line of a file whose path needs no quotes."""
    return f"{path},{_digest(data)},{len(data)}\n"


def _script(interpreter: str, target: str) -> bytes:
    module, _, name = target.partition(":")
    first = name.split(".")[0]
    return (
        f"#!{interpreter}\nimport sys\n\nfrom {module} import {first}\n\n"
        f'if __name__ == "__main__":\n    sys.exit({name}())\n'
    ).encode()


@dataclass(frozen=True, slots=True)
class WheelInstall:
    """One wheel put into one layout.

    `bytecode_of` names modules (as in RECORD) that get a stand-in `.pyc`; pip's own are listed in RECORD, uv's and those
    that arise on first import are not.  `editable` is the folder (no leading `/`) where the package's source lies when it is installed
    in place: the site folder then holds a `.pth` file and `direct_url.json` only.  `without` names members of the wheel that
    are left out, in RECORD too.
    """

    wheel: Path
    layout: Layout
    installer: Installer = "pip"
    bytecode_of: Sequence[str] = ()
    editable: str = ""
    without: tuple[str, ...] = ()

    def items(self, layer_time: int) -> Iterator[Item]:
        """Everything the installer writes, in RECORD's order of the wheel; RECORD itself last.

        Raises InputError `testing.bad-wheel`.
        """
        yield from self.layout.preamble()
        with zipfile.ZipFile(self.wheel) as archive:
            info = self._dist_info(archive)
            rows: list[tuple[str, str, str]] = []
            listed = {
                row[0]: row for row in csv.reader(io.TextIOWrapper(archive.open(f"{info}/RECORD"), "utf-8")) if row
            }
            sizes: dict[str, int] = {}
            for member in archive.infolist():
                if member.is_dir() or member.filename in (f"{info}/RECORD", *self.without):
                    continue
                item, changed = self._member(archive, member, info)
                yield item
                sizes[member.filename] = item.size
                row = listed.get(member.filename)
                if self.editable and not member.filename.startswith(info):
                    continue
                if row is None:
                    raise InputError("testing.bad-wheel", f"{self.wheel.name}: RECORD does not list {member.filename}")
                if changed is not None:
                    row = [member.filename, _digest(changed), str(len(changed))]
                rows.append((relpath(item.path, self.layout.site), row[1], row[2]))
            for item, data in self._generated(archive, info):
                yield item
                rows.append((relpath(item.path, self.layout.site), _digest(data), str(len(data))))
            for module in self.bytecode_of:
                if module not in sizes:
                    raise InputError("testing.bad-wheel", f"{self.wheel.name} has no module {module}")
                path = bytecode_path(module)
                yield file_item(f"{self._source()}/{path}", bytecode(layer_time, sizes[module]))
                if self.installer == "pip" and not self.editable:
                    rows.append((path, "", ""))
        rows.append((f"{info}/RECORD", "", ""))
        yield file_item(f"{self.layout.site}/{info}/RECORD", self._record(rows))

    def _source(self) -> str:
        return self.editable or self.layout.site

    def _dist_info(self, archive: zipfile.ZipFile) -> str:
        found = {name.split("/")[0] for name in archive.namelist() if name.split("/")[0].endswith(".dist-info")}
        if len(found) != 1:
            raise InputError("testing.bad-wheel", f"{self.wheel.name} has {len(found)} .dist-info folders, not one")
        return found.pop()

    def _member(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, info: str) -> tuple[Item, bytes | None]:
        """One file of the wheel at its place, and its bytes where they are not the wheel's."""
        name = member.filename
        if name.startswith("/") or normpath(name) != name or name.startswith("../"):
            raise InputError("testing.bad-wheel", f"{self.wheel.name}: a member named {name!r}")
        mode = 0o755 if (member.external_attr >> 16) & 0o111 else 0o644
        head, _, rest = name.partition("/")
        if head.endswith(".data"):
            scheme, _, inner = rest.partition("/")
            places = {
                "purelib": self.layout.site,
                "platlib": self.layout.site,
                "scripts": self.layout.scripts,
                "headers": f"{self.layout.prefix}/include/python3.12/{info.split('-')[0]}",
                "data": self.layout.prefix,
            }
            if scheme not in places:
                raise InputError("testing.bad-wheel", f"{self.wheel.name}: unknown scheme in {name}")
            place = f"{places[scheme]}/{inner}"
            if scheme == "scripts":
                data = archive.read(member)
                if data.startswith(b"#!python"):
                    data = b"#!" + self.layout.interpreter.encode() + data[data.index(b"\n") :]
                return file_item(place, data, 0o755), data
        else:
            folder = self.layout.site if head == info else self._source()
            place = f"{folder}/{name}"

        def opened() -> BinaryIO:
            return cast(BinaryIO, archive.open(member))

        return Item(place, mode=mode, size=member.file_size, open=opened), None

    def _generated(self, archive: zipfile.ZipFile, info: str) -> Iterator[tuple[Item, bytes]]:
        """Scripts of the entry points, and the notes that an installer adds."""

        def made(path: str, data: bytes, mode: int = 0o644) -> tuple[Item, bytes]:
            return file_item(path, data, mode), data

        site = self.layout.site
        if f"{info}/entry_points.txt" in archive.namelist():
            parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
            parser.optionxform = str  # type: ignore[method-assign,assignment]
            parser.read_string(archive.read(f"{info}/entry_points.txt").decode("utf-8"))
            if parser.has_section("console_scripts"):
                for name, target in sorted(parser.items("console_scripts")):
                    data = _script(self.layout.interpreter, target.partition("[")[0].strip())
                    yield made(f"{self.layout.scripts}/{name}", data, 0o755)
        yield made(f"{site}/{info}/INSTALLER", b"pip\n" if self.installer == "pip" else b"uv")
        yield made(f"{site}/{info}/REQUESTED", b"")
        if self.editable:
            yield made(f"{site}/__editable__.{info.removesuffix('.dist-info')}.pth", f"/{self.editable}\n".encode())
            url = f'{{"dir_info": {{"editable": true}}, "url": "file:///{self.editable}"}}'
            yield made(f"{site}/{info}/direct_url.json", url.encode())

    def _record(self, rows: list[tuple[str, str, str]]) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n" if self.installer == "pip" else "\n")
        writer.writerows(sorted(rows))
        return text.getvalue().encode("utf-8")
