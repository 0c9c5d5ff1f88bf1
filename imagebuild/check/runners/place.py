"""Where jobs run: what a site adds to every job, and the folder that a runner works in."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from imagebuild.check.runner import IN, OUT, Job, Mount
from imagebuild.content.files import TEMPORARY_PREFIX, io_faults
from imagebuild.content.strict_yaml import no_entries
from imagebuild.errors import InputError, UnavailableError
from imagebuild.target.site import Site

_INPUT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Place:
    """What every job of a runner gets beside its own: folders and environment of the site.

    `scratch` is a folder on local disk, None for one of the runner's own that goes with it.  With `keep` what was made
    of an image (unpacked, loaded) stays for another time.  `libraries` are folders with the driver libraries of a
    machine whose linker does not know them, `runtime` an OCI runtime's program; None looks for one.
    """

    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=no_entries)
    scratch: Path | None = None
    keep: bool = False
    libraries: tuple[Path, ...] = ()
    runtime: str | None = None


def place_of(site: Site | None, scratch: Path | None, keep: bool) -> Place:
    if site is None:
        return Place(scratch=scratch, keep=keep)
    folder = scratch if scratch is not None or site.scratch is None else Path(site.scratch)
    return Place(tuple(mount_of(text) for text in site.mounts), site.env, folder, keep)


def mount_of(text: str) -> Mount:
    """`/HOST:/CONTAINER[:ro|rw]`; without a word it may be written to, as in every engine."""
    source, target, *mode = text.split(":")
    return Mount(Path(source), target, mode == ["ro"])


def no_runner(name: str, why: str) -> UnavailableError:
    return UnavailableError(
        "check.no-runner",
        f"the runner {name} cannot work here",
        found=why,
        hint="imagebuild doctor lists those that can",
    )


def laid_out(job: Job, place: Place, *, network: bool | None = None) -> Job:
    """The job with what the place adds; the job's own wins.  `network` says otherwise than the job, for servers.

    Raises InputError `check.bad-job` for a command that is empty, an input that is no plain name, a variable that is none.
    """
    for name in job.inputs:
        if _INPUT.match(name) is None:
            raise _bad(f"the input {name!r} is no plain file name")
    for name in (*job.environment, *job.unset, *place.environment):
        if _NAME.match(name) is None:
            raise _bad(f"{name!r} is no name of an environment variable")
    if not job.command or not all("\0" not in word for word in job.command):
        raise _bad("a job needs a command")
    environment = {**place.environment, **job.environment}
    for mount in (*place.mounts, *job.mounts):
        if not mount.target.startswith("/") or any(letter in f"{mount.source}{mount.target}" for letter in ":\0"):
            raise _bad(f"the folder {mount.source} cannot be mounted at {mount.target!r}")
    return replace(
        job,
        environment=environment,
        mounts=tuple(replace(mount, source=mount.source.absolute()) for mount in (*place.mounts, *job.mounts)),
        network=job.network if network is None else network,
    )


def _bad(why: str) -> InputError:
    return InputError("check.bad-job", why)


def job_environment(lines: Sequence[str], job: Job, inputs: str = IN, outputs: str = OUT) -> dict[str, str]:
    """The environment that a job sees: `lines` (NAME=value) of its image, the job's own over it, unset names gone,
    and where its files are."""
    out = dict(line.split("=", 1) for line in lines if "=" in line)
    out.update(job.environment)
    for name in job.unset:
        out.pop(name, None)
    return {**out, "IMAGEBUILD_IN": inputs, "IMAGEBUILD_OUT": outputs}


class Scratch:
    """The folder that a runner works in: a named one stays, one of its own goes with `close`, or with this process where it
    ends in an orderly way."""

    def __init__(self, named: Path | None) -> None:
        self._named = None if named is None else named.absolute()
        self._own: Path | None = None
        self._removal: weakref.finalize[[Path], Scratch] | None = None

    def folder(self) -> Path:
        """Raises UnavailableError `content.io`, `content.disk-full`."""
        if self._named is not None:
            with io_faults(self._named, "making"):
                self._named.mkdir(parents=True, exist_ok=True)
            return self._named
        if self._own is None:
            with io_faults("the temporary folder", "making"):
                self._own = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
            self._removal = weakref.finalize(self, remove_tree, self._own)
        return self._own

    def close(self) -> None:
        if self._removal is not None:
            self._removal()
        self._own = None


def remove_tree(folder: Path) -> None:
    """Removes a folder that programs of an image wrote to, folders without permissions too; nothing where there is none.
    What cannot be removed stays: it is temporary, and the next run or the machine takes it away."""

    def open_up(function: object, path: str | bytes, fault: object) -> None:
        path = os.fsdecode(path)
        with suppress(OSError):
            Path(path).parent.chmod(0o700)
            if Path(path).is_dir() and not Path(path).is_symlink():
                Path(path).chmod(0o700)
                shutil.rmtree(path, ignore_errors=True)
            else:
                Path(path).unlink(missing_ok=True)

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=open_up)
    else:
        shutil.rmtree(folder, onerror=open_up)
