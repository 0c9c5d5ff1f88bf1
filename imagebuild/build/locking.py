"""`lock`: from a target to everything that a build needs, every guard checked (formats.md, target.lock.json)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import imagebuild
from imagebuild.build.analysis import Analysis, PlatformAnalyser
from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.asked import Asked, asked_paths
from imagebuild.build.base_documents import base_of_tree, keep_tree
from imagebuild.build.contents import Contents
from imagebuild.build.derived import provenance_files
from imagebuild.build.events import Emitter
from imagebuild.build.image import PlatformFiles, compressors_for, make_image
from imagebuild.build.live_base import NeedsDeeper
from imagebuild.build.locked import base_name, wanted_content
from imagebuild.build.reading import BaseReader, suffix_names
from imagebuild.build.wanted import describe_wanted
from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError
from imagebuild.host import clock
from imagebuild.host.environment import variable
from imagebuild.layer.entry import LayerFacts
from imagebuild.layer.facts_store import FactsStore
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import ImageSource
from imagebuild.oci.tree import Child, ImageTree, read_image_tree
from imagebuild.overlay.contents import wanted_name
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.findings import Finding
from imagebuild.target.document import Target
from imagebuild.target.lock_types import SECONDS_1980, BaseLayer, Inputs, Lock, PlatformInputs, Result


@dataclass(frozen=True, slots=True)
class Locked:
    """A new lock, not stored yet; `content` maps what the content folder must hold to what it is, `analyses` by platform."""

    lock: Lock
    content: Mapping[Digest, str]
    analyses: Mapping[str, Analysis]
    read_bytes: int
    findings: tuple[Finding, ...]


class Locker:
    """Locks one target.  `facts` and `contents` may be shared by several, so that a layer is read once for all."""

    def __init__(
        self,
        target: Target,
        overlays: Sequence[Overlay],
        source: ImageSource,
        facts: FactsStore,
        contents: Contents,
        emitter: Emitter,
        store: ArtefactStore,
    ) -> None:
        self.store = store
        self.target = target
        self.overlays = overlays
        self.source = source
        self.facts = facts
        self.contents = contents
        self.emitter = emitter
        self.read_bytes = 0

    def lock(self, *, complete: bool, notes: Mapping[str, object] | None = None) -> Locked:
        """Resolves, reads as deep as needed (everything with `complete`), checks every guard, and works out the image.

        Raises RefusedError for guards, roots, requirements and identities that do not hold, UnavailableError where the base
        could not be read; nothing is stored.
        """
        if not self.target.needs_image:
            raise InputError(
                "lock.no-image-needed",
                f"{self.target.name} has no overlay: no image is needed",
                hint="put these into the recipe instead: "
                + ("; ".join(f"{name}={value}" for name, value in self.target.env.items()) or "nothing at all"),
            )
        assert self.target.base.digest is not None
        tree = read_image_tree(self.source, self.target.base.digest, self.target.platforms)
        documents = keep_tree(tree, self.contents)
        self._requirements(tree)
        created = self._created(tree)
        analyses: dict[str, Analysis] = {}
        asked: dict[str, Asked] = {}
        layers: dict[str, list[LayerFacts | None]] = {}
        for platform, child in tree.children.items():
            name = str(platform)
            asked[name] = asked_paths(self.overlays, platform)
            analyses[name], layers[name] = self._read_down(child, asked[name], created, complete)
            self._kept_requirements(platform, analyses[name])
        inputs = self._inputs(tree, analyses, layers, created)
        kept = {self.contents.put(data): "a derived file" for a in analyses.values() for data in a.kept}
        files = {name: self._files(inputs, analysis) for name, analysis in analyses.items()}
        compressors = {str(p.platform): compressors_for(p, files[str(p.platform)]) for p in inputs.platforms}
        inputs = replace(
            inputs, platforms=tuple(replace(p, compressors=compressors[str(p.platform)]) for p in inputs.platforms)
        )
        # the compressors are inputs too, so the content id is only known now
        files = {name: self._files(inputs, analysis) for name, analysis in analyses.items()}
        result = self._result(inputs, tree, files)
        content = wanted_content(inputs, {**documents, **kept}, {name: item.whole for name, item in asked.items()})
        findings = tuple(dict.fromkeys(f for a in analyses.values() for f in a.findings))
        stages = [note.document() for analysis in analyses.values() for note in analysis.stages]
        lock = Lock(
            inputs,
            result,
            {
                **(notes or {}),
                "tool": f"imagebuild {imagebuild.__version__}",
                "content": sorted(str(digest) for digest in content),
                "findings": [finding.document() for finding in findings],
                "dropped": sorted(str(d.digest) for d in (*tree.attestations, *tree.others)),
                "overlays": [self._overlay_notes(overlay) for overlay in self.overlays],
                **({"stages": stages} if stages else {}),
            },
        )
        return Locked(lock, content, analyses, self.read_bytes, findings)

    @staticmethod
    def _overlay_notes(overlay: Overlay) -> dict[str, object]:
        shown = {
            "name": overlay.name,
            "author": overlay.author,
            "upstream_status": overlay.upstream_status,
            "forwarded": overlay.forwarded,
            "license": overlay.license,
            "origin": None if overlay.origin is None else overlay.origin.url or overlay.origin.kind,
        }
        return {key: value for key, value in shown.items() if value is not None}

    def _requirements(self, tree: ImageTree) -> None:
        for platform, child in tree.children.items():
            have = dict(line.split("=", 1) for line in child.config.environment if "=" in line)
            for name, value in self.target.requires_env.items():
                if have.get(name) != value:
                    raise RefusedError(
                        "lock.requires-env",
                        f"{self.target.name}: the base does not set {name} as `requires` says ({platform})",
                        expected=f"{name}={value}",
                        found=f"{name}={have[name]}" if name in have else f"{name} is not set",
                        hint="take a base that sets it; `requires` only asserts, it writes nothing",
                    )

    def _kept_requirements(self, platform: Platform, analysis: Analysis) -> None:
        """What `requires` asserts must hold of the finished image too: an environment edit may not undo it."""
        for name, value in analysis.environment:
            wanted = self.target.requires_env.get(name)
            if wanted is not None and wanted != value:
                raise RefusedError(
                    "lock.requires-env",
                    f"{self.target.name}: the image would not set {name} as `requires` says ({platform})",
                    expected=f"{name}={wanted}",
                    found=f"{name}={value}, set by `env` of the target or of an overlay",
                    hint="take the edit out, or correct `requires`",
                )

    def _created(self, tree: ImageTree) -> int:
        """SOURCE_DATE_EPOCH, else the latest creation time among the base's configs; never before 1980."""
        text = variable("SOURCE_DATE_EPOCH")
        if text is not None:
            if not text.isdigit():
                raise InputError("lock.bad-epoch", "SOURCE_DATE_EPOCH is no number of seconds", found=text)
            return max(int(text), SECONDS_1980)
        times = [clock.parse_rfc3339(child.config.created or "") for child in tree.children.values()]
        return max([SECONDS_1980, *(moment for moment in times if moment is not None)])

    def _read_down(
        self, child: Child, asked: Asked, created: int, complete: bool
    ) -> tuple[Analysis, list[LayerFacts | None]]:
        """Reads layers from the top until every question is settled (images.md, Reading 2)."""
        relatives = []
        for path in asked.whole | asked.shown:
            root, _, relative = path.partition("/")
            spec = self.target.roots.get(root)
            package = (spec.python or "").replace(".", "/") if spec is not None else ""
            relatives.append(f"{package}/{relative}" if package else relative)
        reader = BaseReader(self.source, self.facts, self.contents, self.emitter, suffix_names(relatives, wanted_name))
        analyser = PlatformAnalyser(self.target, self.overlays, asked, child, reader, created, self.store)
        listed = child.manifest.layers
        count = len(listed)
        layers: list[LayerFacts | None] = [None] * count
        for number in range(count - 1, -1, -1):
            facts = reader.layer(listed[number], number + 1, count)
            if facts.diff_id != child.config.diff_ids[number]:
                raise RefusedError(
                    "base.diff-id-mismatch",
                    f"layer {number + 1} of {count} is not what the base's config says it unpacks to",
                    expected=str(child.config.diff_ids[number]),
                    found=str(facts.diff_id),
                    hint="no engine can unpack this image: take another base",
                )
            layers[number] = facts
            if complete and number > 0:
                continue
            try:
                analysis = analyser.run(layers)
            except NeedsDeeper as question:
                if number == 0:
                    raise AssertionError(f"every layer was read and {question} is open") from question
                self.emitter.emit("lock.deeper", path=question.path, layers_read=count - number)
                continue
            self.read_bytes += reader.read_bytes
            return analysis, layers
        if count == 0:
            raise RefusedError("base.no-layers", "the base has no layers at all")
        raise AssertionError("unreachable")

    def _inputs(
        self,
        tree: ImageTree,
        analyses: Mapping[str, Analysis],
        layers: Mapping[str, Sequence[LayerFacts | None]],
        created: int,
    ) -> Inputs:
        platforms = tuple(
            self._platform(platform, child, analyses[str(platform)], layers[str(platform)])
            for platform, child in sorted(tree.children.items())
        )
        return Inputs(
            self.target.name,
            base_name(self.target),
            tree.top.digest,
            tree.top.media_type,
            created,
            describe_wanted(self.target, self.overlays),
            platforms,
        )

    @staticmethod
    def _platform(
        platform: Platform, child: Child, analysis: Analysis, layers: Sequence[LayerFacts | None]
    ) -> PlatformInputs:
        return PlatformInputs(
            platform,
            child.descriptor.digest,
            child.descriptor.size,
            child.descriptor.media_type,
            child.manifest.config.digest,
            tuple(
                BaseLayer(descriptor.digest, descriptor.size, descriptor.media_type, diff_id, facts is not None)
                for descriptor, diff_id, facts in zip(child.manifest.layers, child.config.diff_ids, layers, strict=True)
            ),
            analysis.roots,
            analysis.facts,
            analysis.artefacts,
            analysis.changes,
            analysis.environment,
            {},
            analysis.not_proven,
            analysis.sources,
        )

    @staticmethod
    def _files(inputs: Inputs, analysis: Analysis) -> PlatformFiles:
        """The data of every file of one platform, provenance files included."""
        provenance = provenance_files(inputs, analysis.changes, analysis.artefacts)
        return PlatformFiles({**analysis.files, **provenance}, analysis.artefact_files)

    def _result(self, inputs: Inputs, tree: ImageTree, files: Mapping[str, PlatformFiles]) -> Result:
        with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
            _, result = make_image(inputs, base_of_tree(tree), files, Path(folder), Emitter(), None)
        return result
