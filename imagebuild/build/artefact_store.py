"""Files of artefacts by their digest: what is at hand first, the network second.

`artefacts/` of the cache holds wheels, blobs and outputs of stages, each under the sha256 of its bytes.  Nothing is given out
whose digest was not computed in this run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from imagebuild.build.events import Emitter
from imagebuild.build.index_wheels import IndexWheel, fetch_from_index
from imagebuild.build.opening import Opener
from imagebuild.content.digest import Digest
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults, link_or_copy
from imagebuild.content.store import ContentStore
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import BlobChange, StageChange, WheelChange
from imagebuild.overlay.distributions import normalise_name
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.wheel_archive import sha256_of

if TYPE_CHECKING:
    from imagebuild.build.stage import LearnedStage

SIZE_LIMIT = 8 << 30
"""Bytes of one artefact at most."""


@dataclass(frozen=True, slots=True)
class ArtefactFile:
    """A file on disk whose digest was computed; as the data of a new entry it is opened afresh each time."""

    path: Path
    size: int
    sha256: Digest

    def open(self) -> BinaryIO:
        with io_faults(self.path, "reading"):
            return open(self.path, "rb")

    def read(self) -> bytes:
        with self.open() as stream:
            return stream.read()


class Stages(Protocol):
    """What makes the outputs of stages and keeps them in the store (stage.StageMaker)."""

    def learn(self, change: StageChange, platform: Platform) -> LearnedStage: ...

    def provide(self, change: StageChange, platform: Platform, wanted: Mapping[str, Digest]) -> None: ...


class ArtefactStore:
    """Finds artefacts.  `given` are stores that are looked into and never written (an export of another run's); `wheels` a folder of wheel
    files under their own names; without `opener` nothing is fetched, and without `make_stages` (set by whoever knows the workspace) nothing is compiled."""

    def __init__(
        self,
        store: ContentStore,
        emitter: Emitter,
        *,
        opener: Opener | None = None,
        given: Sequence[ContentStore] = (),
        wheels: Path | None = None,
    ) -> None:
        self.store = store
        self.opener = opener
        self.make_stages: Callable[[], Stages] | None = None
        self.fetched_bytes = 0
        self._emitter = emitter
        self._given = tuple(given)
        self._wheels = wheels
        self._known: dict[Digest, ArtefactFile] = {}

    @cached_property
    def stages(self) -> Stages | None:
        """What makes outputs of stages; made when an overlay has one."""
        return None if self.make_stages is None else self.make_stages()

    def get(self, digest: Digest) -> ArtefactFile | None:
        """The file with that digest where it is at hand; a damaged copy of the cache is removed and counts as absent."""
        known = self._known.get(digest)
        if known is not None:
            return known
        for store in (*self._given, self.store):
            path = store.path(digest)
            if not path.is_file():
                continue
            if sha256_of(path) == digest:
                return self._remember(path, digest)
            if store is self.store:
                store.remove(digest)
        return None

    def keep(self, path: Path) -> ArtefactFile:
        """Takes a finished file into the store (linked where the file system can; it must not change afterwards)."""
        digest = sha256_of(path)
        found = self.get(digest)
        if found is not None:
            return found
        link_or_copy(path, self.store.path(digest))
        return self._remember(self.store.path(digest), digest)

    def _remember(self, path: Path, digest: Digest) -> ArtefactFile:
        self._known[digest] = file = ArtefactFile(path, path.stat().st_size, digest)
        return file

    def wheel(self, change: WheelChange, platform: Platform, python: str) -> ArtefactFile:
        """The wheel of one platform.

        Raises RefusedError `build.wheel-no-digest` where the overlay has none for the platform, `build.artefact-mismatch` where other
        bytes came, UnavailableError `build.wheel-unavailable`, `build.artefact-unavailable` and what the network raises.
        """
        digest = change.sha256.get(platform)
        if digest is None:
            raise RefusedError(
                "build.wheel-no-digest",
                f"the wheel {change.name} {change.version} has no digest for {platform}",
                expected=str(platform),
                found=", ".join(map(str, change.sha256)),
                hint=f"imagebuild overlay pin OVERLAY {change.name}=={change.version}",
            )
        what = f"the wheel {change.name} {change.version} for {platform}"
        found = self.get(digest) or self._beside(change, digest)
        if found is not None:
            return found
        url = change.address(platform)
        if url is not None:
            return self._fetch(digest, what, self._downloader(url, SIZE_LIMIT))
        wanted = IndexWheel(change.name, change.version, platform, python, digest)
        return self._fetch(digest, what, lambda folder, advance: fetch_from_index(wanted, folder, advance))

    def find_wheel(self, wanted: IndexWheel, url: str | None = None) -> tuple[ArtefactFile, str]:
        """The wheel that the index has for a version, or the file at `url`, kept, and its file name.  Raises as `wheel`."""
        if url is not None:
            found = self._fetch(None, f"the wheel at {url}", self._downloader(url, SIZE_LIMIT))
            return found, url.partition("?")[0].rpartition("/")[2]
        what = f"the wheel {wanted.name} {wanted.version} for {wanted.platform}"
        name = ""

        def fetch(folder: Path, advance: Callable[[int], None]) -> Path:
            nonlocal name
            path = fetch_from_index(wanted, folder, advance)
            name = path.name
            return path

        return self._fetch(wanted.sha256, what, fetch), name

    def blob(self, overlay: Overlay, change: BlobChange) -> ArtefactFile:
        """The file of a blob, its size and digest as declared.

        Raises RefusedError `build.artefact-mismatch`, and what the network raises.
        """
        what = f"the blob {change.path} of overlay {overlay.name}"
        if change.file is not None:
            path = overlay.folder / change.file
            with io_faults(path, "reading"):
                size = path.stat().st_size
            file = ArtefactFile(path, size, sha256_of(path))
            if file.sha256 != change.sha256:
                raise _mismatch(what, str(change.sha256), str(file.sha256))
        else:
            assert change.url is not None
            file = self.get(change.sha256) or self._fetch(
                change.sha256, what, self._downloader(change.url, change.size or SIZE_LIMIT)
            )
        if change.size is not None and file.size != change.size:
            raise _mismatch(what, f"{change.size} bytes", f"{file.size} bytes")
        return file

    def outputs(self, change: StageChange, platform: Platform, wanted: Mapping[str, Digest]) -> None:
        """Sees to it that the outputs of a stage (path in the stage: digest) are at hand.

        Raises as `StageMaker.provide`; UnavailableError `build.artefact-unavailable` where nothing is compiled here.
        """
        missing = [f"{path} {digest}" for path, digest in sorted(wanted.items()) if self.get(digest) is None]
        if missing and self.stages is None:
            raise UnavailableError(
                "build.artefact-unavailable",
                f"the outputs of {change.dockerfile} for {platform} are not at hand, and nothing is built here",
                expected=", ".join(missing),
                hint="run imagebuild build TARGET where they can be fetched or built",
            )
        if missing and self.stages is not None:
            self.stages.provide(change, platform, wanted)

    def _beside(self, change: WheelChange, digest: Digest) -> ArtefactFile | None:
        """A wheel that was put into the folder by hand, or by a maker of bases."""
        if self._wheels is None or not self._wheels.is_dir():
            return None
        with io_faults(self._wheels, "listing"):
            paths = sorted(self._wheels.glob("*.whl"))
        for path in paths:
            name = normalise_name(path.name.partition("-")[0])
            if name == normalise_name(change.name) and sha256_of(path) == digest:
                return self._remember(path, digest)
        return None

    def _downloader(self, url: str, limit: int) -> Callable[[Path, Callable[[int], None]], Path]:
        def fetch(folder: Path, advance: Callable[[int], None]) -> Path:
            from imagebuild.registry.download import download
            from imagebuild.registry.open import open_client

            assert self.opener is not None
            path = folder / "download"
            with io_faults(path, "writing"), open(path, "wb") as out:
                download(open_client(self.opener.registry_options()), url, out, limit, advance)
            return path

        return fetch

    def _fetch(
        self, digest: Digest | None, what: str, fetch: Callable[[Path, Callable[[int], None]], Path]
    ) -> ArtefactFile:
        """Fetches into a folder of its own inside the store, and keeps what has the digest."""
        if self.opener is None:
            raise UnavailableError(
                "build.artefact-unavailable",
                f"{what} is not at hand, and nothing is fetched here",
                expected=None if digest is None else str(digest),
                hint="run imagebuild lock TARGET or imagebuild build TARGET where it can be fetched",
            )
        self._emitter.emit("artefact.fetching", what=what)
        advance = self._emitter.task(f"fetching {what}", None)
        with io_faults(self.store.root, "making"):
            self.store.root.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self.store.root))
        try:
            path = fetch(folder, advance)
            found = sha256_of(path)
            path.chmod(0o644)
            if digest is not None and found != digest:
                raise _mismatch(what, str(digest), str(found))
            kept = self.keep(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.fetched_bytes += kept.size
        self._emitter.emit("artefact.fetched", what=what, digest=str(kept.sha256), size=kept.size)
        return kept


def _mismatch(what: str, expected: str, found: str) -> RefusedError:
    return RefusedError(
        "build.artefact-mismatch",
        f"{what} is not the file that overlay.yaml names",
        expected=expected,
        found=found,
        hint="look at where it comes from; if the new file is meant, write its digest into overlay.yaml",
    )
