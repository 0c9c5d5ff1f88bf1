"""One platform of a target against the layers of its base that were read: roots, guards, and everything that follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from imagebuild.build.asked import Asked
from imagebuild.build.items import ItemMaker
from imagebuild.build.layer_data import fact_of, image_path, layer_path
from imagebuild.build.live_base import LiveBase, NeedsDeeper
from imagebuild.build.reading import BaseReader, ViewContents
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError, SeveralErrors, UnavailableError
from imagebuild.layer.entry import Entry, Found, LayerFacts
from imagebuild.layer.view import MergedView
from imagebuild.oci.tree import Child
from imagebuild.overlay.distributions import Distributions, find_places, read_distributions
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.findings import Finding, Severity
from imagebuild.overlay.identity import IdentityState, check_identity, require_identity
from imagebuild.overlay.interpreters import RootConfig
from imagebuild.overlay.roots import PythonLayout, Root, find_root, read_layout
from imagebuild.overlay.search_path import ShadowState
from imagebuild.overlay.series import AppliedSeries, apply_series
from imagebuild.target.document import Target
from imagebuild.target.lock_types import LayerItem, PathFact, RootFact

SHOWN_LIMIT = 4 << 20
"""Bytes of a replaced file whose difference is shown."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What locking learned of one platform.  `files` gives the bytes of each file item by image path, `kept` bytes that a
    locked build needs (compiled patches); provenance files are missing in `files`, they need the content id."""

    roots: tuple[RootFact, ...]
    facts: tuple[PathFact, ...]
    changes: tuple[LayerItem, ...]
    environment: tuple[tuple[str, str], ...]
    not_proven: tuple[str, ...]
    applied: AppliedSeries
    files: dict[str, bytes]
    kept: tuple[bytes, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Look:
    """A view and what was found in it."""

    view: MergedView
    config: RootConfig
    distributions: Distributions
    layout: PythonLayout
    roots: list[Root]
    live: LiveBase
    complete: bool


class PlatformAnalyser:
    """Analyses one platform on ever deeper views until everything is settled."""

    def __init__(
        self, target: Target, overlays: Sequence[Overlay], asked: Asked, child: Child, reader: BaseReader, created: int
    ) -> None:
        self.target = target
        self.overlays = overlays
        self.asked = asked
        self.child = child
        self.reader = reader
        self.created = created

    def base(self, layers: Sequence[LayerFacts | None]) -> LiveBase:
        """The base as a series sees it, roots found.  Raises NeedsDeeper, and what finding roots raises."""
        return self._look(layers).live

    def _look(self, layers: Sequence[LayerFacts | None]) -> _Look:
        view = MergedView(layers)
        contents = ViewContents(view, self.reader.contents)
        config = RootConfig(tuple(self.child.config.environment), self.child.config.working_dir, _user(self.child))
        paths = chain.from_iterable(facts.entries for facts in layers if facts is not None)
        distributions = read_distributions(view, contents, find_places(view, paths))
        layout = read_layout(view, contents, config, distributions)
        complete = all(facts is not None for facts in layers)
        roots = self._roots(view, contents, config, layout, complete)
        live = LiveBase(
            view,
            {root.name: root.folder for root in roots},
            self.asked.new,
            self.asked.whole,
            lambda path: bool(distributions.owners(path)),
            lambda found: self._bytes(found, layers),
            lambda path, found: self._shown(found) if path in self.asked.shown else None,
        )
        return _Look(view, config, distributions, layout, roots, live, complete)

    def run(self, layers: Sequence[LayerFacts | None]) -> Analysis:
        """Raises NeedsDeeper where layers that were not read could decide, and every refusal of guards and roots."""
        look = self._look(layers)
        view, live, roots, config = look.view, look.live, look.roots, look.config
        unproven_identity = self._identity(look.distributions, look.layout, look.complete)
        applied = apply_series(
            self.overlays,
            list(live.folders),
            live,
            self.child.config.platform.normalised(),
            expect_applied=self.target.expect_applied,
            known=self.reader.contents.get,
        )
        maker = ItemMaker(view, live, look.distributions, applied, self.created, self.reader.contents, config.variables)
        maker.make(keep_record=self.target.derived_record == "keep")
        facts = {fact.path: fact for fact in self._facts(view, live, roots, maker, layers)}
        environment = [(name, value) for name, value in self.target.env.items()]
        environment = [(edit.name, edit.value) for edit in applied.environment] + environment
        not_proven = [text for root in roots for text in root.not_proven]
        not_proven += [*unproven_identity, *maker.not_proven]
        not_proven += [
            f"{image_path(folder)}: a layer that was not read may hold more" for folder in sorted(live.incomplete)
        ]
        not_proven += [
            f"{image_path(live.places[path])}: absent down to the layer that holds its package"
            for path, state in sorted(live.absent.items())
            if state == "absent-above"
        ]
        return Analysis(
            tuple(_root_fact(root) for root in roots),
            tuple(facts[path] for path in sorted(facts)),
            tuple(sorted(maker.items, key=lambda item: item.path.encode("utf-8", "surrogateescape"))),
            tuple(dict(environment).items()),
            tuple(dict.fromkeys(not_proven)),
            applied,
            maker.files,
            tuple(maker.kept),
            (*maker.findings, *self._notes(view, maker)),
        )

    def _roots(
        self, view: MergedView, contents: ViewContents, config: RootConfig, layout: PythonLayout, complete: bool
    ) -> list[Root]:
        out: list[Root] = []
        errors = []
        for name, spec in self.target.roots.items():
            try:
                out.append(find_root(spec, view, contents, config, name=name, layout=layout))
            except UnavailableError as error:
                if error.code == "overlay.root-unread" and not complete:
                    raise NeedsDeeper(name) from error
                raise
            except RefusedError as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else SeveralErrors(errors)
        return out

    def _identity(self, distributions: Distributions, layout: PythonLayout, complete: bool) -> tuple[str, ...]:
        """What `identity` says, asserted; raises NeedsDeeper where a distribution may lie in a layer that was not read."""
        found = check_identity(self.target.identity, distributions, layout.import_order())
        if not complete and any(item.state is IdentityState.NOT_PROVEN for item in found):
            raise NeedsDeeper("identity")
        return require_identity(found)

    def _bytes(self, found: Found, layers: Sequence[LayerFacts | None]) -> bytes:
        assert found.data.sha256 is not None
        data = self.reader.contents.get(found.data.sha256)
        if data is not None:
            return data
        number = self._holder(found.data, found.layer, layers)
        listed = self.child.manifest.layers
        return self.reader.file(found.data, listed[number], number + 1, len(listed))

    def _shown(self, found: Found) -> bytes | None:
        """The bytes of a file that is replaced, where they were captured; large ones and binaries help nobody."""
        if found.data.sha256 is None or found.data.size > SHOWN_LIMIT:
            return None
        return self.reader.contents.get(found.data.sha256)

    @staticmethod
    def _holder(entry: Entry, top: int, layers: Sequence[LayerFacts | None]) -> int:
        for number in range(top, -1, -1):
            facts = layers[number]
            if facts is not None and facts.entries.get(entry.path) == entry:
                return number
        raise AssertionError(f"no layer holds /{entry.path}")

    def _digest(self, number: int) -> Digest:
        return self.child.manifest.layers[number].digest

    def _facts(
        self,
        view: MergedView,
        live: LiveBase,
        roots: Sequence[Root],
        maker: ItemMaker,
        layers: Sequence[LayerFacts | None],
    ) -> Iterator[PathFact]:
        for root in roots:
            for shadow in root.shadows:
                found = view.lookup(shadow.path)
                if shadow.state is ShadowState.PRESENT and isinstance(found, Found):
                    yield fact_of(shadow.path, found, self._digest(found.layer))
                elif shadow.state is not ShadowState.PRESENT:
                    yield PathFact(image_path(shadow.path), shadow.state.value)
        for item in maker.items:
            # what a derived file is made from: a build that has not got its bytes reads them there
            derived = view.lookup(layer_path(item.path)) if item.patch is not None else None
            if isinstance(derived, Found):
                yield fact_of(layer_path(item.path), derived, self._digest(derived.layer))
        for path, found in maker.neighbours.items():
            yield fact_of(path, found, self._digest(found.layer))
        for path in maker.watched:
            yield PathFact(image_path(path), "absent")
        for path, state in live.absent.items():
            yield PathFact(image_path(live.places[path]), state, change=path)
        for path, found in live.found.items():
            where = live.places[path]
            holder = self._holder(found.data, found.layer, layers)
            yield fact_of(where, found, self._digest(holder), view.other_names(where), path)

    def _notes(self, view: MergedView, maker: ItemMaker) -> Iterator[Finding]:
        """What the base does that engines unpack differently: refused where the path is ours."""
        ours = {item.path.lstrip("/") for item in maker.items}
        for code, path in view.notes():
            if code == "base.unportable" and path in ours:
                raise RefusedError(
                    "base.unportable",
                    f"{image_path(path)} is stored in the base in a way that engines unpack differently, and the overlay changes it",
                    hint="have the base mended, or change another path",
                    details={"path": image_path(path)},
                )
            yield Finding(code, Severity.NOTE, path, "the base stores this in a way that readers take differently")
        for path in sorted(ours):
            names = view.other_names(path)
            if names:
                yield Finding(
                    "base.hard-links", Severity.WARNING, path,
                    "replaced under this name only; the old data stays under " + ", ".join(image_path(n) for n in names),
                )  # fmt: skip


def _user(child: Child) -> str:
    found = child.config.section.get("User")
    return found if isinstance(found, str) else ""


def _root_fact(root: Root) -> RootFact:
    owner = root.distribution
    return RootFact(
        root.name,
        image_path(root.folder),
        "" if owner is None else owner.name,
        "" if owner is None else image_path(owner.info),
        image_path(root.site) if root.site else "",
    )
