"""A small engine image, as engine images are stacked, and a workspace with an overlay for it: for tests of whole verbs.

    base = engine_base(platforms=("linux/amd64", "linux/arm64"))
    workspace = SmallWorkspace(folder, base)
    workspace.write_target(); workspace.write_overlay()

The engine is a Python distribution of a few files with RECORD and bytecode, owned by root and, in part, by others.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.oci.platform import Platform
from imagebuild.overlay.patch_make import make_diff
from imagebuild.testing.images import (
    Compression,
    File,
    Folder,
    ImageSpec,
    IndexSpec,
    Item,
    LayerSpec,
    Link,
    MadeImage,
    make_image,
    make_index,
    write_layout,
)

SITE = "usr/local/lib/python3.12/dist-packages"
INFO = f"{SITE}/engine-1.0.dist-info"
TIME = 1_700_000_000
"""The time of every file of the base and of its config, seconds since 1970."""

ENVS = b'''"""Switches of the engine."""

import os


def number(name, default):
    return int(os.environ.get(name, default))


VARIABLES = {
    "ENGINE_PORT": lambda: number("ENGINE_PORT", 8000),
    "ENGINE_WORKERS": lambda: number("ENGINE_WORKERS", 1),
}


def read(name):
    return VARIABLES[name]()
'''
ENVS_AFTER = ENVS.replace(
    b"}\n\n\ndef read", b'    "ENGINE_TUNED": lambda: number("ENGINE_TUNED", 0),\n}\n\n\ndef read'
)
SCHEDULER = b"".join(b"def step_%d(state):\n    return state + %d\n\n\n" % (n, n) for n in range(40))
EXTRA = b'"""Added by the overlay."""\n\nTUNED = True\n'
PACKAGE: Mapping[str, bytes] = {
    "engine/__init__.py": b'__version__ = "1.0"\n',
    "engine/data/table.json": b'{"rows": [1, 2, 3]}\n',
    "engine/envs.py": ENVS,
    "engine/legacy.py": b"OLD = True\n",
    "engine/scheduler.py": SCHEDULER,
}
COMPILED = ("engine/__init__.py", "engine/envs.py", "engine/legacy.py")

CHANGES = """\
  - patch: patches/0001-envs.patch
  - file: files/extra.py
    to: engine/extra.py
  - edit: {path: engine/scheduler.py, find: "state + 17", replace: "state + 18"}
  - delete: {path: engine/legacy.py}
