"""What the verbs on targets share: loading one with its lock and contents, and giving several their common exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from imagebuild.errors import ImagebuildError, SeveralErrors, worst_exit_code

if TYPE_CHECKING:
    from imagebuild.build.artefact_store import ArtefactStore
    from imagebuild.build.contents import Contents
    from imagebuild.build.opening import Opener
    from imagebuild.build.stage import StageMaker
    from imagebuild.cli.session import Session
    from imagebuild.layer.facts_store import FactsStore
    from imagebuild.overlay.document import Overlay
    from imagebuild.target.document import Target
    from imagebuild.target.lock_types import Lock


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target with its series."""

    target: Target
    overlays: tuple[Overlay, ...]


def contents_of(session: Session, name: str) -> Contents:
    from imagebuild.build.contents import Contents
    from imagebuild.content.store import CompressedStore, ContentStore

    return Contents(CompressedStore(session.workspace.content_path(name)), ContentStore(session.cache / "content"))


def facts_of(session: Session) -> FactsStore:
    from imagebuild.layer.facts_store import FactsStore

    return FactsStore(session.cache / "facts")


def artefacts_of(session: Session, opener: Opener | None) -> ArtefactStore:
    """Wheels, blobs and outputs of stages; without `opener` those at hand only."""
    from imagebuild.build.artefact_store import ArtefactStore
    from imagebuild.content.store import ContentStore

    store = ContentStore(session.cache / "artefacts")
    artefacts = ArtefactStore(store, session.emitter, opener=opener, wheels=session.cache / "wheels")
    if opener is not None:
        artefacts.make_stages = partial(stages_of, session, opener, artefacts)
    return artefacts


def stages_of(session: Session, opener: Opener, store: ArtefactStore) -> StageMaker:
    """Makes the outputs of the workspace's stages, and remembers in the cache what it proved."""
    from imagebuild.build.stage import StageMaker, StageSettings

    settings = StageSettings(session.workspace.root, session.cache / "stages", opener.source)
    return StageMaker(settings, store, session.emitter)


def load_target_and_series(session: Session, name: str) -> LoadedTarget:
    target = session.workspace.target(name)
    return LoadedTarget(target, session.workspace.series(target))


def current_lock(session: Session, loaded: LoadedTarget) -> Lock:
    """Raises RefusedError `lock.missing` or `lock.stale`."""
    from imagebuild.build.locked import refuse_stale
    from imagebuild.target.lock import load_lock

    path = session.workspace.lock_path(loaded.target.name)
    return refuse_stale(load_lock(path), loaded.target, loaded.overlays, path)


def each_target(
    session: Session,
    names: Sequence[str],
    kind: str,
    work: Callable[[str], tuple[int, Mapping[str, Any], str]],
    *,
    whole: bool = False,
) -> int:
    """Runs `work` for each target; one that fails does not keep the others from their turn.

    `work` gives exit code, document and text (`whole`: that of a file, never wrapped).  The answer is one document for one target, else `{kind}s` with
    `results`; errors stand among the results under their target, and on stderr.
    """
    codes: list[int] = []
    documents: list[dict[str, Any]] = []
    texts: list[str] = []
    errors: list[ImagebuildError] = []
    for name in dict.fromkeys(names):
        try:
            code, document, text = work(name)
        except ImagebuildError as error:
            if len(set(names)) == 1:
                raise
            errors.append(error)
            codes.append(error.exit_code)
            documents.append({**error.document(), "target": name})
            continue
        codes.append(code)
        documents.append(dict(document))
        texts.append(text)
    if errors:
        session.output.error_lines(SeveralErrors(errors))
    if len(documents) == 1:
        session.output.answer(documents[0], texts[0], whole=whole)
    else:
        session.output.answer({"kind": f"{kind}s", "schemaVersion": 1, "results": documents}, "\n".join(texts))
    return worst_exit_code(codes)
