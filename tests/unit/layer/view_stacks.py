"""Stacks of small layers and what their merged view shows."""

from __future__ import annotations

import io

from imagebuild.content.digest import Digest
from imagebuild.layer.entry import Found, LayerFacts
from imagebuild.layer.tar_reader import read_layer
from imagebuild.layer.view import MergedView
from imagebuild.testing.images import Item, LayerSpec, make_layer

X, Y = Digest.of(b"x"), Digest.of(b"y")


def layer(*items: Item) -> LayerFacts:
    made = make_layer(LayerSpec(items, compression="none"))
    return read_layer(io.BytesIO(made.blob), made.descriptor)


def view(*layers: tuple[Item, ...] | None) -> MergedView:
    """Layers from the lowest to the highest; None stands for one that was not read."""
    return MergedView([None if items is None else layer(*items) for items in layers])


def paths(shown: MergedView) -> list[str]:
    return [path for path, _ in shown.walk() if path]


def data_of(shown: MergedView, path: str) -> Digest | None:
    found = shown.lookup(path)
    assert isinstance(found, Found)
    return found.data.sha256
