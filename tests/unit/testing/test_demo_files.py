"""The committed demo: targets, overlay and base maker speak of the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.overlay.document import load_overlay
from imagebuild.target.document import load_target
from imagebuild.testing.demo_base import DIGESTS, demo_spec
from imagebuild.testing.wheel_fetch import AMD64, ARM64, VLLM

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("name", "platforms"), [("demo", (AMD64,)), ("demo-all", (AMD64, ARM64))])
def test_a_demo_target_pins_the_base_that_is_made(name: str, platforms: tuple[object, ...]) -> None:
    target = load_target(ROOT / "manifests" / name / "target.yaml")
    expected = (AMD64,) if len(platforms) == 1 else (AMD64, ARM64)
    spec = demo_spec(expected)
    text = (ROOT / "manifests" / name / "target.yaml").read_text(encoding="utf-8")
    assert f"oci:build/bases/{spec.name}:{spec.tag}@{DIGESTS[expected]}" in text
    assert target.platforms == expected
    assert target.identity == {"vllm": VLLM[AMD64].version}


def test_the_new_file_of_the_demo_overlay_is_the_guarded_one() -> None:
    overlay = load_overlay(ROOT / "overlays" / "demo-report")
    data = (ROOT / "overlays" / "demo-report" / "files" / "image_patches.py").read_bytes()
    assert f"postimage: {Digest.of(data)}" in (overlay.folder / "overlay.yaml").read_text(encoding="utf-8")
    compile(data, "image_patches.py", "exec")
