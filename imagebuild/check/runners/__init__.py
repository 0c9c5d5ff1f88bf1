"""Ways of starting commands in images, by name (checks.md, Runners)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, cast

from imagebuild.check.runner import Runner
from imagebuild.check.runners.place import place_of
from imagebuild.errors import InputError
from imagebuild.target.site import RUNNERS, Site

_CLASSES = {
    "docker": "DockerRunner",
    "podman": "PodmanRunner",
    "oci": "OciRunner",
    "slurm": "SlurmRunner",
    "host": "HostRunner",
}


def open_runner(
    name: str, *, site: Site | None = None, scratch: Path | None = None, keep: bool = False, **options: Any
) -> Runner:
    """The runner with that name; it starts nothing and asks nothing before its first call.

    `site` gives mounts, environment and scratch folder of the place; `scratch` goes before the site's, and without either
    the runner has a temporary folder of its own.  With `keep`, images that were unpacked or loaded stay for another time.
    `options` are handed to the runner as they are (`runtime` of oci and podman, for example).

    Raises InputError `check.unknown-runner`.
    """
    if name not in _CLASSES:
        raise InputError("check.unknown-runner", f"there is no runner {name[:80]}", expected=", ".join(RUNNERS))
    made = getattr(import_module(f"imagebuild.check.runners.{name}"), _CLASSES[name])
    place = place_of(site, scratch, keep)
    if name == "slurm":
        return cast(Runner, made(site, place, **options))
    return cast(Runner, made(place, **options))
