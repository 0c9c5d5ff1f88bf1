"""What starts a command in an image, and what it answers (checks.md, Runners).

A runner knows how to start things and nothing of checks: the same check code runs under each.  A job gets files in,
under `IN`, and leaves files under `OUT`; a runner brings those back and leaves nothing behind, neither a container nor a
file of root's.  That the command ran *in the image* is never taken from a runner: checks prove it from inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from imagebuild.content.digest import Digest
from imagebuild.content.strict_yaml import no_entries
from imagebuild.oci.platform import Platform
from imagebuild.oci.source import ImageSource

IN = "/imagebuild/in"
"""Folder of a job's files inside the container, read-only.  A job's command names it through the variable
`IMAGEBUILD_IN`, since a runner without containers puts it elsewhere; `IMAGEBUILD_OUT` likewise."""
OUT = "/imagebuild/out"
"""Folder that a job writes to."""
OUTPUT_LIMIT = 64 << 20
"""Bytes that are kept of each stream and of each file that a job leaves."""


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """One platform's image, as runners start it and as evidence names it.

    `reference` is for people; `digest` is the platform manifest's and `index` the digest that the reference named, where
    that was an index; `content_id` is what the image claims or a lock says, None for an unpatched base.  `source` gives
    documents and every blob, those of the base included.
    """

    reference: str
    digest: Digest
    platform: Platform
    source: ImageSource
    index: Digest | None = None
    content_id: Digest | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the machine inside the container."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Devices:
    """The accelerators that a job wants: `vendor` nvidia or amd, `count` None for all that there are."""

    vendor: str
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One command in one image.

    `command` replaces entrypoint and command of the image and starts in its working folder, with the image's own
    environment, over which `environment` is laid; names in `unset` are taken away.  `inputs` are files for `IN` by plain
    name.  `deadline` is in seconds and counts from the command's start, not from fetching the image; `network` asks for
    the machine's network, without it there is loopback at most.
    """

    command: tuple[str, ...]
    deadline: float
    environment: Mapping[str, str] = field(default_factory=no_entries)
    unset: tuple[str, ...] = ()
    inputs: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    mounts: tuple[Mount, ...] = ()
    devices: Devices | None = None
    network: bool = False
    shared_memory: int = 1 << 30
    name: str = "check"


class End(StrEnum):
    """How a job came to its end."""

    EXITED = "exited"
    """The command ran and ended by itself, with an exit code of its own."""
    DEADLINE = "deadline"
    """It was stopped at its deadline."""
    NOT_STARTED = "not-started"
    """The command never ran: the runner, its engine or the image's entry said no."""
    LOST = "lost"
    """The machine went away under it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job.  `code` is the command's exit code (None unless it exited; 128 + N for a signal); `files`
    what it left in `OUT`, by path below it; `seconds` from start to end; `detail` the runner's own words where the job
    did not exit; `machine` what the runner knows of the place (engine version, node, job number)."""

    end: End
    code: int | None
    stdout: bytes
    stderr: bytes
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    seconds: float = 0.0
    detail: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)


class Server(Protocol):
    """A job that serves: started, asked over the network, stopped."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which the job's port is reached from here."""
        ...

    def ended(self) -> Outcome | None:
        """What became of it, once it ended; None while it runs."""
        ...

    def log_tail(self, limit: int = 20_000) -> str:
        """The end of what it printed so far, both streams."""
        ...

    def stop(self) -> Outcome:
        """Stops it (TERM, then KILL) and cleans up.  Calling it again gives the same outcome."""
        ...


class Runner(Protocol):
    """One way of starting commands in images."""

    @property
    def name(self) -> str:
        """`docker`, `podman`, `oci`, `slurm` or `host`."""
        ...

    def available(self) -> str | None:
        """None where it can work here, else the reason why not, for a `not-run`."""
        ...

    def run(self, image: CheckedImage, job: Job) -> Outcome:
        """Runs a job to its end.

        Raises UnavailableError `check.no-runner` where the runner cannot work here at all, and what reading the image
        raises; everything that happens to the job itself is an Outcome.
        """
        ...

    def serve(self, image: CheckedImage, job: Job, port: int) -> Server:
        """Starts a job that will listen on `port` of its own loopback, or of all interfaces; raises as `run`.

        `job.deadline` is the longest that it may live.
        """
        ...

    def close(self) -> None:
        """Removes what was kept for further jobs: containers, unpacked images, images loaded by this runner."""
        ...
