"""Stages: compiled once, proved or stored, found again by digest (docs/how-to/stages.md).

Locking learns a stage's outputs: `reproducible: true` by two builds from nothing that must agree, `false` from the artifact
that `artifact` names.  A locked build only needs the bytes: from the cache, from the artifact, or, where the stage is
reproducible, by building it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.buildkit import Builder, StageBuild, find_builder
from imagebuild.build.events import Emitter
from imagebuild.build.stage_artifact import (
    ONE_BUILD,
    TWO_BUILDS,
    FoundArtifact,
    StageResult,
    check_artifact,
    fetch_outputs,
    find_artifact,
)
from imagebuild.build.stage_definition import StageDefinition, lay_out, read_definition
from imagebuild.build.stage_outputs import StageOutput, scratch_folder, take_outputs
from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_write
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.host import clock
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import DigestReference, PathReference
from imagebuild.oci.source import ImageSource
from imagebuild.overlay.changes import StageChange

ARTIFACT = "artifact"
"""Proof of outputs that were taken from an artifact: its maker's word, held by digest."""
OpenSource = Callable[[DigestReference | PathReference], ImageSource]


@dataclass(frozen=True, slots=True)
class LearnedStage:
    """What locking knows of a stage on one platform; `proof` is two-builds or artifact; `not_proven` what nobody showed
    here ("" for nothing)."""

    result: StageResult
    proof: str
    not_proven: str = ""


@dataclass(frozen=True, slots=True)
class StageSettings:
    """Where stages are: the workspace, the folder for what earlier runs learned, how references are opened, the clock."""

    root: Path
    records: Path
    open_source: OpenSource
    builder: Callable[[], Builder] = find_builder
    now: Callable[[], int] = clock.now
    sleep: Callable[[float], None] = field(default=clock.sleep)


