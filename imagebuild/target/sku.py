"""The accelerators that targets are made for (checks.md, SKU table)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from imagebuild.oci.platform import Platform

AMD64 = Platform("linux", "amd64")
ARM64 = Platform("linux", "arm64")


@dataclass(frozen=True, slots=True)
class Sku:
    """One kind of accelerator: `vendor` nvidia or amd, `architecture` as compilers say it (`sm_103`, `gfx950`),
    `capability` CUDA's compute capability (`10.3`; None for AMD), and the platform of the hosts that carry it."""

    name: str
    vendor: str
    architecture: str
    capability: str | None
    platform: Platform


def _nvidia(name: str, capability: str, platform: Platform = AMD64) -> Sku:
    return Sku(name, "nvidia", "sm_" + capability.replace(".", ""), capability, platform)


def _amd(name: str, architecture: str) -> Sku:
    return Sku(name, "amd", architecture, None, AMD64)


SKUS: Mapping[str, Sku] = MappingProxyType(
    {
        sku.name: sku
        for sku in (
            _nvidia("h200", "9.0"),
            _nvidia("b200", "10.0"),
            _nvidia("b300", "10.3"),
            _nvidia("gb200", "10.0", ARM64),
            _nvidia("gb300", "10.3", ARM64),
            _amd("mi300x", "gfx942"),
            _amd("mi325x", "gfx942"),
            _amd("mi350x", "gfx950"),
            _amd("mi355x", "gfx950"),
        )
    }
)
