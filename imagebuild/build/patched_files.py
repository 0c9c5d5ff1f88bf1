"""What a series does to the files of one distribution, for the SBOM in its dist-info."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from imagebuild.attest.predicates.package_sbom import PatchedFile, package_sbom
from imagebuild.attest.predicates.sbom import Package
from imagebuild.build.layer_data import image_path
from imagebuild.content.digest import Digest
from imagebuild.overlay.series import AppliedSeries


def patched_files(
    applied: AppliedSeries, places: Mapping[str, str], touched: Collection[str], whole: Collection[str]
) -> Iterator[PatchedFile]:
    """The changes at the resolved image paths in `touched`; `places` gives the place of each ROOT/relative path.

    Only files in `whole` (their bytes before are needed by every build) have a diff: whether those of others are at hand
    depends on the cache, and what is written may not.
    """

    def word(preimage: Digest | None) -> str:
        return "added" if preimage is None else "changed"

    written = {file.path for file in applied.written}
    for file in applied.written:
        if places[file.path] in touched:
            diff = file.diff if file.path in whole else b""
            yield PatchedFile(image_path(places[file.path]), word(file.preimage), file.overlays, diff)
    for link in applied.links:
        if places[link.path] in touched:
            yield PatchedFile(image_path(places[link.path]), word(link.preimage), link.overlays)
    for gone in applied.deleted:
        if places[gone.path] in touched:
            yield PatchedFile(image_path(places[gone.path]), "removed", gone.overlays)
    for brought in applied.brought:
        if places[brought.path] in touched and brought.path not in written:
            yield PatchedFile(image_path(places[brought.path]), word(brought.preimage), brought.overlays)


def sbom_of(info: str, files: Iterator[PatchedFile], created: int) -> bytes:
    """The SBOM for the dist-info folder `info`."""
    package = Package.of(info) or Package("", info.rpartition("/")[2].removesuffix(".dist-info"), "")
    return package_sbom(package, files, created)
