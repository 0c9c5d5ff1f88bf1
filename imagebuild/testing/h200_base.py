"""The base of the target `h200-vllm`: vLLM 0.26.0 and what it imports, as real wheels, for a machine that brings torch.

Unlike the other bases it runs, given a machine whose Python 3.12 and torch 2.11 (in a virtual environment at `/opt/torch`)
are bound in: `docs/how-to/gpu-evidence.md`.  Two members of vLLM's wheel are left out, which the H200 does not use and which
are half of its bytes: FlashAttention 2 (Hopper runs FlashAttention 3) and the optional frontend in Rust.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.oci.platform import Platform
from imagebuild.testing.base_layers import FilesLayer, GetWheel, InterpreterLayer, RootLayer, WheelLayer
from imagebuild.testing.base_tar import Item, with_parents
from imagebuild.testing.demo_base import CREATED
from imagebuild.testing.wheel_base import BaseSpec
from imagebuild.testing.wheel_fetch import AMD64, WheelPin
from imagebuild.testing.wheel_install import DIST_PACKAGES, Layout, WheelInstall

LEFT_OUT = ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/vllm-rs")
TORCH = "/opt/torch/.venv/lib/python3.12/site-packages"
"""Where the machine's torch is bound in; a `.pth` file names it, after the image's own packages."""


def h200_wheels() -> tuple[WheelPin, ...]:
    """vLLM's wheel first, then those of its requirements that are not among the machine's packages."""
    rows = json.loads(resources.files(__package__).joinpath("h200_wheels.json").read_bytes())
    return tuple(WheelPin(row["filename"], Digest(row["sha256"]), row["size"]) for row in rows)


@dataclass(frozen=True, slots=True)
class WheelSetLayer:
    """Several real wheels, installed by one command into one layer."""

    pins: tuple[WheelPin, ...]
    layout: Layout = DIST_PACKAGES
    created_by: str = "RUN uv pip install -r requirements.txt"

    def describe(self, platform: Platform) -> Any:
        return {"kind": "wheels", "sha256": [str(pin.sha256) for pin in self.pins], "site": self.layout.site}

    def expected_size(self, platform: Platform) -> int:
        return 4 * sum(pin.size for pin in self.pins)

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]:
        def unpacked() -> Iterator[Item]:
            for pin in self.pins:
                yield from WheelInstall(get_wheel(pin), self.layout, "uv").items(layer_time)

        yield from with_parents(unpacked())


def h200_vllm() -> BaseSpec:
    """An OCI index for x86_64, everything installed by uv into Debian's places of Python 3.12."""
    vllm, *others = h200_wheels()
    machine = FilesLayer(
        {f"{DIST_PACKAGES.site}/machine-torch.pth": (f"{TORCH}\n".encode(), 0o644)},
        folders=("models", "opt/torch", "usr/libexec", "vllm-workspace"),
        created_by="COPY machine-torch.pth /usr/local/lib/python3.12/dist-packages/",
    )
    return BaseSpec(
        name="h200-vllm",
        platforms=(AMD64,),
        layers=(
            RootLayer(),
            InterpreterLayer(),
            WheelSetLayer(tuple(others)),
            WheelLayer({AMD64: vllm}, DIST_PACKAGES, "uv", without=LEFT_OUT),
            machine,
        ),
        created=CREATED,
        tag="v0.26.0",
        env=(
            "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "NVIDIA_VISIBLE_DEVICES=all",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/cuda/lib64",
            "VLLM_NO_USAGE_STATS=1",
        ),
        entrypoint=("vllm", "serve"),
        working_dir="/vllm-workspace",
        labels={"maintainer": "stand-in"},
    )
