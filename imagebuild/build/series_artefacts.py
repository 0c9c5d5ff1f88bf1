"""Files that a series brings below its changes, path by path: blobs and outputs of stages.

A further kind is one more branch of `SeriesArtefacts.__call__` that gives BroughtFile values and remembers the files; everything behind
it works by digest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from imagebuild.build.artefact_store import ArtefactFile, ArtefactStore
from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.blob_checks import check_machine
from imagebuild.overlay.brought import NEW_MODE, Bring, BroughtFile, bring_declared
from imagebuild.overlay.changes import BlobChange, StageChange
from imagebuild.overlay.document import Overlay
from imagebuild.target.lock_types import ArtefactSource

if TYPE_CHECKING:
    from imagebuild.build.stage import LearnedStage

STAGE = "stage"
_EXECUTABLE = 0o755

Check = Callable[[Overlay, BlobChange, Platform, ArtefactFile], None]
"""Looks at a blob before it is taken; raises what is wrong with it."""


@dataclass(frozen=True, slots=True)
class StageNote:
    """A stage that was learned while locking, as the lock's notes tell it: commentary, since the outputs' digests are inputs."""

    learned: LearnedStage
    change: StageChange

    def document(self) -> dict[str, Any]:
        result = self.learned.result
        return {
            "dockerfile": self.change.dockerfile,
            "platform": str(result.platform),
            "definition": str(result.definition),
            "network": self.change.network,
            "proof": self.learned.proof,
            "builder": result.builder,
            "artifact": None if self.change.artifact is None else str(self.change.artifact),
            "outputs": [output.to_json() for output in result.outputs],
        }


def bring_at_hand(store: ArtefactStore, whole: Collection[str]) -> Bring:
    """Files as declared, with the bytes of those in `whole` (ROOT/relative) where they are at hand; for looking offline."""

    def bring(overlay: Overlay, change: BlobChange | StageChange, platform: Platform) -> tuple[BroughtFile, ...]:
        out = []
        for brought in bring_declared(overlay, change, platform):
            if brought.path in whole:
                own = isinstance(change, BlobChange) and change.file is not None
                file = store.blob(overlay, change) if own else store.get(brought.sha256)  # type: ignore[arg-type]
                brought = brought if file is None else replace(brought, data=file.read())
            out.append(brought)
        return tuple(out)

    return bring


class SeriesArtefacts:
    """Gives a series the files of its artefacts (`overlay.brought.Bring`), for one platform.

    `whole` are the ROOT/relative paths whose bytes a later change needs; `locked` what a lock says of the sources, None while one is
    made.  After the series: `files` by digest, `sources` for the lock, `stages` by their definition and what of them is `not_proven`.
    """

    def __init__(
        self,
        store: ArtefactStore,
        whole: Collection[str],
        check: Check | None = None,
        locked: Sequence[ArtefactSource] | None = None,
    ) -> None:
        self.stages: dict[Digest, StageNote] = {}
        self.not_proven: list[str] = []
        self._locked = None if locked is None else {source.name: source for source in locked if source.kind == STAGE}
        self.files: dict[Digest, ArtefactFile] = {}
        self.sources: dict[tuple[str, str], ArtefactSource] = {}
        self._store = store
        self._whole = whole
        self._check = check

    def __call__(
        self, overlay: Overlay, change: BlobChange | StageChange, platform: Platform
    ) -> tuple[BroughtFile, ...]:
        """Raises what fetching, building and checking raise; RefusedError `lock.stale` where the lock lacks an output of a stage."""
        if isinstance(change, StageChange):
            if self._locked is not None:
                return self._locked_stage(change, platform)
            return self._stage(overlay, change, platform)
        out = []
        for brought in bring_declared(overlay, change, platform):
            file = self._store.blob(overlay, change)
            if self._check is not None:
                self._check(overlay, change, platform, file)
            out.append(self.take(brought, file))
        return tuple(out)

    def _stage(self, overlay: Overlay, change: StageChange, platform: Platform) -> tuple[BroughtFile, ...]:
        assert self._store.stages is not None
        learned = self._store.stages.learn(change, platform)
        self.stages[learned.result.definition] = StageNote(learned, change)
        if learned.not_proven:
            self.not_proven.append(learned.not_proven)
        out = []
        for output in learned.result.outputs:
            path, details = change.out[output.path], {"output": output.path, "executable": output.executable}
            out.append(self._output(path, output.sha256, details))
            check_machine(overlay.name, path, platform, self.files[output.sha256].path)
        return tuple(out)

    def _locked_stage(self, change: StageChange, platform: Platform) -> tuple[BroughtFile, ...]:
        assert self._locked is not None
        lacking = [path for path in change.out.values() if path not in self._locked]
        if lacking:
            raise RefusedError(
                "lock.stale",
                f"the lock does not know what {change.dockerfile} leaves for {platform}: {', '.join(lacking)}",
                hint="imagebuild lock TARGET",
            )
        sources = [self._locked[path] for path in change.out.values()]
        self._store.outputs(change, platform, {source.details["output"]: source.sha256 for source in sources})
        return tuple(self._output(source.name, source.sha256, source.details) for source in sources)

    def _output(self, path: str, digest: Digest, details: Mapping[str, Any]) -> BroughtFile:
        file = self._store.get(digest)
        assert file is not None
        mode = _EXECUTABLE if details["executable"] else NEW_MODE
        return self.take(BroughtFile(path, STAGE, digest, new_mode=mode), file, details)

    def take(self, brought: BroughtFile, file: ArtefactFile, details: Mapping[str, Any] | None = None) -> BroughtFile:
        """Remembers where the bytes of a file are; gives it with its bytes where a later change needs them."""
        self.files[file.sha256] = file
        self.sources[brought.kind, brought.path] = ArtefactSource(
            brought.kind, brought.path, file.sha256, file.size, details=details or {}
        )
        return replace(brought, data=file.read()) if brought.path in self._whole else brought
