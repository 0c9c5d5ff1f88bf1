"""Bases of the size and shape of a real engine image, out of real wheels, really compressed.

No committed lock refers to them: gzip's bytes depend on the zlib of the machine, and the Debian root on the day.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from imagebuild.content.digest import Digest
from imagebuild.content.store import ContentStore
from imagebuild.host import environment
from imagebuild.oci.platform import Platform
from imagebuild.testing.base_layers import BaseLayer, FilesLayer, GetWheel, InterpreterLayer, RootLayer
from imagebuild.testing.base_tar import DIRECTORY, HARDLINK, REGULAR, SYMLINK, Item, with_parents
from imagebuild.testing.wheel_base import BaseSpec, MadeBase, make_base
from imagebuild.testing.wheel_fetch import AMD64, VLLM, WheelPin
from imagebuild.testing.wheel_install import DIST_PACKAGES, Layout, WheelInstall

CREATED = 1793613600
"""2026-11-02T10:00:00Z: the time of every file and of the configs."""

ENTRY = b"""#!/bin/sh
exec vllm serve "$@"
"""


def _pin(filename: str, size: int, unpacked: int, sha256: str) -> WheelPin:
    return WheelPin(filename, Digest(sha256), size, unpacked)


CUBLAS = _pin(
    "nvidia_cublas-13.1.1.3-py3-none-manylinux_2_27_x86_64.whl",
    423_138_758,
    597_144_857,
    "37936a16db8fe4ac1f065c2139360608a543a09275cb1a1af612e08cfa065436",
)
CUSPARSE = _pin(
    "nvidia_cusparse-12.6.3.3-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    145_942_937,
    162_926_567,
    "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
)
CUSPARSELT = _pin(
    "nvidia_cusparselt_cu13-0.8.1-py3-none-manylinux2014_x86_64.whl",
    170_148_586,
    233_961_706,
    "786ce87568c303fadb5afcc7102d454cd3040d75f6f8626f5db460d1871f4dd0",
)
CUSOLVER = _pin(
    "nvidia_cusolver-12.0.4.66-py3-none-manylinux_2_27_x86_64.whl",
    200_941_980,
    245_427_965,
    "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
)
CUDNN = _pin(
    "nvidia_cudnn_cu13-9.24.0.43-py3-none-manylinux_2_27_x86_64.whl",
    553_099_438,
    966_381_021,
    "71f181cd810e90f9b6023b01186fe82d13d65f0ec098581ee201d39fad769e4b",
)
NCCL = _pin(
    "nvidia_nccl_cu13-2.30.7-py3-none-manylinux_2_18_x86_64.whl",
    215_965_170,
    253_342_412,
    "cefa7fdb9710efd0f39c5f1be1d61ff6fc9a996c451265bd7fbdcf9455ed4b50",
)
NVSHMEM = _pin(
    "nvidia_nvshmem_cu13-3.4.5-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    60_412_546,
    80_816_650,
    "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
)
TORCH = _pin(
    "torch-2.14.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    554_620_488,
    1_144_224_994,
    "fecffb58f51fd643d213acd68da21cc3fc19bea05a3bc64b4ee55128f47a4963",
)
TRITON = _pin(
    "triton-3.8.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    247_972_921,
    936_095_643,
    "e91ffa46d095b252248297292dd22bcbacd53a125a0c2eefbbbf74925a320bc3",
)
ENGINE = VLLM[AMD64]

BESIDE = Layout("opt/nvidia", "opt/nvidia/lib", "opt/nvidia/bin", "/usr/bin/python3.12")
"""A folder that no interpreter looks into."""


@dataclass(frozen=True, slots=True)
class WheelsLayer:
    """Several wheels installed by one build step."""

    wheels: tuple[WheelPin, ...]
    layout: Layout = DIST_PACKAGES
    bytecode_of: tuple[str, ...] = ()

    @property
    def created_by(self) -> str:
        return "RUN pip install " + " ".join(f"{pin.distribution}=={pin.version}" for pin in self.wheels)

    def describe(self, platform: Platform) -> Any:
        digests = [str(pin.sha256) for pin in self.wheels]
        return {"kind": "wheels", "sha256": digests, "site": self.layout.site, "bytecode_of": list(self.bytecode_of)}

    def expected_size(self, platform: Platform) -> int:
        return sum(pin.unpacked for pin in self.wheels)

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]:
        installs = [
            WheelInstall(get_wheel(pin), self.layout, bytecode_of=self.bytecode_of if pin is ENGINE else ())
            for pin in self.wheels
        ]
        yield from with_parents(chain.from_iterable(install.items(layer_time) for install in installs))


@dataclass(frozen=True, slots=True)
class DebianLayer:
    """A whole Debian root by debootstrap, with the places of Python 3.12 in it; a stand-in root where debootstrap is
    missing or the user is not root."""

    suite: str = "bookworm"
    created_by: str = "/bin/sh -c #(nop) ADD file:rootfs.tar in / "

    @staticmethod
    def _real() -> bool:
        return os.geteuid() == 0 and shutil.which("debootstrap") is not None

    def describe(self, platform: Platform) -> Any:
        return {"kind": "debian", "suite": self.suite, "real": self._real()}

    def expected_size(self, platform: Platform) -> int:
        return 0

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]:
        python = InterpreterLayer().items(platform, layer_time, get_wheel)
        if not self._real():
            yield from with_parents(chain(RootLayer().items(platform, layer_time, get_wheel), python))
            return
        with tempfile.TemporaryDirectory(prefix="debian-root-") as folder:
            command = ["debootstrap", "--variant=minbase", self.suite, folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            for package in Path(folder).glob("var/cache/apt/archives/*.deb"):
                package.unlink()
            yield from with_parents(chain(_tree(Path(folder)), python))


def _tree(root: Path) -> Iterator[Item]:
    """What lies below a folder, device nodes and the like left out."""
    seen: dict[tuple[int, int], str] = {}
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(folder, name)
            found = path.lstat()
            relative = str(path.relative_to(root))
            mode, uid, gid = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
            if stat.S_ISLNK(found.st_mode):
                yield Item(relative, SYMLINK, 0o777, uid, gid, link=os.readlink(path))
            elif stat.S_ISDIR(found.st_mode):
                yield Item(relative, DIRECTORY, mode, uid, gid)
            elif stat.S_ISREG(found.st_mode):
                first = seen.setdefault((found.st_dev, found.st_ino), relative)
                if first != relative:
                    yield Item(relative, HARDLINK, mode, uid, gid, link=first)
                else:
                    yield Item(relative, REGULAR, mode, uid, gid, size=found.st_size, open=partial(_open, path))


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


_LOW = WheelsLayer((CUBLAS, CUSPARSE, CUSPARSELT, CUSOLVER))
_HIGH = WheelsLayer((CUDNN, NCCL, NVSHMEM))
_TORCH = WheelsLayer((TORCH, TRITON))
_BYTECODE = ("vllm/__init__.py", "vllm/envs.py", "vllm/version.py")
_ENGINE = WheelsLayer((ENGINE,), bytecode_of=_BYTECODE)
_POINT = FilesLayer({"usr/local/bin/engine-entry": (ENTRY, 0o755)}, ("vllm-workspace",))

STACKS: Mapping[str, tuple[BaseLayer, ...]] = {
    "base": (DebianLayer(), _LOW, _HIGH, _TORCH, _ENGINE, _POINT),
    "above": (
        DebianLayer(),
        _LOW,
        _HIGH,
        _TORCH,
        _ENGINE,
        WheelsLayer((CUSPARSE, CUSPARSELT, CUSOLVER), BESIDE),
        _POINT,
    ),
    "joined": (DebianLayer(), _LOW, _HIGH, WheelsLayer((TORCH, TRITON, ENGINE), bytecode_of=_BYTECODE), _POINT),
    "small": (RootLayer(), InterpreterLayer(), _ENGINE, _POINT),
}
"""Layers from the lowest up.

`base` the 3 GB base; `above` has a layer of 500 MB above the engine; in `joined` one layer holds torch and the engine;
`small` is the engine on a stand-in root, to try the harness itself.
"""


def cache_folder() -> Path:
    """`IMAGEBUILD_BENCH_CACHE`, else `bench` in imagebuild's cache."""
    named = environment.variable("IMAGEBUILD_BENCH_CACHE")
    return Path(named) if named else environment.cache_folder() / "bench"


def spec_of(name: str) -> BaseSpec:
    return BaseSpec(
        name=f"bench-{name}",
        platforms=(AMD64,),
        layers=STACKS[name],
        created=CREATED,
        compression="gzip",
        index=False,
        tag="v1",
        env=(
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHON_VERSION=3.12",
            "VLLM_USAGE_SOURCE=production-docker-image",
        ),
        entrypoint=("/usr/local/bin/engine-entry",),
        working_dir="/vllm-workspace",
    )


def engine_base(name: str, progress: Any = None) -> MadeBase:
    """The base as an OCI layout in the cache, made once: minutes of gzip the first time, seconds after that."""
    cache = cache_folder()
    return make_base(spec_of(name), cache / "bases" / name, store=ContentStore(cache / "store"), progress=progress)
