"""The real Dynamo wheels for aarch64 on a base with the real vllm wheel: laid out on any machine, pip never asked."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.overlay.wheel_archive import sha256_of
from imagebuild.testing.base_layers import InterpreterLayer, RootLayer, WheelLayer
from imagebuild.testing.wheel_base import BaseSpec, make_base
from imagebuild.testing.wheel_fetch import ARM64, VLLM

pytestmark = [pytest.mark.integration, pytest.mark.slow(30)]

DYNAMO = {
    "ai-dynamo": (
        "ai_dynamo-1.6.1-py3-none-any.whl",
        Digest("83f768730104cbbc84029bf436025706632735173933adbb650b99c746517b70"),
        "aiohttp, aisimulate, certifi, kubernetes, msgspec, prometheus-client, pyzmq, redis, tqdm, transformers, "
        "typing-extensions, zstandard",
    ),
    "ai-dynamo-runtime": (
        "ai_dynamo_runtime-1.6.1-cp310-abi3-manylinux_2_28_aarch64.whl",
        Digest("a9fc474400736f11341312b7b0abf30cea6467fd39c6adfa1a3911d26bb30a81"),
        "pydantic, uvloop",
    ),
}


@pytest.fixture
def wheels() -> Path:
    named = os.environ.get("IMAGEBUILD_TEST_WHEELS")
    wanted = [VLLM[ARM64].filename, *(file for file, _, _ in DYNAMO.values())]
    if not named or not all((Path(named) / name).is_file() for name in wanted):
        pytest.skip(f"IMAGEBUILD_TEST_WHEELS names no folder with {', '.join(wanted)}")
    return Path(named)


def test_gb200_is_built_here(
    wheels: Path, tmp_path: Path, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ws"
    cache = tmp_path / "cache"
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(cache))
    cache.mkdir()
    (cache / "wheels").symlink_to(wheels)
    spec = BaseSpec(
        name="gb200",
        platforms=(ARM64,),
        layers=(RootLayer(), InterpreterLayer(), WheelLayer({ARM64: VLLM[ARM64]})),
        created=1_793_613_600,
        index=False,
    )
    base = make_base(spec, root / "build" / "base", wheel_folder=wheels)
    changes = ""
    for name, (_, digest, without) in DYNAMO.items():
        changes += (
            f"  - wheel: {{name: {name}, version: 1.6.1, sha256: {{linux/arm64: '{digest}'}}, without: [{without}]}}\n"
        )
    (root / "overlays" / "dynamo").mkdir(parents=True)
    (root / "overlays" / "dynamo" / "overlay.yaml").write_text(
        f"schema: 1\nname: dynamo\ndescription: the Dynamo runtime\nchanges:\n{changes}"
    )
    (root / "manifests" / "gb200").mkdir(parents=True)
    (root / "manifests" / "gb200" / "target.yaml").write_text(
        f"schema: 1\nname: gb200\nbase: oci:build/base@{base.digest}\nplatforms: [linux/arm64]\nsku: gb200\n"
        "overlays: [dynamo]\nroots: {dynamo: {python: dynamo}}\n"
        "identity: {vllm: '0.33.0', ai-dynamo: '1.6.1', ai-dynamo-runtime: '1.6.1'}\n"
    )
    monkeypatch.chdir(root)
    locked = verb("lock", "gb200", "--json")
    assert locked.code == 0, locked.err
    built = verb("build", "gb200", "--json").document
    assert [layer["role"] for layer in built["platforms"][0]["layers"]] == ["artefacts"]
    assert built["digest"] == locked.document["digest"]
    checks = {
        check["code"]: check
        for check in verb("verify", "oci:build/gb200", "--target", "gb200", "--json").document["checks"]
    }
    assert checks["verify.layer-content"]["passed"] is True
    assert checks["verify.identity"]["passed"] is True
    plan = verb("plan", "gb200", "--json").document
    touched = [
        item["path"] for item in plan["platforms"][0]["files"] if "/vllm/" in item["path"].split("dist-packages")[1][:6]
    ]
    assert touched == []
    assert plan["build"]["artefact_bytes"] == sum((wheels / file).stat().st_size for file, _, _ in DYNAMO.values())
    files = {item["path"]: item for item in plan["platforms"][0]["files"]}
    for file, digest, _ in DYNAMO.values():
        assert sha256_of(wheels / file) == digest
        with zipfile.ZipFile(wheels / file) as archive:
            names = [
                name for name in archive.namelist() if not name.endswith(("/", "/RECORD")) and ".data/" not in name
            ]
        assert all(f"/usr/local/lib/python3.12/dist-packages/{name}" in files for name in names)
