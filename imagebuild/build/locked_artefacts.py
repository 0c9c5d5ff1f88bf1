"""The files of the artefacts layer of a locked build: fetched by digest, laid out as the lock says, the base never
looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from imagebuild.build.artefact_store import ArtefactFile, ArtefactStore
from imagebuild.build.asked import Asked
from imagebuild.build.layer_data import image_path
from imagebuild.build.origins import BROUGHT
from imagebuild.build.series_artefacts import SeriesArtefacts
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Data
from imagebuild.oci.platform import Platform
from imagebuild.overlay.blob_checks import check_blob
from imagebuild.overlay.changes import BlobChange, WheelChange
from imagebuild.overlay.distributions import normalise_name
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.series import AppliedSeries
from imagebuild.overlay.wheel_archive import open_wheel
from imagebuild.overlay.wheel_install import Scheme, install_wheel
from imagebuild.target.lock_types import ArtefactSource, LayerItem, PathFact, PlatformInputs


class LockedArtefacts:
    """The artefacts of one platform of a lock.  `bring` gives a series its blobs and outputs of stages; nothing is
    fetched before it is asked for."""

    def __init__(
        self, platform: PlatformInputs, overlays: Sequence[Overlay], store: ArtefactStore, asked: Asked
    ) -> None:
        self._platform = platform
        self._overlays = overlays
        self._store = store
        self.bring = SeriesArtefacts(store, asked.whole, _check, platform.sources)

    @cached_property
    def wheel_files(self) -> dict[str, Data]:
        """Every file that the wheels bring, by image path."""
        out: dict[str, Data] = {}
        for source in self._platform.sources:
            if source.kind == "wheel":
                change = self._change(source)
                file = self._store.wheel(change, self._platform.platform, source.details["python"])
                for path, data in locked_wheel_files(source, file).items():
                    out.setdefault(path, data)
        return out

    def _change(self, source: ArtefactSource) -> WheelChange:
        for overlay in self._overlays:
            for change in overlay.changes:
                if isinstance(change, WheelChange) and normalise_name(change.name) == normalise_name(source.name):
                    return change
        raise _stale(self._platform.platform, f"the wheel {source.name}")

    def read(self, fact: PathFact) -> bytes:
        """The bytes of a file that a wheel brings and a change patches."""
        with self.wheel_files[fact.path].open() as stream:
            return stream.read()

    def files(self, applied: AppliedSeries) -> dict[str, Data]:
        """The data of each file item of the artefacts layer, by image path.  Raises RefusedError `lock.stale` where
        the series brings other paths than the lock lists."""
        items = {item.origin.partition(":")[2]: item for item in self._platform.artefacts if _is_brought(item)}
        made = {file.path: file for file in applied.brought}
        if set(made) != set(items):
            raise _stale(self._platform.platform, ", ".join(sorted(set(made) ^ set(items))[:5]))
        out: dict[str, Data] = {items[path].path: self.bring.files[file.sha256] for path, file in made.items()}
        for item in self._platform.artefacts:
            if item.kind != "file" or item.path in out:
                continue
            if item.path not in self.wheel_files:
                raise _stale(self._platform.platform, item.path)
            out[item.path] = self.wheel_files[item.path]
        return out


def locked_wheel_files(source: ArtefactSource, file: ArtefactFile) -> dict[str, Data]:
    """The files of a wheel that a lock names, by image path, made again without the base."""
    scheme = Scheme(**source.details["scheme"])
    links: Mapping[str, str] = source.details.get("links", {})
    out: dict[str, Data] = {}
    for made in install_wheel(open_wheel(file.path, source.name, source.version), scheme):
        folder, _, name = made.path.rpartition("/")
        out[image_path(f"{links.get(folder, folder)}/{name}")] = made.data
    return out


def _is_brought(item: LayerItem) -> bool:
    return item.origin.startswith(BROUGHT)


def _check(overlay: Overlay, change: BlobChange, platform: Platform, file: ArtefactFile) -> None:
    check_blob(overlay.name, change, platform, file.path)


def _stale(platform: Platform, what: str) -> RefusedError:
    return RefusedError(
        "lock.stale",
        f"the artefacts for {platform} are others than the lock lists: {what}",
        hint="imagebuild lock TARGET",
    )