"""


def pyc(source: bytes, time: int = TIME) -> bytes:
    """Bytecode as far as its 16-byte header is true (PEP 552, by time and size); the code itself is made up."""
    return b"\xcb\r\r\n\0\0\0\0" + time.to_bytes(4, "little") + len(source).to_bytes(4, "little") + b"code of " + source


def pyc_path(source: str) -> str:
    folder, _, name = source.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-312.pyc"


def record(files: Mapping[str, bytes], info: str) -> bytes:
    """RECORD as pip writes it: bytecode and itself without hash."""
    rows = []
    for path, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},," if path.endswith(".pyc") else f"{path},sha256={digest},{len(data)}")
    rows.append(f"{info}/RECORD,,")
    return "".join(f"{row}\n" for row in rows).encode()


def distribution(
    name: str, version: str, package: Mapping[str, bytes], compiled: Sequence[str] = ()
) -> dict[str, bytes]:
    """The files of an installed distribution, by path below its site folder."""
    info = f"{name}-{version}.dist-info"
    files = {**package, **{pyc_path(path): pyc(package[path]) for path in compiled}}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/INSTALLER"] = b"pip\n"
    files[f"{info}/RECORD"] = record(files, info)
    return files


def with_folders(files: Sequence[Item], folders: Sequence[Item] = ()) -> tuple[Item, ...]:
    """The items with an entry for each folder above them (below those that `folders` give in their own way)."""
    own = {item.path: item for item in folders}
    for item in files:
        parent = item.path.rpartition("/")[0]
        while parent:
            own.setdefault(parent, Folder(parent))
            parent = parent.rpartition("/")[0]
    return tuple(sorted((*own.values(), *files), key=lambda item: item.path))


def root_layer(platform: Platform) -> tuple[Item, ...]:
    """A merged-usr root without programs."""
    files: list[Item] = [
        File("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"),
        File("etc/hostname", b"localhost\n"),
        Link("bin", "usr/bin"),
        Link("lib", "usr/lib"),
        Link("var/run", "/run"),
        File("usr/lib/os-release", b"ID=standin\n"),
        File("usr/lib/machine", platform.machine.encode()),
    ]
    folders = [Folder("tmp", 0o1777), Folder("root", 0o700), Folder("run"), Folder("srv", 0o755, 1000, 1000)]
    return with_folders(files, [*folders, Folder("usr/bin"), Folder("usr/local/bin")])


def interpreter_layer() -> tuple[Item, ...]:
    helper = distribution("helper", "2.0", {"helper/__init__.py": b"VALUE = 1\n"})
    files: list[Item] = [File(f"{SITE}/{path}", data) for path, data in helper.items()]
    files += [File(f"usr/lib/python3.12/{name}.py", b"# a stand-in\n") for name in ("os", "site", "io")]
    files += [File("usr/bin/python3.12", b"#!/bin/sh\nexit 127\n", 0o755), Link("usr/bin/python3", "python3.12")]
    return with_folders(files, [Folder("usr/lib/python3/dist-packages")])


def engine_layer(package: Mapping[str, bytes] = PACKAGE, compiled: Sequence[str] = COMPILED) -> tuple[Item, ...]:
    """The engine.  Its data folder and the file in it belong to user 1000; envs.py carries an extended attribute."""
    items: list[Item] = []
    for path, data in distribution("engine", "1.0", package, compiled).items():
        if path == "engine/envs.py":
            items.append(File(f"{SITE}/{path}", data, xattrs={"user.note": b"kept"}))
        elif path.startswith("engine/data/"):
            items.append(File(f"{SITE}/{path}", data, 0o640, 1000, 1000))
        else:
            items.append(File(f"{SITE}/{path}", data))
    return with_folders(items, [Folder(f"{SITE}/engine/data", 0o750, 1000, 1000)])


def entry_layer() -> tuple[Item, ...]:
    return with_folders(
        [File("usr/local/bin/engine-entry", b'#!/bin/sh\nexec engine "$@"\n', 0o755)], [Folder("workspace")]
    )


def engine_layers(
    platform: Platform,
    package: Mapping[str, bytes] = PACKAGE,
    compiled: Sequence[str] = COMPILED,
    compression: Compression = "gzip",
) -> tuple[LayerSpec, ...]:
    """Root, interpreter, engine, entry point."""
    stack = (root_layer(platform), interpreter_layer(), engine_layer(package, compiled), entry_layer())
    names = ("ADD root", "RUN apt-get install python3.12", "RUN pip install engine", "COPY entry")
    return tuple(
        LayerSpec(items, compression=compression, created_by=name) for items, name in zip(stack, names, strict=True)
    )


CONFIG: Mapping[str, Any] = {
    "Env": ["PATH=/usr/local/bin:/usr/bin", "ENGINE_PORT=8000"],
    "WorkingDir": "/workspace",
    "Entrypoint": ["/usr/local/bin/engine-entry"],
    "Labels": {"maintainer": "tests"},
}


def engine_base(
    platforms: Sequence[str] = ("linux/amd64",),
    family: mt.Family = mt.OCI,
    compression: Compression = "gzip",
    package: Mapping[str, bytes] = PACKAGE,
    compiled: Sequence[str] = COMPILED,
    *,
    index: bool | None = None,
    attestations: bool = False,
) -> MadeImage:
    """The base: a single manifest for one platform, an index for several (or with `index`)."""
    images = tuple(
        ImageSpec(
            engine_layers(Platform.parse(text), package, compiled, compression),
            Platform.parse(text),
            family,
            config=CONFIG,
        )
        for text in platforms
    )
    if index or (index is None and len(images) > 1):
        return make_index(IndexSpec(images, family, attestations=attestations))
    (only,) = images
    return make_image(only)


@dataclass
class SmallWorkspace:
    """A workspace in `root` whose base is the layout `build/base`, image `v1`, unless `base_reference` says another."""

    root: Path
    base: MadeImage
    base_reference: str = ""
    platforms: tuple[str, ...] = ()
    cache: Path = field(init=False)

    def __post_init__(self) -> None:
        self.cache = self.root.parent / f"{self.root.name}-cache"
        (self.root / "manifests").mkdir(parents=True, exist_ok=True)
        (self.root / "overlays").mkdir(exist_ok=True)
        if not self.platforms:
            images = self.base.images or (self.base,)
            self.platforms = tuple(str(image.descriptor.platform) for image in images)
        if not self.base_reference:
            write_layout(self.root / "build" / "base", {"v1": self.base})
            self.base_reference = f"oci:build/base:v1@{self.base.digest}"

    def folder(self, target: str = "tuned") -> Path:
        return self.root / "manifests" / target

    def lock_path(self, target: str = "tuned") -> Path:
        return self.folder(target) / "target.lock.json"

    def lock(self, target: str = "tuned") -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.lock_path(target).read_bytes())
        return value

    def write_target(self, name: str = "tuned", more: str = "", **keys: Any) -> None:
        """Writes target.yaml; `keys` replace its keys (values as JSON; None takes one out), `more` is appended."""
        values: dict[str, Any] = {
            "schema": 1,
            "name": name,
            "base": self.base_reference,
            "platforms": list(self.platforms),
            "overlays": ["tune"],
            "roots": {"engine": {"python": "engine"}},
            "identity": {"engine": "1.0"},
            **keys,
        }
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in values.items() if value is not None]
        self.folder(name).mkdir(parents=True, exist_ok=True)
        (self.folder(name) / "target.yaml").write_text("".join(lines) + more)

    def write_overlay(
        self, name: str = "tune", changes: str = CHANGES, files: Mapping[str, bytes] | None = None, guards: str = ""
    ) -> Path:
        """Writes an overlay; without `files` those that CHANGES names.  Guards are left to `lock` unless given."""
        if files is None:
            files = {
                "patches/0001-envs.patch": make_diff("engine/envs.py", ENVS, ENVS_AFTER),
                "files/extra.py": EXTRA,
            }
        folder = self.root / "overlays" / name
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        folder.mkdir(parents=True, exist_ok=True)
        text = f"schema: 1\nname: {name}\ndescription: tune the engine\nauthor: tests\nchanges:\n{changes}"
        (folder / "overlay.yaml").write_text(text + (f"guards:\n{guards}" if guards else ""))
        return folder

    def snapshot(self) -> dict[str, bytes]:
        """Every file of manifests, overlays and build, by path."""
        out = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                out[str(path.relative_to(self.root))] = path.read_bytes()
        return out

    def digest(self, target: str = "tuned") -> Digest:
        return Digest.parse(self.lock(target)["result"]["digest"])
