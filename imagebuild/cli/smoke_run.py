"""What `smoke` runs with: lock, images, runner and site of the call; evidence and statement of each platform."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.check.runner import CheckedImage, Runner
    from imagebuild.check.smoke.request import SmokeRequest
    from imagebuild.check.smoke.result import SmokeResult
    from imagebuild.oci.platform import Platform
    from imagebuild.target.document import Target


def smoke_targets(arguments: argparse.Namespace, session: Session) -> list[tuple[Path, dict[str, Any]]]:
    """Runs the smoke test of the targets, for each platform asked for: evidence.json's path and value of each.

    On a Slurm cluster all of them go out as one job array.  Raises RefusedError `lock.missing`, `lock.stale`,
    `check.not-built`, InputError `check.unknown-step`, `check.unknown-runner`, and what reading images raises.
    """
    from imagebuild.check.runners import open_runner
    from imagebuild.cli.gsm8k_engines import platform_of, site_of
    from imagebuild.cli.targets import load_target_and_series
    from imagebuild.host.clock import now

    site = site_of(arguments.site, session)
    runner = open_runner(arguments.runner or (site.runner if site is not None else "docker"), site=site)
    requests = []
    out = []
    try:
        for name in arguments.target:
            target = load_target_and_series(session, name).target
            platforms = [platform_of(word, target) for word in arguments.platform] or [platform_of(None, target)]
            requests += [request_for(arguments, session, target, platform, runner.name) for platform in platforms]
        for request, result, started in _results(requests, runner, session):
            out.append(_keep(arguments, session, request, result, (started, now()), len(requests) > 1))
    finally:
        runner.close()
    return out


def _results(
    requests: list[SmokeRequest], runner: Runner, session: Session
) -> Iterator[tuple[SmokeRequest, SmokeResult, int]]:
    from imagebuild.check.runners.slurm import SlurmRunner
    from imagebuild.check.slurm.smoke import run_smoke_array
    from imagebuild.check.smoke.run import run_smoke
    from imagebuild.host.clock import now

    if isinstance(runner, SlurmRunner):
        started = now()
        for request, result in zip(requests, run_smoke_array(requests, runner, session.output.note), strict=True):
            yield request, result, started
        return
    for request in requests:
        started = now()
        result = run_smoke(request, runner, lambda step, word: session.output.note(f"{step}: {word}"))
        yield request, result, started


def _keep(
    arguments: argparse.Namespace,
    session: Session,
    request: SmokeRequest,
    result: SmokeResult,
    times: tuple[int, int],
    several: bool,
) -> tuple[Path, dict[str, Any]]:
    """Writes a result's evidence; with several, each has its own folder below `--output` and its own JUnit file."""
    from imagebuild.check.smoke.evidence import Circumstances, write_evidence
    from imagebuild.content.digest import Digest
    from imagebuild.content.files import atomic_write
    from imagebuild.release.source_commit import source_commit

    space, name = session.workspace, request.target.name
    architecture = request.image.platform.architecture
    commit = source_commit(space.root, [space.target_folder(name), *(one.folder for one in request.overlays)])
    lock_digest = Digest.of(space.lock_path(name).read_bytes())
    folder = Path(arguments.output) if arguments.output else space.root / "build" / "smoke" / name
    if arguments.output and len(arguments.target) > 1:
        folder = folder / name
    if not arguments.output or several:
        folder = folder / architecture
    around = Circumstances(*times, lock_digest, commit, arguments.site)
    path, document = write_evidence(folder, request, result, around)
    if arguments.junit:
        file = Path(arguments.junit)
        if several:
            file = file.with_name(f"{file.stem}-{name}-{architecture}{file.suffix}")
        atomic_write(file, (folder / "junit.xml").read_bytes())
    return path, document


def request_for(
    arguments: argparse.Namespace, session: Session, target: Target, platform: Platform, runner: str
) -> SmokeRequest:
    """The request for one platform of the target's built (or named) image."""
    from imagebuild.build.base_documents import load_base
    from imagebuild.check.images import open_image
    from imagebuild.check.smoke.request import SmokeRequest
    from imagebuild.cli.gsm8k_engines import built_reference, site_of
    from imagebuild.cli.targets import contents_of, current_lock, load_target_and_series

    loaded = load_target_and_series(session, target.name)
    lock = current_lock(session, loaded)
    opener = session.opener(session.workspace.root)
    where = arguments.image or built_reference(session, target, lock)
    site = site_of(arguments.site, session)
    steps = _steps(arguments.step)
    return SmokeRequest(
        target,
        loaded.overlays,
        lock,
        open_image(where, platform, session.opener() if arguments.image else opener, base=target.base),
        _base(target, platform, session) if steps is None or "parity" in steps else None,
        load_base(lock.inputs, contents_of(session, target.name), lambda: opener.source(target.base)),
        steps,
        prompts=_prompts(session, target),
        relocated=runner == "host",
        accelerators=site.gpus if site is not None else None,
    )


def _base(target: Target, platform: Platform, session: Session) -> CheckedImage | None:
    """The unpatched base, None where it is not at hand: parity then is `not-run`."""
    from imagebuild.check.images import open_image
    from imagebuild.errors import UnavailableError

    smoke = target.checks.smoke if target.checks is not None else None
    if smoke is None or smoke.engine is None:
        return None
    try:
        return open_image(target.base, platform, session.opener(session.workspace.root))
    except UnavailableError as error:
        session.output.note(f"the base is not at hand: {error.message}")
        return None


def _steps(names: list[str]) -> tuple[str, ...] | None:
    from imagebuild.content.schema import nearest
    from imagebuild.errors import InputError
    from imagebuild.target.smoke import SMOKE_STEPS

    for name in names:
        if name not in SMOKE_STEPS:
            near = nearest(name, SMOKE_STEPS)
            raise InputError(
                "check.unknown-step",
                f"there is no smoke step {name[:80]}",
                expected=", ".join(SMOKE_STEPS),
                found=name[:80],
                hint=f"did you mean {near}?" if near else None,
            )
    return tuple(names) or None


def _prompts(session: Session, target: Target) -> tuple[tuple[int, ...], ...] | None:
    """The token ids of the file that the target names.  Raises InputError `check.bad-prompts`."""
    from imagebuild.content.canonical import load_json
    from imagebuild.content.files import io_faults
    from imagebuild.errors import InputError

    smoke = target.checks.smoke if target.checks is not None else None
    if smoke is None or smoke.prompts is None:
        return None
    path = session.workspace.root / smoke.prompts
    with io_faults(path, "reading"):
        value = load_json(path.read_bytes(), str(path))
    good = isinstance(value, list) and bool(value)
    good = good and all(isinstance(one, list) and one and all(type(token) is int for token in one) for one in value)
    if not good:
        raise InputError("check.bad-prompts", f"{path} holds no prompts", expected="a JSON list of lists of token ids")
    return tuple(tuple(one) for one in value)
