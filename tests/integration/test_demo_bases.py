"""The demo's bases from the real wheels, read by programs that others wrote."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tools import missing, program

from imagebuild.oci.platform import Platform
from imagebuild.testing.demo_base import DIGESTS, demo_base
from imagebuild.testing.wheel_fetch import AMD64, ARM64, VLLM, wheel_folder

pytestmark = [pytest.mark.integration, pytest.mark.slow(25)]


@pytest.mark.parametrize("platforms", [(AMD64,), (AMD64, ARM64)], ids=["demo", "demo-all"])
def test_a_base_comes_out_as_pinned_and_skopeo_reads_it(tmp_path: Path, platforms: tuple[Platform, ...]) -> None:
    skopeo = program("skopeo")
    for platform in platforms:
        if not (wheel_folder() / VLLM[platform].filename).is_file():
            missing(f"{VLLM[platform].filename} is not in {wheel_folder()}")
    made = demo_base(tmp_path, platforms)
    assert made.digest == DIGESTS[platforms]
    for platform in platforms:
        command = [skopeo, "inspect", f"--override-arch={platform.architecture}", f"oci:{made.folder}:v0.33.0"]
        shown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert (shown["Os"], shown["Architecture"], len(shown["Layers"])) == ("linux", platform.architecture, 4)
