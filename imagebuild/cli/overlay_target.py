"""Which target an overlay is worked on against, and the overlays that come before it in that target's series."""

from __future__ import annotations

from imagebuild.cli.session import Session
from imagebuild.errors import InputError
from imagebuild.overlay.document import Overlay
from imagebuild.target.document import Target


def target_for(session: Session, overlay: str, named: str | None) -> Target:
    """The named target, else the only one that lists the overlay.  Raises InputError `overlay.which-target`."""
    if named is not None:
        return session.workspace.target(named)
    using = [name for name in session.workspace.targets() if overlay in session.workspace.target(name).overlays]
    if len(using) != 1:
        raise InputError(
            "overlay.which-target",
            f"{len(using)} targets list the overlay {overlay}",
            expected="one",
            found=", ".join(using) or "none",
            hint="name one with --target",
        )
    return session.workspace.target(using[0])


def earlier_overlays(session: Session, target: Target, overlay: str) -> tuple[Overlay, ...]:
    """The overlays before this one; all of them where the target does not list it yet."""
    names = list(target.overlays)
    if overlay in names:
        names = names[: names.index(overlay)]
    return tuple(session.workspace.overlay(name) for name in names)


def folder_roots(target: Target) -> tuple[str, ...]:
    """The roots that stand for a folder rather than a package."""
    return tuple(name for name, spec in target.roots.items() if spec.python is None)
