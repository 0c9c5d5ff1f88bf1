"""Kinds of layer that stand-in bases are put together from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from imagebuild.content.digest import Digest
from imagebuild.oci.platform import Platform
from imagebuild.testing.base_tar import Item, file_item, folder_item, link_item, with_parents
from imagebuild.testing.wheel_fetch import WheelPin
from imagebuild.testing.wheel_install import DIST_PACKAGES, Installer, Layout, WheelInstall

GetWheel = Callable[[WheelPin], Path]


class BaseLayer(Protocol):
    """One layer of a base."""

    @property
    def created_by(self) -> str:
        """Text of the layer's history entry."""
        ...

    def describe(self, platform: Platform) -> Any:
        """A JSON value from which the layer's bytes follow (with the format version of the maker)."""
        ...

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]: ...

    def expected_size(self, platform: Platform) -> int:
        """About how many bytes the uncompressed layer has, for progress; 0 where that is next to nothing."""
        ...


_OS_RELEASE = b"""PRETTY_NAME="Stand-in root"
NAME="Stand-in root"
VERSION_ID="12"
ID=standin
ID_LIKE=debian
"""
_PASSWD = b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUP = b"root:x:0:\nnogroup:x:65534:\n"


@dataclass(frozen=True, slots=True)
class RootLayer:
    """The skeleton of a merged-usr Debian root: folders, links and a few files, no program.

    Nothing in it runs.  It has what overlay paths pass through: `bin -> usr/bin`, `lib -> usr/lib`, `var/run -> /run`, a
    sticky `tmp`, a closed `root`.
    """

    created_by: str = "/bin/sh -c #(nop) ADD root in /"

    def describe(self, platform: Platform) -> Any:
        return {"kind": "root", "machine": platform.machine}

    def expected_size(self, platform: Platform) -> int:
        return 0

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]:
        triplet = f"{platform.machine}-linux-gnu"
        yield link_item("bin", "usr/bin")
        for name in ("boot", "dev"):
            yield folder_item(name)
        yield folder_item("etc")
        yield file_item("etc/debian_version", b"12.0\n")
        yield file_item("etc/group", _GROUP)
        yield file_item("etc/hostname", b"localhost\n")
        yield link_item("etc/os-release", "../usr/lib/os-release")
        yield file_item("etc/passwd", _PASSWD)
        yield folder_item("home")
        yield link_item("lib", "usr/lib")
        if platform.architecture == "amd64":
            yield link_item("lib64", "usr/lib64")
        for name in ("media", "mnt", "opt", "proc"):
            yield folder_item(name)
        yield folder_item("root", 0o700)
        yield folder_item("run")
        yield link_item("sbin", "usr/sbin")
        for name in ("srv", "sys"):
            yield folder_item(name)
        yield folder_item("tmp", 0o1777)
        folders = "usr usr/bin usr/games usr/include usr/lib usr/lib/TRIPLET usr/local usr/local/bin usr/local/etc "
        folders += "usr/local/include usr/local/lib usr/local/sbin usr/local/share usr/sbin usr/share usr/src"
        for name in folders.replace("TRIPLET", triplet).split():
            yield folder_item(name)
        if platform.architecture == "amd64":
            yield folder_item("usr/lib64")
        yield file_item("usr/lib/os-release", _OS_RELEASE)
        yield link_item("usr/local/man", "share/man")
        yield folder_item("usr/local/share/man")
        yield folder_item("var")
        yield folder_item("var/lib")
        yield link_item("var/lock", "/run/lock")
        yield folder_item("var/log")
        yield link_item("var/run", "/run")
        yield folder_item("var/tmp", 0o1777)


_MODULES = ("abc", "ast", "collections/__init__", "encodings/__init__", "io", "os", "pathlib", "site", "typing")


@dataclass(frozen=True, slots=True)
class InterpreterLayer:
    """The places of a distribution's Python 3.12: its command, some module files, its site folder.

    The files say of themselves that they are stand-ins: only their names matter to a tool that runs nothing.
    """

    created_by: str = "RUN apt-get install python3.12"

    def describe(self, platform: Platform) -> Any:
        return {"kind": "interpreter", "version": "3.12"}

    def expected_size(self, platform: Platform) -> int:
        return 0

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]:
        script = b'#!/bin/sh\necho "python3.12 is a stand-in in this image" >&2\nexit 127\n'
        text = b'"""A stand-in: this file of the standard library is not needed to build on the image."""\n'

        def unordered() -> Iterator[Item]:
            yield link_item("usr/bin/python3", "python3.12")
            yield file_item("usr/bin/python3.12", script, 0o755)
            yield folder_item("usr/lib/python3/dist-packages")
            for module in _MODULES:
                yield file_item(f"usr/lib/python3.12/{module}.py", text)
            yield folder_item("usr/local/lib/python3.12/dist-packages")

        yield from with_parents(unordered())


@dataclass(frozen=True, slots=True)
class WheelLayer:
    """One real wheel for each platform, installed into one layout (fields as in WheelInstall)."""

    wheels: Mapping[Platform, WheelPin]
    layout: Layout = DIST_PACKAGES
    installer: Installer = "pip"
    bytecode_of: tuple[str, ...] = ()
    editable: str = ""
    without: tuple[str, ...] = ()

    @property
    def created_by(self) -> str:
        names = sorted({f"{pin.distribution}=={pin.version}" for pin in self.wheels.values()})
        return f"RUN {'uv pip' if self.installer == 'uv' else 'pip'} install {' '.join(names)}"

    def describe(self, platform: Platform) -> Any:
        left_out = {"without": list(self.without)} if self.without else {}
        return {
            **left_out,
            "kind": "wheel",
            "sha256": str(self.wheels[platform].sha256),
            "layout": [
                self.layout.prefix,
                self.layout.site,
                self.layout.scripts,
                self.layout.interpreter,
                self.layout.home,
            ],
            "installer": self.installer,
            "bytecode_of": list(self.bytecode_of),
            "editable": self.editable,
        }

    def expected_size(self, platform: Platform) -> int:
        return self.wheels[platform].unpacked

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]:
        wheel = get_wheel(self.wheels[platform])
        install = WheelInstall(wheel, self.layout, self.installer, self.bytecode_of, self.editable, self.without)
        yield from with_parents(install.items(layer_time))


@dataclass(frozen=True, slots=True)
class FilesLayer:
    """Files of our own making, path -> (bytes, mode); `folders` are made where they are not parents already."""

    files: Mapping[str, tuple[bytes, int]]
    folders: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    created_by: str = "COPY files in /"

    def describe(self, platform: Platform) -> Any:
        return {
            "kind": "files",
            "files": {path: [str(Digest.of(data)), mode] for path, (data, mode) in self.files.items()},
            "folders": list(self.folders),
            "links": dict(self.links),
        }

    def expected_size(self, platform: Platform) -> int:
        return sum(len(data) for data, _ in self.files.values())

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]:
        found = [file_item(path, data, mode) for path, (data, mode) in self.files.items()]
        found += [folder_item(path) for path in self.folders]
        found += [link_item(path, target) for path, target in self.links.items()]
        yield from with_parents(sorted(found, key=lambda item: item.path))
