"""What the tests of wheels share: a bench whose artefact store is filled, and ways to look at what came out."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, SeveralErrors
from imagebuild.layer.entry import LayerFacts
from imagebuild.layer.tar_reader import read_layer
from imagebuild.layer.view import MergedView
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import Image
from imagebuild.target.lock_types import LayerItem, Lock
from imagebuild.testing.images import ImageSpec, Item, LayerSpec, MadeImage, make_image
from imagebuild.testing.small_engine import CONFIG, engine_layers
from imagebuild.testing.small_wheels import make_wheel

PLUGIN: Mapping[str, bytes] = {
    "plugin/__init__.py": b"NAME = 'plugin'\n",
    "plugin/core.py": b"def run():\n    return 1\n",
    "plugin/data/notes.txt": b"notes\n",
}
BOTH = ("linux/amd64", "linux/arm64")
AMD64 = Platform("linux", "amd64")


def wheel_change(digest: Digest, name: str, version: str, platforms: tuple[str, ...] = BOTH, more: str = "") -> str:
    digests = ", ".join(f'{platform}: "{digest}"' for platform in platforms)
    return f"  - wheel: {{name: {name}, version: '{version}', sha256: {{{digests}}}{more}}}\n"


class Wheels:
    """Puts wheels into the artefact store of a bench and writes overlays of them."""

    def __init__(self, b: Any, folder: Path) -> None:
        self.b = b
        self.folder = folder

    def make(self, name: str, version: str, files: Mapping[str, bytes], more: str = "", **of_wheel: Any) -> str:
        """The change for a wheel that is at hand."""
        path = make_wheel(self.folder, name, version, files, **of_wheel)
        return wheel_change(self.b.store.keep(path).sha256, name, version, more=more)

    def overlay(self, *changes: str, files: Mapping[str, bytes] | None = None, **target: Any) -> None:
        self.b.space.write_overlay(changes="".join(changes), files=files or {})
        self.b.space.write_target(**target)

    def locked(self, **of_lock: Any) -> Lock:
        lock: Lock = self.b.lock(**of_lock).lock
        return lock

    def refused(self) -> ImagebuildError:
        with pytest.raises(ImagebuildError) as caught:
            self.b.lock()
        return caught.value.errors[0] if isinstance(caught.value, SeveralErrors) else caught.value


def with_layer(*more: Item) -> MadeImage:
    """The engine's base with one more layer."""
    return make_image(ImageSpec((*engine_layers(AMD64), LayerSpec(more)), AMD64, config=CONFIG))


def items(lock: Lock, platform: int = 0) -> dict[str, LayerItem]:
    return {item.path: item for item in lock.inputs.platforms[platform].artefacts}


def read_own(image: Image, **more: Any) -> list[LayerFacts]:
    """The layers that were made, read."""
    out = []
    for blob in image.own:
        with blob.open() as stream:
            out.append(read_layer(stream, blob.descriptor, **more))
    return out


def whole_view(w: Wheels, image: Image) -> MergedView:
    """The merged view of the first platform's base and the image's layers."""
    base = [read_layer(io.BytesIO(layer.blob), layer.descriptor) for layer in w.b.space.base.layers]
    return MergedView([*base, *read_own(image)])
