"""The wheels of the three targets' stand-in bases and changes, beside vllm's own (`wheel_fetch.VLLM`)."""

from __future__ import annotations

from imagebuild.content.digest import Digest
from imagebuild.testing.wheel_fetch import WheelPin

AMD_AITER = WheelPin(
    "amd_aiter-0.1.7.post2.dev18-py3-none-any.whl",
    Digest("fe139d74438217c35e87e3b961166bac8db2d381eadccb371da2e63615f05a31"),
    40_189_929,
    167_307_544,
)
"""Kernels for AMD accelerators: Python, C++ sources and code objects, compiled modules left to the image's build."""

AI_DYNAMO = WheelPin(
    "ai_dynamo-1.6.1-py3-none-any.whl",
    Digest("83f768730104cbbc84029bf436025706632735173933adbb650b99c746517b70"),
    3_972_559,
    12_718_428,
)

AI_DYNAMO_RUNTIME_ARM64 = WheelPin(
    "ai_dynamo_runtime-1.6.1-cp310-abi3-manylinux_2_28_aarch64.whl",
    Digest("a9fc474400736f11341312b7b0abf30cea6467fd39c6adfa1a3911d26bb30a81"),
    73_262_222,
    226_277_775,
)

REDIS = WheelPin(
    "redis-8.1.0-py3-none-any.whl",
    Digest("a4fe1aac3d3b3cc791d4b3d5931c5a956045dc951ee74d1c913ee3ac4d2ee9fb"),
    560_618,
    2_599_760,
)

CHANGE_WHEELS = (AI_DYNAMO, AI_DYNAMO_RUNTIME_ARM64, REDIS)
"""What the overlay of gb200-dynamo installs: an exported script is given these in a folder."""
