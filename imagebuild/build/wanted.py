"""What people's files ask for, without their commentary.

The value stands in the lock's inputs.  A build makes it again from the files of the day: equal means the lock is current,
and a change of an author's name or a description is no change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.oci.platform import Platform
from imagebuild.overlay.document import (
    BlobChange,
    DeleteChange,
    EditChange,
    EnvChange,
    FileChange,
    Overlay,
    PatchChange,
    StageChange,
    SymlinkChange,
    WheelChange,
)
from imagebuild.overlay.patch import patch_digest
from imagebuild.overlay.patch_parse import parse_patch
from imagebuild.target.document import Target
from imagebuild.target.workspace import Workspace


def _file(overlay: Overlay, name: str) -> bytes:
    path = overlay.folder / name
    with io_faults(path, "reading"):
        return path.read_bytes()


def _change(overlay: Overlay, change: object, platforms: Sequence[Platform]) -> dict[str, Any]:
    if isinstance(change, PatchChange):
        return {"kind": "patch", "digest": str(patch_digest(parse_patch(_file(overlay, change.patch))))}
    if isinstance(change, FileChange):
        return {"kind": "file", "to": change.to, "sha256": str(Digest.of(_file(overlay, change.file)))}
    if isinstance(change, EditChange):
        return {"kind": "edit", "path": change.path, "find": change.find, "replace": change.replace}
    if isinstance(change, DeleteChange):
        return {
            "kind": "delete",
            **({"path": change.path} if change.path is not None else {"glob": change.glob, "count": change.count}),
        }
    if isinstance(change, SymlinkChange):
        return {"kind": "symlink", "path": change.path, "to": change.to}
    if isinstance(change, EnvChange):
        return {"kind": "env", "env": [[name, value] for name, value in change.env.items()]}
    if isinstance(change, WheelChange):
        # where a file comes from, and what is checked of it, is no part of what it is
        return {
            "kind": "wheel",
            "name": change.name,
            "version": change.version,
            "sha256": {str(platform): str(digest) for platform, digest in change.sha256.items()},
        }
    if isinstance(change, BlobChange):
        return {
            "kind": "blob",
            "path": change.path,
            "sha256": str(change.sha256),
            "mode": None if change.mode is None else f"{change.mode:04o}",
            "platforms": sorted(map(str, change.platforms)),
        }
    if isinstance(change, StageChange):
        # few overlays have one, and reading Dockerfiles is not loaded for the others
        from imagebuild.build.stage_definition import wanted_stage

        return wanted_stage(Workspace.find(overlay.folder).root, change, sorted(platforms))
    raise AssertionError(f"no form for {type(change).__name__}")


def describe_wanted(target: Target, overlays: Sequence[Overlay]) -> dict[str, Any]:
    """The `wanted` value of a lock (lock_types.Inputs)."""
    return {
        "platforms": sorted(str(platform) for platform in target.platforms),
        "overlays": [
            {
                "name": overlay.name,
                "changes": [_change(overlay, change, target.platforms) for change in overlay.changes],
            }
            for overlay in overlays
        ],
        "roots": {name: spec.to_json() for name, spec in target.roots.items()},
        "derived": {"record": target.derived_record},
        "env": [[name, value] for name, value in target.env.items()],
        "requires": dict(target.requires_env),
        "identity": dict(target.identity),
        "expect_applied": sorted(target.expect_applied),
        **({"untouched": sorted(target.untouched)} if target.untouched else {}),
    }


def differences(locked: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Which parts are stale, in words: `overlays.x`, `env`, …"""
    for key in sorted({*locked, *wanted}):
        if key == "overlays" and key in locked and key in wanted:
            before = {item["name"]: item for item in locked[key]}
            after = {item["name"]: item for item in wanted[key]}
            for name in sorted({*before, *after}):
                if name not in before:
                    yield f"overlay {name} is new"
                elif name not in after:
                    yield f"overlay {name} is gone"
                elif before[name] != after[name]:
                    yield f"overlay {name} has changed"
            if list(before) != list(after) and set(before) == set(after):
                yield "the order of the overlays has changed"
        elif locked.get(key) != wanted.get(key):
            yield f"{key} has changed"
