"""Locking and building in this process, against a base in memory whose reads are listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from wheel_bench import Wheels

from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.building import BaseFiles, build_image
from imagebuild.build.contents import Contents
from imagebuild.build.events import Emitter, Event
from imagebuild.build.locking import Locked, Locker
from imagebuild.build.opening import Opener
from imagebuild.content.digest import Digest
from imagebuild.content.store import CompressedStore, ContentStore
from imagebuild.layer.facts_store import FactsStore
from imagebuild.oci.source import Image
from imagebuild.target.lock_types import Lock
from imagebuild.target.workspace import Workspace
from imagebuild.testing.images import MadeImage
from imagebuild.testing.memory import MemorySource
from imagebuild.testing.small_engine import SmallWorkspace, engine_base


@dataclass
class Bench:
    """A small workspace with what locking and building take; `events` are those of the last runs, in order."""

    space: SmallWorkspace
    source: MemorySource
    events: list[Event]
    name: str = "tuned"

    @property
    def workspace(self) -> Workspace:
        return Workspace.find(self.space.root, self.space.root)

    @property
    def contents(self) -> Contents:
        return Contents(
            CompressedStore(self.workspace.content_path(self.name)), ContentStore(self.space.cache / "content")
        )

    @property
    def facts(self) -> FactsStore:
        return FactsStore(self.space.cache / "facts")

    @property
    def store(self) -> ArtefactStore:
        return ArtefactStore(ContentStore(self.space.cache / "artefacts"), self.emitter, opener=Opener(self.space.root))

    @property
    def emitter(self) -> Emitter:
        return Emitter(self.events.append)

    def lock(self, *, complete: bool = False) -> Locked:
        """Locks and commits the content, as the verb does; the lock itself is not written."""
        target = self.workspace.target(self.name)
        contents = self.contents
        locker = Locker(
            target, self.workspace.series(target), self.source, self.facts, contents, self.emitter, self.store
        )
        locked = locker.lock(complete=complete)
        contents.commit(locked.content)
        return locked

    def build(self, lock: Lock, folder: Path) -> Image:
        target = self.workspace.target(self.name)
        base_files = BaseFiles(lock, Opener(self.space.root), target, self.contents, self.facts, self.emitter)
        return build_image(
            lock, target, self.workspace.series(target), self.contents, base_files, folder, self.emitter, self.store
        )

    def layers_read(self) -> list[Digest]:
        """Digests of the layers that were asked for since the list was cleared."""
        layers = {layer.descriptor.digest for layer in self.space.base.layers}
        return [digest for digest in self.source.reads if digest in layers]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    """Makes a Bench; keyword arguments as engine_base, or the base itself."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)

    def make(base: MadeImage | None = None, **of_base: Any) -> Bench:
        base = base or engine_base(**of_base)
        space = SmallWorkspace(tmp_path / "ws", base)
        space.write_target()
        space.write_overlay()
        return Bench(space, MemorySource(base), [])

    return make


@pytest.fixture
def wheels(bench: Callable[..., Bench], tmp_path: Path) -> Callable[..., Wheels]:
    """Makes a Bench with a folder of wheels; arguments as `bench`."""
    return lambda *base, **of_base: Wheels(bench(*base, **of_base), tmp_path / "wheels")
