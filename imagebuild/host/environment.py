"""Environment variables and folders of the user."""

from __future__ import annotations

import os
from pathlib import Path


def variable(name: str) -> str | None:
    """The value, None where unset; an empty value counts as unset."""
    return os.environ.get(name) or None


def cache_folder() -> Path:
    """`IMAGEBUILD_CACHE`, else `$XDG_CACHE_HOME/imagebuild`, else `~/.cache/imagebuild` (cli.md, Common)."""
    named = variable("IMAGEBUILD_CACHE")
    if named:
        return Path(named)
    base = variable("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "imagebuild"


def variables() -> dict[str, str]:
    """A copy of all variables, to be handed on to a child with changes."""
    return dict(os.environ)
