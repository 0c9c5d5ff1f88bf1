"""Wheels from the package index that this machine is set up with.

pip does the fetching, as a child process, so that whatever index, mirror, proxy, certificate and password it is set up
with is used as it is; no index is named here.  It only downloads: nothing is installed, built or run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, UnavailableError, clean
from imagebuild.host import environment, process
from imagebuild.oci.platform import Platform

DEADLINE = 3600.0
"""Seconds that one download may take."""
_GLIBC_MINORS = range(45, 4, -1)
_LEGACY = ("manylinux2014", "manylinux2010", "manylinux1", "linux")


@dataclass(frozen=True, slots=True)
class IndexWheel:
    """What is asked of the index: a distribution in one version, for one platform and Python (`3.12`); with `sha256`
    exactly that file, else the one that pip takes for the best."""

    name: str
    version: str
    platform: Platform
    python: str
    sha256: Digest | None = None


def pip_command(wanted: IndexWheel, requirement: Path, folder: Path) -> list[str]:
    """How pip is asked: for the image's platform and Python, not for this machine's."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += ["--progress-bar=off", "--no-input", "--disable-pip-version-check", "--implementation=cp"]
    command += [f"--python-version={wanted.python}", f"--dest={folder}"]
    arch = wanted.platform.machine
    command += [f"--platform=manylinux_2_{minor}_{arch}" for minor in _GLIBC_MINORS]
    command += [f"--platform={name}_{arch}" for name in _LEGACY]
    if wanted.sha256 is not None:
        command.append("--require-hashes")
    return [*command, f"--requirement={requirement}"]


def fetch_from_index(wanted: IndexWheel, folder: Path, progress: Callable[[int], None]) -> Path:
    """The wheel in a file below `folder` (empty, and the caller's to remove), its digest not checked yet.

    `progress` takes the bytes that have arrived since its last call.  Raises UnavailableError
    `build.wheel-unavailable`.
    """
    requirement = folder / "requirement.txt"
    line = f"{wanted.name}=={wanted.version}"
    if wanted.sha256 is not None:
        line += f" --hash=sha256:{wanted.sha256.hex}"
    requirement.write_text(line + "\n", encoding="utf-8")
    into = folder / "done"
    done = _run(pip_command(wanted, requirement, into), folder, progress)
    found = sorted(into.glob("*.whl")) if into.is_dir() else []
    if done.code != 0 or len(found) != 1:
        said = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        what = f"{wanted.name} {wanted.version} for Python {wanted.python} on {wanted.platform}"
        raise UnavailableError(
            "build.wheel-unavailable",
            f"pip could not fetch the wheel of {what}: {clean(' / '.join(said[-3:]) or 'no reason given', 600)}",
            expected=None if wanted.sha256 is None else str(wanted.sha256),
            hint="see that pip reaches a package index that has it, or put the file into the folder `wheels` of the cache "
            "(imagebuild cache info names it)",
        )
    return found[0]


def _run(command: list[str], folder: Path, progress: Callable[[int], None]) -> process.Finished:
    outcome: list[process.Finished | ImagebuildError] = []

    def work() -> None:
        try:
            around = {**environment.variables(), "TMPDIR": str(folder)}
            outcome.append(process.run(command, deadline=DEADLINE, environment=around))
        except ImagebuildError as error:
            outcome.append(error)

    # pip of different ages shows progress in different ways, so what has arrived on disk is measured instead.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    shown = 0
    while thread.is_alive():
        thread.join(0.2)
        arrived = max((path.stat().st_size for path in _files(folder)), default=0)
        if arrived > shown:
            progress(arrived - shown)
            shown = arrived
    result = outcome[0]
    if isinstance(result, ImagebuildError):
        raise result
    return result


def _files(folder: Path) -> list[Path]:
    out = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                path.stat()
                out.append(path)
        except OSError:
            continue
    return out
