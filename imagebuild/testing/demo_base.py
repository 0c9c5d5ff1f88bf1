"""The bases of the demo targets: the real vllm 0.33.0 on a stand-in root."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.testing.base_layers import FilesLayer, InterpreterLayer, RootLayer, WheelLayer
from imagebuild.testing.wheel_base import BaseSpec, MadeBase, make_base
from imagebuild.testing.wheel_fetch import AMD64, ARM64, VLLM, Progress

CREATED = 1793613600
"""2026-11-02T10:00:00Z, the day after the wheels were made."""

DIGESTS = {
    (AMD64,): Digest("05cb4146697e4ed8645df3596b6f2eda9ccbc11a07ac87f3b083664ce1b4680e"),
    (AMD64, ARM64): Digest("8f6758b3a48e3788a7c66dde8c926b3dce60275bbcc5aba97159784fd4c965bf"),
}
"""The index digest for each set of platforms: `manifests/demo/target.yaml` and `manifests/demo-all/target.yaml` pin it."""

BYTECODE = ("vllm/__init__.py", "vllm/envs.py", "vllm/version.py")
"""Modules that a build step of the real images imports, so that their bytecode lies in the image."""

_ENTRY = b"""#!/bin/sh
# Starts the engine with whatever arguments the container was given.
exec vllm serve "$@"
"""


def demo_spec(platforms: Sequence[Platform] = (AMD64,)) -> BaseSpec:
    """Four layers, as engine images are stacked: root, interpreter, engine, entry point."""
    return BaseSpec(
        name="demo" if len(platforms) == 1 else "demo-all",
        platforms=tuple(platforms),
        layers=(
            RootLayer(),
            InterpreterLayer(),
            WheelLayer({platform: VLLM[platform] for platform in platforms}, bytecode_of=BYTECODE),
            FilesLayer({"usr/local/bin/engine-entry": (_ENTRY, 0o755)}, ("vllm-workspace",)),
        ),
        created=CREATED,
        tag="v0.33.0",
        env=(
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHON_VERSION=3.12",
            "VLLM_USAGE_SOURCE=production-docker-image",
        ),
        entrypoint=("/usr/local/bin/engine-entry",),
        working_dir="/vllm-workspace",
    )


def demo_base(workspace: Path, platforms: Sequence[Platform] = (AMD64,), progress: Progress | None = None) -> MadeBase:
    """Makes `build/bases/demo` (one platform) or `build/bases/demo-all` (two) in the workspace.

    Raises RefusedError `testing.other-base` when the bytes are not the ones that the committed targets pin, and as
    `make_base`.
    """
    spec = demo_spec(platforms)
    made = make_base(spec, workspace / "build" / "bases" / spec.name, progress=progress)
    expected = DIGESTS.get(spec.platforms)
    if expected is not None and made.digest != expected:
        raise RefusedError(
            "testing.other-base",
            f"the base {spec.name} came out with other bytes on this machine",
            expected=str(expected),
            found=str(made.digest),
            hint="this is a fault of the base maker; say which Python and machine it was",
        )
    return made
