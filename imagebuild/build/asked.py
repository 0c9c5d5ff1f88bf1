"""What the overlays of a series ask of the base, told from their own text before anything of the base is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from imagebuild.oci.platform import Platform
from imagebuild.overlay.document import (
    BlobChange,
    DeleteChange,
    EditChange,
    FileChange,
    Overlay,
    PatchChange,
    StageChange,
    SymlinkChange,
    guards_for,
)
from imagebuild.overlay.members import read_member
from imagebuild.overlay.patch_parse import parse_patch


@dataclass(frozen=True, slots=True)
class Asked:
    """ROOT/relative paths of a series: all that are named, those expected to be new, those whose bytes are needed (patched
    and edited ones), those whose bytes are shown (replaced whole: a reviewer, or a mismatch, shows the difference), and
    those that are links or are deleted, which speak of a link of the base itself and not of what it leads to."""

    named: frozenset[str]
    new: frozenset[str]
    whole: frozenset[str]
    shown: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()


def asked_paths(overlays: Sequence[Overlay], platform: Platform) -> Asked:
    """Raises what parse_patch raises."""
    named: set[str] = set()
    whole: set[str] = set()
    shown: set[str] = set()
    links: set[str] = set()
    # the first overlay that touches a path speaks of the base; later ones speak of what that one made
    new: dict[str, bool] = {}
    for overlay in overlays:
        for path, guard in guards_for(overlay, platform).items():
            new.setdefault(path, None in guard.preimage)
        for change in overlay.changes:
            if isinstance(change, PatchChange):
                for file in parse_patch(read_member(overlay, change.patch)).files:
                    if file.old_path is not None:
                        named.add(file.old_path)
                        whole.add(file.old_path)
                        new.setdefault(file.old_path, False)
                    if file.new_path is not None:
                        named.add(file.new_path)
                        new.setdefault(file.new_path, file.old_path != file.new_path)
            elif isinstance(change, EditChange):
                named.add(change.path)
                whole.add(change.path)
                new.setdefault(change.path, False)
            elif isinstance(change, FileChange | SymlinkChange):
                path = change.to if isinstance(change, FileChange) else change.path
                named.add(path)
                (shown if isinstance(change, FileChange) else links).add(path)
                new.setdefault(path, True)
            elif isinstance(change, BlobChange):
                if not change.platforms or platform in change.platforms:
                    named.add(change.path)
                    new.setdefault(change.path, True)
            elif isinstance(change, StageChange):
                for path in change.out.values():
                    named.add(path)
                    new.setdefault(path, True)
            elif isinstance(change, DeleteChange) and change.path is not None:
                named.add(change.path)
                links.add(change.path)
    expected_new = frozenset(path for path, is_new in new.items() if is_new)
    return Asked(frozenset(named), expected_new, frozenset(whole), frozenset(shown - whole), frozenset(links - whole))
