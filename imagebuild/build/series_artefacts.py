"""Files that a series brings below its changes, path by path: blobs, and whatever else has a digest and bytes at hand.

A further kind (outputs of stages) is one more branch of `SeriesArtefacts.__call__` that gives BroughtFile values and remembers the
files; everything behind it works by digest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from imagebuild.build.artefact_store import ArtefactFile, ArtefactStore
from imagebuild.content.digest import Digest
from imagebuild.oci.platform import Platform
from imagebuild.overlay.brought import BroughtFile, bring_declared
from imagebuild.overlay.changes import BlobChange, StageChange
from imagebuild.overlay.document import Overlay
from imagebuild.target.lock_types import ArtefactSource

Check = Callable[[Overlay, BlobChange, Platform, ArtefactFile], None]
"""Looks at a blob before it is taken; raises what is wrong with it."""


class SeriesArtefacts:
    """Gives a series the files of its artefacts (`overlay.brought.Bring`), for one platform.

    `whole` are the ROOT/relative paths whose bytes a later change needs.  After the series: `files` by digest, `sources` for the lock.
    """

    def __init__(self, store: ArtefactStore, whole: Collection[str], check: Check | None = None) -> None:
        self.files: dict[Digest, ArtefactFile] = {}
        self.sources: dict[tuple[str, str], ArtefactSource] = {}
        self._store = store
        self._whole = whole
        self._check = check

    def __call__(
        self, overlay: Overlay, change: BlobChange | StageChange, platform: Platform
    ) -> tuple[BroughtFile, ...]:
        """Raises what fetching and checking raise, and InputError `overlay.kind-not-supported` for a stage."""
        out = []
        for brought in bring_declared(overlay, change, platform):
            assert isinstance(change, BlobChange)
            file = self._store.blob(overlay, change)
            if self._check is not None:
                self._check(overlay, change, platform, file)
            out.append(self.take(brought, file))
        return tuple(out)

    def take(self, brought: BroughtFile, file: ArtefactFile) -> BroughtFile:
        """Remembers where the bytes of a file are; gives it with its bytes where a later change needs them."""
        self.files[file.sha256] = file
        self.sources[brought.kind, brought.path] = ArtefactSource(brought.kind, brought.path, file.sha256, file.size)
        if brought.path not in self._whole:
            return brought
        return BroughtFile(brought.path, brought.kind, brought.sha256, brought.mode, file.read())