class StageMaker:
    """Makes or finds the outputs of stages.  One for a run: builders and artifacts are looked up once."""

    def __init__(self, settings: StageSettings, store: ArtefactStore, emitter: Emitter) -> None:
        self.settings = settings
        self.store = store
        self._emitter = emitter
        self._artifacts: dict[str, Mapping[Platform, FoundArtifact]] = {}
        self._made: dict[Digest, StageResult] = {}

    @cached_property
    def _builder(self) -> Builder:
        return self.settings.builder()

    def learn(self, change: StageChange, platform: Platform) -> LearnedStage:
        """The outputs as a lock records them; they are in the store afterwards.

        Raises what read_definition raises; RefusedError `stage.not-reproducible`, `stage.artifact-missing`, `stage.artifact-differs`
        and those of check_artifact; UnavailableError `stage.no-builder`, and what reading an artifact raises.
        """
        definition = read_definition(self.settings.root, change, platform)
        if not change.reproducible:
            return LearnedStage(self._from_artifact(definition), ARTIFACT)
        try:
            result = self.prove(definition)
        except UnavailableError as error:
            if change.artifact is None or error.code != "stage.no-builder":
                raise
            result = self._from_artifact(definition)
            return LearnedStage(
                result,
                ARTIFACT,
                f"stage {change.dockerfile} ({platform}): that two builds agree is its artifact's word",
            )
        if change.artifact is not None:
            self._agrees(definition, result)
        return LearnedStage(result, TWO_BUILDS)

    def make(self, change: StageChange, platform: Platform) -> StageResult:
        """Builds a stage for storing: twice where it is said to be reproducible, once otherwise."""
        definition = read_definition(self.settings.root, change, platform)
        if change.reproducible:
            return self.prove(definition)
        known = self._recorded(definition)
        return known if known is not None else self._record(definition, self.build(definition), ONE_BUILD)

    def prove(self, definition: StageDefinition) -> StageResult:
        """The outputs that two builds from nothing agree on, begun in different seconds.

        Raises RefusedError `stage.not-reproducible`, naming each file that differs.
        """
        known = self._recorded(definition)
        if known is not None and known.proof == TWO_BUILDS:
            return known
        started = self.settings.now()
        first = self.build(definition)
        self._another_second(started)
        second = self.build(definition)
        differing = [f"{a.path}: {_shown(a)}, then {_shown(b)}" for a, b in zip(first, second, strict=True) if a != b]
        if differing:
            raise RefusedError(
                "stage.not-reproducible",
                f"two builds of {definition.change.dockerfile} for {definition.platform} leave different files",
                expected="the same bytes twice",
                found="; ".join(differing),
                hint="look for times, paths and random names in them; or say `reproducible: false` and store what one build "
                "left: imagebuild overlay stage NAME --store REPOSITORY",
                details={
                    "dockerfile": definition.change.dockerfile,
                    "files": [a.path for a, b in zip(first, second, strict=True) if a != b],
                },
            )
        return self._record(definition, first, TWO_BUILDS)

    def _another_second(self, started: int) -> None:
        """Waits until what is stamped with whole seconds would show a difference."""
        while self.settings.now() == started:
            self.settings.sleep(0.05)

    def build(self, definition: StageDefinition) -> tuple[StageOutput, ...]:
        """One build from nothing; the outputs are in the store."""
        change, platform = definition.change, definition.platform
        where = f"{change.dockerfile} ({platform})"
        builder = self._builder
        self._emitter.emit("stage.building", dockerfile=change.dockerfile, platform=str(platform), builder=builder.name)
        self._emitter.task(f"building {where}", None)
        with scratch_folder(self.store) as folder:
            context, dockerfile = lay_out(definition, folder)
            wanted = StageBuild(
                context, dockerfile, definition.arguments, change.network, platform, folder / "outputs.tar"
            )
            builder.build(wanted, lambda line: self._emitter.emit("stage.log", dockerfile=change.dockerfile, line=line))
            outputs = take_outputs(wanted.tar, sorted(change.out), self.store, where)
        self._emitter.emit(
            "stage.built", dockerfile=change.dockerfile, platform=str(platform), outputs=[o.to_json() for o in outputs]
        )
        return outputs

    def provide(self, change: StageChange, platform: Platform, wanted: Mapping[str, Digest]) -> None:
        """Sees to it that the outputs (path in the stage: digest) are in the store.

        Raises RefusedError `stage.output-differs` where building them again gives others; UnavailableError `stage.outputs-missing`,
        saying what is missing and what was tried.
        """
        if not self._missing(wanted):
            return
        tried: list[str] = []
        if change.artifact is not None:
            try:
                definition = read_definition(self.settings.root, change, platform)
                fetch_outputs(*self._artifact(definition), self.store)
                if not self._missing(wanted):
                    return
                tried.append(f"{change.artifact} holds other files")
            except ImagebuildError as error:
                if (
                    isinstance(error, RefusedError)
                    and not error.code.startswith("stage.")
                    and "not-found" not in error.code
                ):
                    raise  # it is there, and is not what it says
                tried.append(f"{change.artifact}: {error.message}")
        else:
            tried.append("the overlay names no artifact")
        if change.reproducible:
            try:
                self._rebuild(change, platform, wanted)
                return
            except UnavailableError as error:
                tried.append(f"{error.message}" + (f" ({error.found})" if error.found else ""))
        missing = self._missing(wanted)
        raise UnavailableError(
            "stage.outputs-missing",
            f"the outputs of {change.dockerfile} for {platform} are not at hand: {', '.join(missing)}",
            expected=", ".join(f"{path} {wanted[path]}" for path in missing),
            found="not in the cache; " + "; ".join(tried),
            hint=_missing_hint(change),
            details={"dockerfile": change.dockerfile, "platform": str(platform), "missing": missing},
        )

    def _missing(self, wanted: Mapping[str, Digest]) -> list[str]:
        return [path for path, digest in sorted(wanted.items()) if self.store.get(digest) is None]

    def _rebuild(self, change: StageChange, platform: Platform, wanted: Mapping[str, Digest]) -> None:
        definition = read_definition(self.settings.root, change, platform)
        made = {output.path: output for output in self.build(definition)}
        for path, digest in sorted(wanted.items()):
            if made[path].sha256 != digest:
                raise RefusedError(
                    "stage.output-differs",
                    f"{change.dockerfile} leaves another {path} for {platform} here than the lock says",
                    expected=str(digest),
                    found=str(made[path].sha256),
                    hint="its bytes depend on the machine after all; take them from where they were locked: imagebuild overlay "
                    "stage NAME --store REPOSITORY",
                    details={"dockerfile": change.dockerfile, "path": path},
                )

    def _artifact(self, definition: StageDefinition) -> tuple[ImageSource, FoundArtifact]:
        change = definition.change
        assert change.artifact is not None
        assert change.artifact.digest is not None
        source = self.settings.open_source(change.artifact)
        name = str(change.artifact)
        if name not in self._artifacts:
            self._artifacts[name] = find_artifact(source, change.artifact.digest)
        found = check_artifact(self._artifacts[name], definition.id, definition.platform, change.out, change.dockerfile)
        return source, found

    def artifact_results(
        self, change: StageChange, platforms: Mapping[Platform, Digest]
    ) -> dict[Platform, StageResult]:
        """What the change's artifact already has of these definitions, brought into the store; {} without an artifact."""
        if change.artifact is None or change.artifact.digest is None:
            return {}
        source = self.settings.open_source(change.artifact)
        out = {}
        for platform, found in find_artifact(source, change.artifact.digest).items():
            if platforms.get(platform) == found.result.definition:
                fetch_outputs(source, found, self.store)
                out[platform] = found.result
        return out

    def _from_artifact(self, definition: StageDefinition) -> StageResult:
        change = definition.change
        if change.artifact is None:
            raise RefusedError(
                "stage.artifact-missing",
                f"{change.dockerfile} is not reproducible, and the overlay does not say where its outputs are",
                expected="reproducible: true, or artifact: REF@sha256:…",
                hint="on a machine that can compile it: imagebuild overlay stage NAME --store REPOSITORY builds it, stores the "
                "outputs by digest and writes `artifact` into the overlay",
                details={"dockerfile": change.dockerfile, "definition": str(definition.id)},
            )
        source, found = self._artifact(definition)
        fetch_outputs(source, found, self.store)
        return found.result

    def _agrees(self, definition: StageDefinition, result: StageResult) -> None:
        """The artifact of a reproducible stage must hold what the builds left."""
        _, found = self._artifact(definition)
        if found.result.outputs != result.outputs:
            raise RefusedError(
                "stage.artifact-differs",
                f"the artifact of {definition.change.dockerfile} for {definition.platform} holds other outputs than two builds leave",
                expected=", ".join(_named(output) for output in result.outputs),
                found=", ".join(_named(output) for output in found.result.outputs),
                hint="imagebuild overlay stage NAME --store REPOSITORY stores these; or the stage is not reproducible",
            )

    def _record_path(self, definition: StageDefinition) -> Path:
        return self.settings.records / f"{definition.id.hex}.json"

    def _record(self, definition: StageDefinition, outputs: tuple[StageOutput, ...], proof: str) -> StageResult:
        result = StageResult(definition.id, definition.platform, outputs, proof, self._builder.name)
        atomic_write(self._record_path(definition), canonical_json(result.to_json()))
        self._made[definition.id] = result
        return result

    def _recorded(self, definition: StageDefinition) -> StageResult | None:
        """What an earlier run learned of this very definition, where its outputs are still in the store."""
        if definition.id in self._made:
            return self._made[definition.id]
        try:
            found = StageResult.from_json(self._record_path(definition).read_bytes())
        except (OSError, ImagebuildError):
            return None
        same = found.definition == definition.id and found.platform == definition.platform
        if not same or {output.path for output in found.outputs} != set(definition.change.out):
            return None
        if any(self.store.get(output.sha256) is None for output in found.outputs):
            return None
        self._made[definition.id] = found
        return found


def _shown(output: StageOutput) -> str:
    return f"{output.sha256} ({output.size} bytes{', executable' if output.executable else ''})"


def _named(output: StageOutput) -> str:
    return f"{output.path} {output.sha256}"


def _missing_hint(change: StageChange) -> str:
    if change.artifact is not None:
        return f"see to it that {change.artifact} can be read, or take the cache of the machine that locked"
    if change.reproducible:
        return (
            "build on a machine with Docker, or store the outputs from one that has it: imagebuild overlay stage NAME "
            "--store REPOSITORY"
        )
    return "imagebuild overlay stage NAME --store REPOSITORY, on a machine that can compile it"
