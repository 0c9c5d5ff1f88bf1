"""Real wheels for stand-in bases: named, pinned by sha256, fetched once.

pip does the fetching, as a child process, so that whatever index, mirror, proxy, certificate and password a machine is set up
with is used as it is, and no index is named here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagebuild.content.digest import Digest
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults, link_or_copy
from imagebuild.errors import ImagebuildError, InputError, RefusedError, UnavailableError, clean
from imagebuild.host import environment, process
from imagebuild.oci.platform import Platform

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done and bytes in all (0 where not known)."""

DEADLINE = 3600.0
"""Seconds that one download may take."""


@dataclass(frozen=True, slots=True)
class WheelPin:
    """One wheel file: its name (binary distribution format, File name convention), sha256 and size in bytes.

    `unpacked` is about how many bytes its files have together, for progress; 0 where not known.
    """

    filename: str
    sha256: Digest
    size: int
    unpacked: int = 0

    def __post_init__(self) -> None:
        if not self.filename.endswith(".whl") or self.filename.count("-") not in (4, 5) or "/" in self.filename:
            raise InputError("testing.bad-wheel", f"{self.filename!r} is not the name of a wheel")

    @property
    def distribution(self) -> str:
        return self.filename.split("-")[0]

    @property
    def version(self) -> str:
        return self.filename.split("-")[1]

    @property
    def platform_tags(self) -> tuple[str, ...]:
        return tuple(self.filename.removesuffix(".whl").split("-")[-1].split("."))


AMD64 = Platform("linux", "amd64")
ARM64 = Platform("linux", "arm64")

VLLM = {
    AMD64: WheelPin(
        "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        Digest("4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"),
        336_361_138,
        837_353_414,
    ),
    ARM64: WheelPin(
        "vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl",
        Digest("e9e404f52c8494b69bd83fe99fe7ecfa9f6b89fbd156d2a9639c24ea41d6d606"),
        333_472_621,
        815_398_154,
    ),
}


def wheel_folder() -> Path:
    """`IMAGEBUILD_TEST_WHEELS`, else `wheels` in the cache: read from and downloaded to."""
    named = environment.variable("IMAGEBUILD_TEST_WHEELS")
    return Path(named) if named else environment.cache_folder() / "wheels"


def sha256_of(path: Path) -> Digest:
    with io_faults(path, "reading"), open(path, "rb") as stream:
        return Digest(hashlib.file_digest(stream, "sha256").hexdigest())


def obtain(pin: WheelPin, progress: Progress | None = None, folder: Path | None = None) -> Path:
    """The path of the wheel, its digest checked: the file in `folder` (default `wheel_folder()`), else a download.

    A file of that name with other bytes is fetched again and replaced.  Raises UnavailableError
    `testing.wheel-unavailable`, RefusedError `testing.wheel-mismatch`.
    """
    place = (folder or wheel_folder()) / pin.filename
    if place.is_file() and place.stat().st_size == pin.size and sha256_of(place) == pin.sha256:
        return place
    with io_faults(place.parent, "making"):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=place.parent))
    try:
        fetched = _download(pin, temporary, progress)
        found = sha256_of(fetched)
        if found != pin.sha256:
            raise RefusedError(
                "testing.wheel-mismatch",
                f"the package index gave other bytes for {pin.filename}",
                expected=str(pin.sha256),
                found=str(found),
            )
        place.unlink(missing_ok=True)
        link_or_copy(fetched, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return place


def pip_command(pin: WheelPin, temporary: Path) -> list[str]:
    """How pip is asked: by exact version and digest, for the wheel's platform and not for this one."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += ["--progress-bar=off", "--no-input", "--disable-pip-version-check", "--implementation=cp"]
    command += ["--python-version=3.12", f"--dest={temporary / 'done'}", "--require-hashes"]
    command += [f"--platform={tag}" for tag in pin.platform_tags if tag != "any"]
    return [*command, f"--requirement={temporary / 'requirement.txt'}"]


def _download(pin: WheelPin, temporary: Path, progress: Progress | None) -> Path:
    requirement = f"{pin.distribution}=={pin.version} --hash=sha256:{pin.sha256.hex}\n"
    (temporary / "requirement.txt").write_text(requirement, encoding="utf-8")
    outcome: list[process.Finished | ImagebuildError] = []

    def work() -> None:
        try:
            outcome.append(
                process.run(
                    pip_command(pin, temporary),
                    deadline=DEADLINE,
                    environment={**environment.variables(), "TMPDIR": str(temporary)},
                )
            )
        except ImagebuildError as error:
            outcome.append(error)

    # pip of different ages shows progress in different ways, so what has arrived on disk is measured instead.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
        if progress is not None:
            progress(f"fetching {pin.filename}", min(_arrived(temporary), pin.size), pin.size)
    result = outcome[0]
    if isinstance(result, ImagebuildError):
        raise result
    fetched = temporary / "done" / pin.filename
    if result.code != 0 or not fetched.is_file():
        said = [line for line in result.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        raise UnavailableError(
            "testing.wheel-unavailable",
            f"pip could not fetch {pin.filename}: {clean(' / '.join(said[-3:]) or 'no reason given', 600)}",
            expected=str(pin.sha256),
            hint=f"see that pip reaches a package index that has {pin.distribution} {pin.version}, or put the file "
            f"into a folder and name the folder in IMAGEBUILD_TEST_WHEELS",
        )
    return fetched


def _arrived(folder: Path) -> int:
    """Bytes of the largest file below the folder: pip downloads to one name and copies to another."""
    largest = 0
    # pip removes folders of its own meanwhile: walking them passes over what is gone
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(place, name)).st_size)
            except OSError:
                continue
    return largest
