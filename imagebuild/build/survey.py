"""A stack of layers looked at: the merged view, the Python in it, and what of the image config bears on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from imagebuild.build.contents import Contents
from imagebuild.build.reading import ViewContents
from imagebuild.layer.entry import LayerFacts
from imagebuild.layer.view import MergedView
from imagebuild.oci.tree import Child
from imagebuild.overlay.distributions import Distribution, Distributions, find_places, read_distributions
from imagebuild.overlay.interpreters import Interpreter, RootConfig
from imagebuild.overlay.requirements import Metadata, parse_metadata
from imagebuild.overlay.roots import PythonLayout, read_layout


@dataclass(frozen=True, slots=True)
class Survey:
    """What the layers that were read show.  `complete`: all were."""

    view: MergedView
    contents: ViewContents
    config: RootConfig
    distributions: Distributions
    layout: PythonLayout
    complete: bool

    def metadata(self, interpreter: Interpreter) -> Mapping[str, Metadata]:
        """What each distribution that the interpreter sees asks for, by normalised name: of several the first in its
        site folders."""
        out: dict[str, Metadata] = {}
        for site in interpreter.sites:
            for item in self.distributions.items:
                if item.site == site and item.name not in out:
                    out[item.name] = self._metadata(item)
        return out

    def _metadata(self, item: Distribution) -> Metadata:
        names = ("METADATA",) if item.dist_info else ("PKG-INFO",)
        data = next((data for name in names if (data := self.contents.read(f"{item.info}/{name}")) is not None), b"")
        asked = parse_metadata(data.decode("utf-8", "surrogateescape"), item.info)
        return Metadata(item.name, item.version, asked.requires_python, asked.requires, item.info)


def survey(child: Child, contents: Contents, layers: Sequence[LayerFacts | None]) -> Survey:
    """Looks at `layers` (None: not read) under the config of `child`."""
    view = MergedView(layers)
    shown = ViewContents(view, contents)
    user = child.config.section.get("User")
    config = RootConfig(
        tuple(child.config.environment), child.config.working_dir, user if isinstance(user, str) else ""
    )
    paths = chain.from_iterable(facts.entries for facts in layers if facts is not None)
    distributions = read_distributions(view, shown, find_places(view, paths))
    layout = read_layout(view, shown, config, distributions)
    return Survey(view, shown, config, distributions, layout, all(facts is not None for facts in layers))
