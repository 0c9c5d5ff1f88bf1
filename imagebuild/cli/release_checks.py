"""The checks that this machine can run for a release, as functions that leave their statements below build/."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.release.request import RunCheck


def checks_here(name: str, session: Session) -> dict[str, RunCheck]:
    """By name; a check that nothing here can run is left out, and the release then says so."""
    return {}
