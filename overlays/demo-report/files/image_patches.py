# SPDX-License-Identifier: Apache-2.0
"""Says how this image's vllm differs from the release: `python -m vllm.image_patches`.

The builder of a patched image leaves `imagebuild.json` in vllm's dist-info folder: the content id, the base, and every
changed file with its sha256 before and after.  Nothing here is imported by the engine.
"""

import importlib.metadata
import json
from typing import Any

import vllm.envs as envs


def image_patches() -> dict[str, Any] | None:
    """The builder's note, or None in an image that nobody patched."""
    text = importlib.metadata.distribution("vllm").read_text("imagebuild.json")
    return None if text is None else json.loads(text)


def report() -> str:
    """One line with the switch's state, and the note where the switch is on."""
    if not envs.VLLM_REPORT_IMAGE_PATCHES:
        return "image patches: not reported (VLLM_REPORT_IMAGE_PATCHES=0)"
    return "image patches: " + json.dumps(image_patches(), sort_keys=True)


if __name__ == "__main__":
    print(report())
