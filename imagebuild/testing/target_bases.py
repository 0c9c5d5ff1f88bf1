"""Stand-ins for the bases of the three targets: the real wheels in the folders of the real images.

What is real and what stands in for it: docs/adr/0007-stand-in-bases.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.oci.platform import Platform
from imagebuild.testing.base_layers import BaseLayer, FilesLayer, InterpreterLayer, RootLayer, WheelLayer
from imagebuild.testing.demo_base import CREATED, DIGESTS, demo_spec
from imagebuild.testing.dependency_layer import DependencyLayer
from imagebuild.testing.h200_base import h200_vllm
from imagebuild.testing.real_root import TreeLayer, python_of
from imagebuild.testing.wheel_base import BaseSpec, MadeBase, make_base
from imagebuild.testing.wheel_fetch import AMD64, ARM64, VLLM, Progress, WheelPin
from imagebuild.testing.wheel_install import DIST_PACKAGES, Installer, Layout, dist_packages
from imagebuild.testing.wheel_pins import AMD_AITER


@dataclass(frozen=True, slots=True)
class Places:
    """What a base's wheels are put on: the layers below them, the layout, and whether the root is real (then nothing may stand in
    for bytecode or the C library)."""

    root: tuple[BaseLayer, ...] = (RootLayer(), InterpreterLayer())
    layout: Layout = DIST_PACKAGES
    real: bool = False


def runnable(root: Path, layout: Callable[[str], Layout] = dist_packages) -> Places:
    """The places on a root (folder or tar archive) whose Python really runs."""
    return Places((TreeLayer(root),), layout(python_of(root)), True)


def _elf(machine: int) -> bytes:
    """The first 64 bytes of a shared object for that machine (ELF-64, e_machine): enough to be told, not to be loaded."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little") + machine.to_bytes(2, "little")
    return head + (1).to_bytes(4, "little") + bytes(64 - len(head) - 4)


_MACHINES = {"x86_64": 62, "aarch64": 183}


def _libc(places: Places, machine: str) -> tuple[BaseLayer, ...]:
    """glibc's file, by whose name wheels are told that it is 2.34 or newer."""
    name = f"usr/lib/{machine}-linux-gnu/libc.so.6"
    stand_in = FilesLayer({name: (_elf(_MACHINES[machine]), 0o755)}, created_by="RUN apt-get install libc6")
    return () if places.real else (stand_in,)


def _wheel(
    pins: Mapping[Platform, WheelPin], places: Places, installer: Installer, bytecode_of: tuple[str, ...]
) -> WheelLayer:
    return WheelLayer(pins, places.layout, installer, () if places.real else bytecode_of)


def _dependencies(pins: Mapping[Platform, WheelPin], places: Places) -> DependencyLayer:
    """vllm's requirements, as metadata: what wheels on top are checked against."""
    version = places.layout.site.partition("/python")[2].partition("/")[0]
    versions = {
        "msgspec": "0.20.0",
        "prometheus_client": "0.23.1",
        "pyzmq": "27.1.0",
        "tqdm": "4.67.1",
        "uvloop": "0.22.1",
    }
    if version == "3.11":
        versions["async-timeout"] = "5.0.1"  # which older Pythons need
    return DependencyLayer(pins, versions, places.layout, "uv", version)


