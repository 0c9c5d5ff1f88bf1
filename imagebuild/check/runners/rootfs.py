"""Unpacked images on disk, one folder each, named by the platform manifest's digest."""

from __future__ import annotations

from pathlib import Path

from imagebuild.check.runner import CheckedImage
from imagebuild.check.runners.place import remove_tree
from imagebuild.check.runners.unpack import unpack_image
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.host.environment import cache_folder
from imagebuild.layer.facts_store import FactsStore
from imagebuild.oci.lock import locked

_ROOT = "rootfs"


class Rootfs:
    """`FOLDER/HEX/rootfs`, made once under a lock and renamed when whole, so that several processes may share the folder.

    The folders are open to their owner alone: an image's set-id programs are nothing for other users of the machine.
    With `keep` images stay for another time, else those that this process unpacked go with `close`.
    """

    def __init__(self, folder: Path, *, keep: bool = False, owners: bool | None = None) -> None:
        self._folder = folder
        self._keep = keep
        self._owners = owners
        self._made: list[Path] = []

    def of(self, image: CheckedImage) -> Path:
        """The root file system of the image, unpacked if it is not there; nothing may be written to it.

        Raises what unpack_image raises, UnavailableError `content.io`.
        """
        place = self._folder / image.digest.hex
        root = place / _ROOT
        with io_faults(place, "making"):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(place):
            if root.is_dir():
                return root
            for left in place.glob(f"{TEMPORARY_PREFIX}*"):
                remove_tree(left)
            partial = place / f"{TEMPORARY_PREFIX}{_ROOT}"
            try:
                unpack_image(image, partial, owners=self._owners, facts=FactsStore(cache_folder() / "facts"))
                with io_faults(root, "naming"):
                    partial.rename(root)
            except BaseException:
                remove_tree(partial)
                raise
        self._made.append(place)
        return root

    def close(self) -> None:
        while self._made:
            made = self._made.pop()
            if not self._keep:
                remove_tree(made)
