"""What `gsm8k run` starts engines with: images, runner and site of the call."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.check.engine_run import ArmResult
    from imagebuild.check.gsm8k import RunRequest
    from imagebuild.check.runner import CheckedImage, Devices
    from imagebuild.oci.platform import Platform
    from imagebuild.target.document import Target
    from imagebuild.target.lock_types import Lock
    from imagebuild.target.site import Site

Start = Callable[[str, "RunRequest"], "ArmResult"]


@contextmanager
def engines(arguments: argparse.Namespace, session: Session, target: Target) -> Iterator[Start]:
    """Gives what runs one arm; the runner is closed when the block ends.

    Raises InputError `check.no-serve` for a target without `serve`, UnavailableError `check.no-runner` where the runner cannot
    work here.
    """
    from dataclasses import replace

    from imagebuild.check.arms import plan_arm
    from imagebuild.check.engine_run import EngineSettings, run_arm
    from imagebuild.check.images import open_image
    from imagebuild.check.runners import open_runner
    from imagebuild.cli.answer_progress import AnswerProgress
    from imagebuild.errors import InputError, UnavailableError
    from imagebuild.target.lock import load_lock

    if target.serve is None:
        raise InputError(
            "check.no-serve",
            f"the target {target.name} does not say how its engine is started",
            hint="declare `serve` in its target.yaml, or name a running server with --endpoint",
        )
    site = site_of(arguments.site, session)
    name = arguments.runner or (site.runner if site is not None else "docker")
    runner = open_runner(name, site=site)
    reason = runner.available()
    if reason is not None:
        runner.close()
        raise UnavailableError("check.no-runner", f"the runner {name} cannot work here: {reason}")
    overlays = session.workspace.series(target)
    lock = load_lock(session.workspace.lock_path(target.name))
    platform = platform_of(arguments.platform, target)
    opener = session.opener(session.workspace.root)

    @cache
    def base() -> CheckedImage:
        return open_image(target.base, platform, opener)

    @cache
    def patched() -> CheckedImage:
        where = arguments.image or built_reference(session, target, lock)
        return open_image(where, platform, session.opener() if arguments.image else opener, base=target.base)

    settings = EngineSettings(
        target.serve,
        runner,
        site.models if site is not None else {},
        _devices(target, site),
        float(site.time_limit) if site is not None else 86_400.0,
        _secrets(arguments, site),
    )

    def start(arm: str, request: RunRequest) -> ArmResult:
        planned = plan_arm(arm, overlays, lock, platform, base, patched, installed=name == "host")
        with AnswerProgress(session, arm, request.expected) as progress:
            return run_arm(request, planned, replace(settings, waiting=progress.waiting), progress.watch)

    try:
        yield start
    finally:
        runner.close()


def site_of(name: str | None, session: Session) -> Site | None:
    """The named site of the workspace, None where none is named."""
    from imagebuild.target.site import choose_site, load_sites

    return None if name is None else choose_site(load_sites(session.workspace.sites_path), name)


def arms_folder(named: str | None, platform: str | None, target: Target, session: Session) -> Path:
    """The folder with one folder an arm: the one that the command line names, else the target's own for its platform.
    Raises as `platform_of`."""
    from imagebuild.check.run_folders import runs_folder

    if named:
        return Path(named)
    return runs_folder(session.workspace.root, target, platform_of(platform, target))


def platform_of(named: str | None, target: Target) -> Platform:
    """The named platform, else the SKU's, else the only one, else this machine's.  Raises InputError
    `check.which-platform`."""
    import platform as machine

    from imagebuild.errors import InputError
    from imagebuild.oci.platform import Platform
    from imagebuild.target.sku import SKUS

    if named is not None:
        return Platform.parse(named)
    if target.sku is not None:
        return SKUS[target.sku].platform
    if len(target.platforms) == 1:
        return target.platforms[0]
    mine = Platform.parse(machine.machine())
    if mine not in target.platforms:
        raise InputError(
            "check.which-platform",
            f"{target.name} has several platforms, none of them this machine's",
            expected=", ".join(str(one) for one in target.platforms),
            hint="name one with --platform",
        )
    return mine


def built_reference(session: Session, target: Target, lock: Lock | None) -> str:
    """The image that `build` left.  Raises RefusedError `check.not-built`."""
    from imagebuild.errors import RefusedError

    folder = session.workspace.root / "build" / target.name
    if lock is None or not folder.is_dir():
        raise RefusedError(
            "check.not-built",
            f"the image of {target.name} is not at {folder}",
            hint=f"run `imagebuild lock {target.name}` and `imagebuild build {target.name}`, or name it with --image",
        )
    return f"oci:build/{target.name}@{lock.result.digest}"


def _devices(target: Target, site: Site | None) -> Devices | None:
    from imagebuild.check.runner import Devices
    from imagebuild.target.sku import SKUS

    if target.sku is None:
        return None
    return Devices(SKUS[target.sku].vendor, site.gpus if site is not None else None)


def _secrets(arguments: argparse.Namespace, site: Site | None) -> tuple[str, ...]:
    """Values that no file may hold: the key, and what a site's environment keeps under a name that says so."""
    from imagebuild.host.environment import variable

    words = [variable(arguments.key_variable)]
    if site is not None:
        words += [
            v for k, v in site.env.items() if any(part in k.upper() for part in ("TOKEN", "KEY", "SECRET", "PASS"))
        ]
    return tuple(word for word in words if word and len(word) >= 6)