_CUDA = FilesLayer(
    {"usr/local/cuda-13.0/version.json": (b'{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}\n', 0o644)},
    links={"usr/local/cuda": "cuda-13.0", "usr/local/cuda-13": "cuda-13.0"},
    created_by="RUN apt-get install cuda-libraries-13-0",
)
_ROCM = FilesLayer(
    {"opt/rocm-7.2.0/.info/version": (b"7.2.0\n", 0o644)},
    links={"opt/rocm": "rocm-7.2.0"},
    created_by="RUN apt-get install rocm-libs",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CUDA_ENV = (
    f"PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:{_PATH}",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "CUDA_VERSION=13.0.2",
    "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/cuda/lib64",
    "VLLM_USAGE_SOURCE=production-docker-image",
)
_WORKSPACE = FilesLayer(
    {"vllm-workspace/examples/README.md": (b"Examples are not part of this stand-in.\n", 0o644)},
    created_by="COPY examples examples",
)


def b300_vllm(places: Places | None = None) -> BaseSpec:
    """`vllm/vllm-openai` for x86_64: an OCI index, vllm installed by uv, bytecode of what a build step imported."""
    at = places or Places()
    pins = {AMD64: VLLM[AMD64]}
    imported = ("vllm/__init__.py", "vllm/envs.py", "vllm/models/kimi_k3/nvidia/model.py")
    return BaseSpec(
        name="b300-vllm",
        platforms=(AMD64,),
        layers=(
            *at.root,
            *_libc(at, "x86_64"),
            _CUDA,
            _dependencies(pins, at),
            _wheel(pins, at, "uv", imported),
            _WORKSPACE,
        ),
        created=CREATED,
        tag="kimi-k31-mc",
        env=_CUDA_ENV,
        entrypoint=("vllm", "serve"),
        working_dir="/vllm-workspace",
        labels={"maintainer": "stand-in"},
    )


def gb200_dynamo(places: Places | None = None) -> BaseSpec:
    """`vllm/vllm-openai` for aarch64: an OCI index, vllm installed by uv; Dynamo is what the target adds."""
    at = places or Places()
    pins = {ARM64: VLLM[ARM64]}
    return BaseSpec(
        name="gb200-dynamo",
        platforms=(ARM64,),
        layers=(
            *at.root,
            *_libc(at, "aarch64"),
            _CUDA,
            _dependencies(pins, at),
            _wheel(pins, at, "uv", ("vllm/__init__.py",)),
            _WORKSPACE,
        ),
        created=CREATED,
        tag="kimi-k3",
        env=_CUDA_ENV,
        entrypoint=("vllm", "serve"),
        working_dir="/vllm-workspace",
        labels={"maintainer": "stand-in"},
    )


def mi355x_rocm(places: Places | None = None) -> BaseSpec:
    """`vllm/vllm-openai-rocm`: a single schema 2 manifest, aiter and vllm installed by pip, two of aiter's kernels built
    beforehand, and the scratch setting that the accelerator's firmware needs."""
    at = places or Places()
    site = at.layout.site
    built = FilesLayer(
        {
            f"{site}/aiter/jit/{name}.so": (_elf(_MACHINES["x86_64"]), 0o755)
            for name in ("module_aiter_enum", "module_moe_asm")
        },
        created_by="RUN GPU_ARCHS=gfx950 build-aiter-kernels",
    )
    return BaseSpec(
        name="mi355x-rocm",
        platforms=(AMD64,),
        layers=(
            *at.root,
            _ROCM,
            _wheel({AMD64: AMD_AITER}, at, "pip", ("aiter/__init__.py",)),
            built,
            _wheel({AMD64: VLLM[AMD64]}, at, "pip", ("vllm/__init__.py", "vllm/envs.py")),
            _WORKSPACE,
        ),
        created=CREATED,
        family=mt.DOCKER,
        index=False,
        tag="v0.33.0",
        env=(
            f"PATH=/opt/rocm/bin:{_PATH}",
            "ROCM_PATH=/opt/rocm",
            "HSA_NO_SCRATCH_RECLAIM=1",
            "HIP_FORCE_DEV_KERNARG=1",
            "TOKENIZERS_PARALLELISM=false",
        ),
        entrypoint=("vllm", "serve"),
        working_dir="/vllm-workspace",
    )


@dataclass(frozen=True, slots=True)
class StandIn:
    """One base by name: how it is described, and the digest that the committed target pins."""

    spec: Callable[[Places | None], BaseSpec]
    digest: Digest

    @property
    def architecture(self) -> str:
        """That of its first platform."""
        return self.spec(None).platforms[0].architecture


STAND_INS: Mapping[str, StandIn] = {
    "b300-vllm": StandIn(b300_vllm, Digest("de4a820e789b9b3b9ce996de2ea7961760ef4d43572b22390b010cf3e1889c08")),
    "gb200-dynamo": StandIn(gb200_dynamo, Digest("d879caab2ae1fd55e27b006318d1f4b17c862a6bf76043c8fb005dfeaee24a5e")),
    "mi355x-rocm": StandIn(mi355x_rocm, Digest("dcc63ea1ad79b94c55386dd1b038f964887dd0892d9a7e8a5e4ef4da71b503de")),
}
"""The bases of the targets of these names."""

H200_DIGEST = Digest("215e8c58302157a88e1a090b4b9cf080d989384946912adca4f661c063155705")


def _named(name: str) -> StandIn:
    demos = {"demo": (AMD64,), "demo-all": (AMD64, ARM64)}
    if name in demos:
        return StandIn(lambda places: demo_spec(demos[name]), DIGESTS[demos[name]])
    if name == "h200-vllm":  # fetches wheels that no other base needs, so it is made when it is named
        return StandIn(lambda places: h200_vllm(), H200_DIGEST)
    if name not in STAND_INS:
        raise InputError(
            "testing.unknown-base",
            f"there is no stand-in base {name[:80]!r}",
            expected=", ".join([*STAND_INS, "h200-vllm", *demos]),
            found=name[:80],
        )
    return STAND_INS[name]


def target_base(workspace: Path, name: str, progress: Progress | None = None) -> MadeBase:
    """Makes `build/bases/NAME` in the workspace: one of STAND_INS, h200-vllm, demo or demo-all.

    Raises InputError `testing.unknown-base`, RefusedError `testing.other-base` when the bytes are not the ones that the
    committed target pins, and as `make_base`.
    """
    known = _named(name)
    made = make_base(known.spec(None), workspace / "build" / "bases" / name, progress=progress)
    if made.digest != known.digest:
        raise RefusedError(
            "testing.other-base",
            f"the base {name} came out with other bytes on this machine",
            expected=str(known.digest),
            found=str(made.digest),
            hint="this is a fault of the base maker; say which Python and machine it was",
        )
    return made


def runnable_base(
    folder: Path,
    name: str,
    root: Path,
    *,
    layout: Callable[[str], Layout] = dist_packages,
    progress: Progress | None = None,
) -> MadeBase:
    """Makes the base of that name on a root whose programs run, as a layout in `folder`; its digest is the root's own.

    Raises InputError `testing.unknown-base`, `testing.no-python`, and as `make_base`.
    """
    if name not in STAND_INS:
        _named(name)
        raise InputError(
            "testing.unknown-base", f"{name} has no runnable form", expected=", ".join(STAND_INS), found=name
        )
    return make_base(STAND_INS[name].spec(runnable(root, layout)), folder, progress=progress)


def names(given: Sequence[str]) -> tuple[str, ...]:
    """The given names, each once; none: those of the three targets."""
    return tuple(dict.fromkeys(given)) or tuple(STAND_INS)
