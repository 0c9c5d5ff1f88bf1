"""One platform of a target against the layers of its base that were read: roots, guards, and everything that follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagebuild.build.artefact_plan import ArtefactPlan, plan_wheels, refuse_early_changes, wheel_changes
from imagebuild.build.artefact_store import ArtefactFile, ArtefactStore
from imagebuild.build.asked import Asked
from imagebuild.build.items import ItemMaker
from imagebuild.build.layer_data import fact_of, image_path, layer_path
from imagebuild.build.live_base import LiveBase, NeedsDeeper
from imagebuild.build.reading import CAPTURE_LIMIT, BaseReader, too_large
from imagebuild.build.series_artefacts import SeriesArtefacts, StageNote
from imagebuild.build.survey import Survey, survey
from imagebuild.build.untouched import refuse_touched
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError, SeveralErrors, UnavailableError
from imagebuild.layer.entry import Data, Entry, Found, LayerFacts
from imagebuild.layer.view import MergedView
from imagebuild.oci.platform import Platform
from imagebuild.oci.tree import Child
from imagebuild.overlay.blob_checks import check_blob
from imagebuild.overlay.changes import BlobChange
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.findings import Finding, Severity
from imagebuild.overlay.identity import IdentityState, check_identity, require_identity
from imagebuild.overlay.roots import Root, find_root
from imagebuild.overlay.search_path import ShadowState
from imagebuild.overlay.series import AppliedSeries, apply_series
from imagebuild.target.document import Target
from imagebuild.target.lock_types import ArtefactSource, LayerItem, PathFact, RootFact
from imagebuild.target.sku import SKUS

SHOWN_LIMIT = 4 << 20
"""Bytes of a replaced file whose difference is shown."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What locking learned of one platform.  `files` gives the bytes of each file item of `changes` by image path, `artefact_files` the
    data of those of `artefacts`, `kept` bytes that a locked build needs (compiled patches); provenance files are missing in
    `files`, they need the content id."""

    roots: tuple[RootFact, ...]
    facts: tuple[PathFact, ...]
    changes: tuple[LayerItem, ...]
    environment: tuple[tuple[str, str], ...]
    not_proven: tuple[str, ...]
    applied: AppliedSeries
    files: dict[str, bytes]
    kept: tuple[bytes, ...]
    findings: tuple[Finding, ...]
    artefacts: tuple[LayerItem, ...]
    artefact_files: Mapping[str, Data]
    sources: tuple[ArtefactSource, ...]
    stages: tuple[StageNote, ...] = ()


@dataclass(frozen=True, slots=True)
class _Look:
    """The base as it is (`below`) and under the wheels of the series (`seen`), what they become, and the roots in it."""

    below: Survey
    plan: ArtefactPlan
    seen: Survey
    stack: Sequence[LayerFacts | None]
    roots: list[Root]
    live: LiveBase


class PlatformAnalyser:
    """Analyses one platform on ever deeper views until everything is settled."""

    def __init__(
        self,
        target: Target,
        overlays: Sequence[Overlay],
        asked: Asked,
        child: Child,
        reader: BaseReader,
        created: int,
        store: ArtefactStore,
    ) -> None:
        self.target = target
        self.overlays = overlays
        self.asked = asked
        self.child = child
        self.reader = reader
        self.created = created
        self.store = store
        self.platform = child.config.platform.normalised()
        self._plan: ArtefactPlan | None = None

    def base(self, layers: Sequence[LayerFacts | None]) -> LiveBase:
        """The base under the wheels of the series, as a series sees it, roots found.  Raises NeedsDeeper, and what finding roots and
        planning wheels raises."""
        return self._look(layers).live

    def _look(self, layers: Sequence[LayerFacts | None]) -> _Look:
        below = survey(self.child, self.reader.contents, layers)
        plan = self._wheels(below)
        seen, stack = below, layers
        if plan.facts is not None:
            stack = [*layers, plan.facts]
            seen = survey(self.child, self.reader.contents, stack)
        roots = self._roots(seen)
        live = LiveBase(
            seen.view,
            {root.name: root.folder for root in roots},
            self.asked.new,
            self.asked.whole,
            lambda path: bool(seen.distributions.owners(path)),
            lambda found: self._bytes(found, stack, plan),
            lambda path, found: self._shown(found) if path in self.asked.shown else None,
            self.asked.named,
            self.asked.links,
        )
        return _Look(below, plan, seen, stack, roots, live)

    def _wheels(self, below: Survey) -> ArtefactPlan:
        if self._plan is None:
            wheels = wheel_changes(self.overlays)
            plan = plan_wheels(wheels, below, self.store, self.platform, self.created, self.reader.contents)
            if not below.complete:
                return plan
            self._plan = plan
        return self._plan

    def run(self, layers: Sequence[LayerFacts | None]) -> Analysis:
        """Raises NeedsDeeper where layers that were not read could decide, and every refusal of guards and roots."""
        look = self._look(layers)
        view, live, roots = look.seen.view, look.live, look.roots
        unproven_identity = self._identity(look.seen)
        findings: list[Finding] = []
        architecture = self._architecture()

        def check(overlay: Overlay, change: BlobChange, platform: Platform, file: ArtefactFile) -> None:
            findings.extend(check_blob(overlay.name, change, platform, file.path, architecture))

        bring = SeriesArtefacts(self.store, self.asked.whole, check)
        refuse_early_changes(self.overlays, self.platform, look.plan, live)
        try:
            applied = apply_series(
                self.overlays,
                list(live.folders),
                live,
                self.platform,
                expect_applied=self.target.expect_applied,
                known=self.reader.contents.get,
                bring=bring,
            )
        except RefusedError as error:
            if error.code == "overlay.glob-count" and live.incomplete:
                raise NeedsDeeper(min(live.incomplete)) from error
            raise
        maker = ItemMaker(
            view,
            live,
            look.seen.distributions,
            applied,
            self.created,
            self.reader.contents,
            look.seen.config.variables,
            bring.files,
        )
        maker.make(keep_record=self.target.derived_record == "keep")
        facts = {fact.path: fact for fact in self._facts(view, live, roots, maker, look.stack)}
        environment = [(name, value) for name, value in self.target.env.items()]
        environment = [(edit.name, edit.value) for edit in applied.environment] + environment
        not_proven = [text for root in roots for text in root.not_proven]
        not_proven += [*unproven_identity, *look.plan.not_proven, *maker.not_proven, *bring.not_proven]
        not_proven += [
            f"{image_path(folder)}: a layer that was not read may hold more" for folder in sorted(live.incomplete)
        ]
        not_proven += [
            f"{image_path(live.places[path])}: absent down to the layer that holds its package"
            for path, state in sorted(live.absent.items())
            if state == "absent-above"
        ]
        # what the series brings to a path stands in the place of what a wheel brought there
        artefacts = {**{item.path: item for item in look.plan.items}, **maker.artefacts}
        artefact_files: dict[str, Data] = {
            path: data for path, data in look.plan.files.items() if path not in maker.artefacts
        }
        for path, item in maker.artefacts.items():
            if item.kind == "file" and item.postimage is not None:
                artefact_files[path] = bring.files[item.postimage]
        refuse_touched(self.target.untouched, roots, look.below.distributions, (*artefacts.values(), *maker.items))
        sources = (*look.plan.sources, *(bring.sources[key] for key in sorted(bring.sources)))
        return Analysis(
            tuple(_root_fact(root) for root in roots),
            tuple(facts[path] for path in sorted(facts)),
            tuple(sorted(maker.items, key=lambda item: item.path.encode("utf-8", "surrogateescape"))),
            tuple(dict(environment).items()),
            tuple(dict.fromkeys(not_proven)),
            applied,
            maker.files,
            tuple(maker.kept),
            (*look.plan.findings, *findings, *maker.findings, *self._notes(look, maker)),
            tuple(artefacts[path] for path in sorted(artefacts, key=str.encode)),
            artefact_files,
            sources,
            tuple(bring.stages.values()),
        )

    def _architecture(self) -> str | None:
        """The target's AMD architecture, None where it has none."""
        sku = SKUS.get(self.target.sku or "")
        return sku.architecture if sku is not None and sku.vendor == "amd" else None

    def _roots(self, seen: Survey) -> list[Root]:
        out: list[Root] = []
        errors = []
        for name, spec in self.target.roots.items():
            try:
                out.append(find_root(spec, seen.view, seen.contents, seen.config, name=name, layout=seen.layout))
            except UnavailableError as error:
                if error.code == "overlay.root-unread" and not seen.complete:
                    raise NeedsDeeper(name) from error
                raise
            except RefusedError as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else SeveralErrors(errors)
        return out

    def _identity(self, seen: Survey) -> tuple[str, ...]:
        """What `identity` says, asserted of what the image will report; raises NeedsDeeper where a distribution may lie in a layer
        that was not read."""
        found = check_identity(self.target.identity, seen.distributions, seen.layout.import_order())
        if not seen.complete and any(item.state is IdentityState.NOT_PROVEN for item in found):
            raise NeedsDeeper("identity")
        return require_identity(found)

    def _bytes(self, found: Found, stack: Sequence[LayerFacts | None], plan: ArtefactPlan) -> bytes:
        assert found.data.sha256 is not None
        data = self.reader.contents.get(found.data.sha256)
        if data is not None:
            return data
        number = self._holder(found.data, found.layer, stack)
        listed = self.child.manifest.layers
        if number == len(listed):
            if found.data.size > CAPTURE_LIMIT:
                raise too_large(found.data)
            with plan.files[image_path(found.data.path)].open() as stream:
                data = stream.read()
            self.reader.contents.put(data)
            return data
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

    def _digest(self, number: int) -> Digest | None:
        """The digest of a layer of the base; None for the artefacts layer above it."""
        listed = self.child.manifest.layers
        return listed[number].digest if number < len(listed) else None

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
        for path in maker.folders_gone:
            if path in live.folders_found:
                folder = live.folders_found[path]
                yield fact_of(live.places[path], folder, self._digest(folder.layer), (), path)

    @staticmethod
    def _notes(look: _Look, maker: ItemMaker) -> Iterator[Finding]:
        """What the base does that engines unpack differently: refused where the path is ours."""
        view = look.below.view
        ours = {item.path.lstrip("/") for item in (*look.plan.items, *maker.artefacts.values(), *maker.items)}
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


def _root_fact(root: Root) -> RootFact:
    owner = root.distribution
    return RootFact(
        root.name,
        image_path(root.folder),
        "" if owner is None else owner.name,
        "" if owner is None else image_path(owner.info),
        image_path(root.site) if root.site else "",
    )
