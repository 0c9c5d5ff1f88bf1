"""The pinned base of a target as overlays are written against it: found and read as deep as a question needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from imagebuild.build.analysis import PlatformAnalyser
from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.asked import Asked
from imagebuild.build.contents import Contents
from imagebuild.build.events import Emitter
from imagebuild.build.live_base import LiveBase, NeedsDeeper
from imagebuild.build.reading import BaseReader, suffix_names
from imagebuild.build.survey import Survey, survey
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import LayerFacts
from imagebuild.layer.facts_store import FactsStore
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import read_image_tree
from imagebuild.overlay.contents import wanted_name
from imagebuild.overlay.document import Overlay
from imagebuild.target.document import Target
from imagebuild.target.lock_types import SECONDS_1980

Answer = TypeVar("Answer")


class Everything:
    """Contains every path: where an overlay is being written, any file may be new, and any may be asked for whole."""

    def __contains__(self, path: object) -> bool:
        return True

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(())

    def __len__(self) -> int:
        return 0


def read_whole_base(
    target: Target, source: ImageSource, facts: FactsStore, contents: Contents, emitter: Emitter
) -> dict[Platform, Survey]:
    """Every platform's base with all of its layers read.  Raises what reading raises."""
    assert target.base.digest is not None
    tree = read_image_tree(source, target.base.digest, target.platforms)
    reader = BaseReader(source, facts, contents, emitter, wanted_name)
    out = {}
    for platform, child in tree.children.items():
        listed = child.manifest.layers
        layers = [reader.layer(descriptor, number, len(listed)) for number, descriptor in enumerate(listed, 1)]
        out[platform] = survey(child, contents, layers)
    return out


def ask_base(
    target: Target,
    source: ImageSource,
    facts: FactsStore,
    contents: Contents,
    emitter: Emitter,
    names: Sequence[str],
    store: ArtefactStore,
    overlays: Sequence[Overlay],
    question: Callable[[dict[Platform, LiveBase]], Answer],
) -> Answer:
    """The answer to `question`, which is given the base of each platform and may be asked again on deeper layers.

    The wheels of `overlays` lie on the base that the question sees, their other changes do not.
    `names` are ends of paths whose files will be needed whole (they are captured while layers pass).  A path that no layer
    down to its package's own shows, and that the owning RECORD does not list, counts as absent.
    Raises what the question raises, and what reading and finding roots raises.
    """
    assert target.base.digest is not None
    tree = read_image_tree(source, target.base.digest, target.platforms)
    reader = BaseReader(source, facts, contents, emitter, suffix_names(names, wanted_name))
    layers: dict[Platform, list[LayerFacts | None]] = {}
    depth: dict[Platform, int] = {}
    for platform, child in tree.children.items():
        layers[platform] = [None] * len(child.manifest.layers)
        depth[platform] = len(child.manifest.layers)
        if not child.manifest.layers:
            raise RefusedError("base.no-layers", "the base has no layers at all")
    everything = Everything()
    asked = Asked(everything, everything, everything)  # type: ignore[arg-type]
    while True:
        bases: dict[Platform, LiveBase] = {}
        try:
            for platform, child in tree.children.items():
                current = platform
                analyser = PlatformAnalyser(target, overlays, asked, child, reader, SECONDS_1980, store)
                bases[platform] = analyser.base(layers[platform])
            return question(bases)
        except NeedsDeeper:
            deepen = [current] if current not in bases else list(tree.children)
            deepen = [platform for platform in deepen if depth[platform] > 0]
            if not deepen:
                raise
            for platform in deepen:
                listed = tree.children[platform].manifest.layers
                depth[platform] -= 1
                number = depth[platform]
                layers[platform][number] = reader.layer(listed[number], number + 1, len(listed))
