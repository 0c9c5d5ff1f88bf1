"""Whether a file brought as an artefact can run where it goes: its ELF machine and the GPU architectures of its code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import BlobChange
from imagebuild.overlay.code_objects import BinaryFacts, read_binary
from imagebuild.overlay.findings import Finding, Severity

DEVICE_MACHINES = ("amdgpu", "cuda", "bpf")
"""ELF machines that are not the host's."""


def check_blob(
    overlay: str, change: BlobChange, platform: Platform, path: Path, architecture: str | None = None
) -> tuple[Finding, ...]:
    """Compares the file at `path` with what the overlay declares and with the platform.

    `architecture` is the target's GPU (`gfx950`; None where not known or not AMD's): code for others only is a warning.
    Raises RefusedError `overlay.blob-machine` (an ELF file of another machine than the platform or `elf` says, or none
    at all), `overlay.blob-gfx` (no code for `gfx`), and InputError `overlay.blob-elf` where `elf` contradicts the
    platform.
    """
    facts = read_binary(path)
    _machine(overlay, change, platform, facts)
    if change.gfx is not None and change.gfx not in facts.targets:
        raise RefusedError(
            "overlay.blob-gfx",
            f"overlay {overlay}: {change.path} holds no code for {change.gfx}",
            expected=change.gfx,
            found=", ".join(facts.targets) or "no AMD code object",
            hint="take a file that was built for that architecture, or correct `gfx`",
            details={"overlay": overlay, "path": change.path, "targets": list(facts.targets)},
        )
    return tuple(_findings(change, facts, architecture))


def check_machine(overlay: str, path: str, platform: Platform, file: Path) -> BinaryFacts:
    """The platform's part of check_blob alone, for files that nobody declared anything of.  Raises RefusedError
    `overlay.blob-machine`."""
    facts = read_binary(file)
    if facts.machine is not None and facts.machine not in (platform.machine, *DEVICE_MACHINES):
        raise _other_machine(overlay, path, platform, platform.machine, facts.machine)
    return facts


def _machine(overlay: str, change: BlobChange, platform: Platform, facts: BinaryFacts) -> None:
    if change.elf is not None and change.elf != platform.machine:
        raise InputError(
            "overlay.blob-elf",
            f"overlay {overlay}: {change.path} is declared as {change.elf} and goes into {platform}",
            expected=platform.machine,
            found=change.elf,
            hint="write `platforms` into the blob, and another blob for the other platform",
            details={"overlay": overlay, "path": change.path},
        )
    if change.elf is not None and facts.machine != change.elf:
        raise _other_machine(overlay, change.path, platform, change.elf, facts.machine or "no ELF file")
    if facts.machine is not None and facts.machine not in (platform.machine, *DEVICE_MACHINES):
        raise _other_machine(overlay, change.path, platform, platform.machine, facts.machine)


def _other_machine(overlay: str, path: str, platform: Platform, expected: str, found: str) -> RefusedError:
    return RefusedError(
        "overlay.blob-machine",
        f"overlay {overlay}: {path} is not for {platform}: its ELF machine is {found}",
        expected=expected,
        found=found,
        hint="take the file that was built for this platform; `platforms` in the blob keeps it from others",
        details={"overlay": overlay, "path": path},
    )


def _findings(change: BlobChange, facts: BinaryFacts, architecture: str | None) -> Iterator[Finding]:
    if architecture is not None and facts.targets and architecture not in facts.targets:
        message = f"holds code for {', '.join(facts.targets)}, and the target's accelerator is {architecture}"
        yield Finding("overlay.blob-other-gpu", Severity.WARNING, change.path, message)
