"""Blobs within a series: below the changes, guarded like them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError, RefusedError, SeveralErrors, UnavailableError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.brought import BroughtFile, bring_declared
from imagebuild.overlay.changes import (
    BlobChange,
    Change,
    DeleteChange,
    EditChange,
    FileChange,
    Guard,
    StageChange,
    SymlinkChange,
    WheelChange,
)
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.guards import BaseFile
from imagebuild.overlay.series import AppliedSeries, apply_series
from imagebuild.overlay.series_tree import MemoryBase

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
OLD, NEW = b"old module", b"new module\n"
BASE: Mapping[str, BaseFile | bytes] = {"r/m.so": BaseFile(None, 0o755, Digest.of(OLD)), "r/a.py": b"a = 1\n"}


def overlay(name: str, *changes: Change, guards: Mapping[str, Guard] | None = None) -> Overlay:
    return Overlay(name, "a test", changes, Path("/nowhere") / name, guards=guards or {})


def blob(path: str = "r/m.so", data: bytes = NEW, **more: object) -> BlobChange:
    return BlobChange(path, Digest.of(data), file="f", **more)  # type: ignore[arg-type]


def apply(*overlays: Overlay, platform: Platform = AMD64, data: bytes | None = None, **more: object) -> AppliedSeries:
    def bring(overlay: Overlay, change: BlobChange | StageChange, on: Platform) -> tuple[BroughtFile, ...]:
        return tuple(
            BroughtFile(file.path, file.kind, file.sha256, file.mode, data)
            for file in bring_declared(overlay, change, on)
        )

    return apply_series(
        overlays, {"r"}, MemoryBase(BASE), platform, read=lambda _, name: name.encode(), bring=bring, **more
    )  # type: ignore[arg-type]


def fault(*overlays: Overlay, **more: object) -> ImagebuildError:
    with pytest.raises((RefusedError, InputError, UnavailableError, SeveralErrors)) as caught:
        apply(*overlays, **more)  # type: ignore[arg-type]
    return caught.value


def test_a_blob_replaces_the_base_s_file_and_keeps_its_mode() -> None:
    done = apply(overlay("o", blob()))
    (file,) = done.brought
    assert (file.path, file.kind, file.sha256, file.mode) == ("r/m.so", "blob", Digest.of(NEW), 0o755)
    assert file.preimage == Digest.of(OLD)
    assert done.written == ()
    assert done.notes == ()


def test_a_new_blob_is_0644_unless_it_says_otherwise() -> None:
    done = apply(overlay("o", blob("r/new.bin"), blob("r/tool", mode=0o755)))
    assert [(file.path, file.mode, file.preimage) for file in done.brought] == [
        ("r/new.bin", 0o644, None),
        ("r/tool", 0o755, None),
    ]


def test_guards_of_a_blob_are_checked_and_made() -> None:
    right = {"r/m.so": Guard((Digest.of(OLD),), Digest.of(NEW))}
    assert apply(overlay("o", blob(), guards=right), require_guards=True).unguarded == ()
    wrong = {"r/m.so": Guard((Digest.of(b"another"),), Digest.of(NEW))}
    assert fault(overlay("o", blob(), guards=wrong)).code == "overlay.preimage-mismatch"
    other = {"r/m.so": Guard((Digest.of(OLD),), Digest.of(b"another"))}
    assert fault(overlay("o", blob(), guards=other)).code == "overlay.postimage-mismatch"
    done = apply(overlay("o", blob()))
    assert done.unguarded == (("o", "r/m.so"),)
    assert done.guards("o")["r/m.so"] == Guard((Digest.of(OLD),), Digest.of(NEW))


def test_a_blob_that_the_base_has_already_is_said() -> None:
    assert fault(overlay("o", blob(data=OLD))).code == "overlay.already-applied"
    assert apply(overlay("o", blob(data=OLD)), expect_applied=["o"]).brought == ()


def test_a_later_edit_of_a_blob_lies_above_it() -> None:
    done = apply(overlay("o", blob("r/t.txt")), overlay("p", EditChange("r/t.txt", "new", "newer")), data=NEW)
    (below,), (above,) = done.brought, done.written
    assert below.sha256 == Digest.of(NEW)
    assert (above.data, above.preimage) == (b"newer module\n", Digest.of(NEW))
    assert above.overlays == ("o", "p")


def test_an_edit_of_a_blob_needs_its_bytes() -> None:
    assert (
        fault(overlay("o", blob("r/t.txt"), EditChange("r/t.txt", "new", "x"))).code == "overlay.preimage-unavailable"
    )


def test_a_later_file_or_deletion_lies_above_it() -> None:
    done = apply(overlay("o", blob()), overlay("p", FileChange("whole", "r/m.so")))
    assert done.written[0].preimage == Digest.of(NEW)
    gone = apply(overlay("o", blob()), overlay("p", DeleteChange(path="r/m.so")))
    assert gone.deleted[0].preimage == Digest.of(NEW)
    assert [file.path for file in gone.brought] == ["r/m.so"]


def test_the_later_of_two_blobs_counts() -> None:
    done = apply(overlay("o", blob()), overlay("p", blob(data=b"newest")))
    (file,) = done.brought
    assert (file.sha256, file.preimage, file.overlays) == (Digest.of(b"newest"), Digest.of(OLD), ("o", "p"))


def test_a_change_before_the_blob_is_refused() -> None:
    error = fault(overlay("o", FileChange("whole", "r/m.so")), overlay("p", blob()))
    assert (error.code, error.details["path"]) == ("overlay.artefact-order", "r/m.so")


def test_a_blob_cannot_stand_where_something_else_is() -> None:
    assert fault(overlay("o", blob("r/a.py/x"))).code == "overlay.path-conflict"
    linked = fault(overlay("o", SymlinkChange("r/l", "a.py")), overlay("p", blob("r/l")))
    assert linked.code == "overlay.artefact-order"
    assert fault(overlay("o", blob("other/x"))).code == "overlay.unknown-root"


def test_a_blob_of_another_platform_is_left_out() -> None:
    both = overlay("o", blob(platforms=(AMD64,)), blob(data=b"arm", platforms=(ARM64,)))
    assert apply(both).brought[0].sha256 == Digest.of(NEW)
    assert apply(both, platform=ARM64).brought[0].sha256 == Digest.of(b"arm")


def test_two_blobs_for_one_path_and_platform_are_refused_when_read() -> None:
    with pytest.raises(InputError) as caught:
        overlay("o", blob(platforms=(AMD64, ARM64)), blob(data=b"arm", platforms=(ARM64,)))
    assert caught.value.code == "overlay.made-twice"
    with pytest.raises(InputError):
        overlay("o", blob(), blob(data=b"arm", platforms=(ARM64,)))


def test_a_wheel_changes_no_single_path_and_a_stage_needs_its_outputs() -> None:
    assert apply(overlay("o", WheelChange("w", "1", {AMD64: Digest.of(b"")}))) == apply(overlay("o"))
    stage = StageChange("Dockerfile", {"/out": "r/x"})
    assert fault(overlay("o", stage)).code == "overlay.kind-not-supported"
