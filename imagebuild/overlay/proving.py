"""Guards taken from a real run: an overlay is applied to every platform's base, and what was seen becomes its guards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from imagebuild.errors import RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import Guard
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.guards import join_guards
from imagebuild.overlay.members import read_member
from imagebuild.overlay.series import apply_series
from imagebuild.overlay.series_changes import ReadMember
from imagebuild.overlay.series_tree import Base


def prove_guards(
    overlay: Overlay,
    bases: Mapping[Platform, Base],
    roots: Collection[str],
    *,
    earlier: Sequence[Overlay] = (),
    read: ReadMember = read_member,
) -> dict[str, Guard | Mapping[Platform, Guard]]:
    """The guards of `overlay` behind the overlays `earlier`, one for each path or one for each platform.

    Guards that the overlay has are checked on the way.  Raises what `apply_series` raises, and RefusedError
    `overlay.platforms-differ` where the first platform takes the change and another does not.
    """
    each: dict[Platform, dict[str, Guard]] = {}
    first: Platform | None = None
    for platform, base in bases.items():
        try:
            done = apply_series([*earlier, overlay], roots, base, platform, read=read)
        except RefusedError as error:
            if first is None:
                raise
            raise RefusedError(
                "overlay.platforms-differ",
                f"the change fits {first} and not {platform}: {error.message}",
                expected=error.expected,
                found=error.found,
                hint="make one overlay for each platform, each with a target of its own",
                details=error.details,
            ) from error
        each[platform] = done.guards(overlay.name)
        first = first or platform
    paths = sorted({path for guards in each.values() for path in guards}, key=lambda path: path.encode())
    return {
        path: join_guards({platform: guards[path] for platform, guards in each.items() if path in guards})
        for path in paths
    }
