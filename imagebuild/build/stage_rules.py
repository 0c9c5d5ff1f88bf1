"""What a Dockerfile must keep to so that its outputs are known: nothing unpinned goes in, nothing unasked reaches out.

Every rule names file and line, and all that are broken are told at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from imagebuild.build.dockerfile import Dockerfile, Instruction, expand
from imagebuild.errors import ImagebuildError, InputError, RefusedError, SeveralErrors, clean
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import DigestReference, parse_registry_reference
from imagebuild.overlay.changes import StageChange

SCRATCH = "scratch"
EPOCH = "SOURCE_DATE_EPOCH"
_REMOTE = re.compile(r"(?:https?|ftp|git|ssh)://|git@|\$")
_PREDEFINED = {EPOCH, "BUILDKIT_INLINE_CACHE", "BUILDKIT_SYNTAX"}


@dataclass(frozen=True, slots=True)
class Base:
    """An image that a stage takes from, pinned, and the line that says so."""

    line: int
    reference: DigestReference


def check_stage(dockerfile: Dockerfile, change: StageChange, platform: Platform) -> tuple[Base, ...]:
    """The images that the Dockerfile takes from, in order.

    Raises RefusedError `stage.unpinned` (images and frontends without digest, ADD from an address without checksum),
    `stage.not-scratch` (the last stage holds more than outputs), `stage.network` (an instruction reaches out although
    `network` is none), `stage.hidden-state` (privileges, or a cache that makes two builds one); InputError
    `stage.unknown-argument`; SeveralErrors where several.
    """
    faults: list[ImagebuildError] = []
    values = {**_predefined(platform)}
    declared: set[str] = set()
    bases: list[Base] = []
    names: set[str] = set()
    stages: list[str] = []
    for directive in ("syntax",):
        if directive in dockerfile.directives:
            line, text = dockerfile.directives[directive]
            base = _pinned(dockerfile, line, text.split()[0], "the frontend", faults)
            bases += [] if base is None else [base]
    for one in dockerfile.instructions:
        if one.keyword == "ARG":
            for word in one.words:
                name, equals, default = word.partition("=")
                declared.add(name)
                if not stages:
                    given = change.args.get(name)
                    if given is not None:
                        values[name] = given
                    elif equals:
                        values[name] = expand(default.strip("\"'"), values, dockerfile.where(one.line))
        elif one.keyword == "FROM":
            image, stage = _from(one, values, dockerfile)
            stages.append(image)
            if image.lower() not in names and image != SCRATCH:
                base = _pinned(dockerfile, one.line, image, "FROM", faults)
                bases += [] if base is None else [base]
            if stage is not None:
                names.add(stage.lower())
        else:
            for source, what in _sources(one):
                if source.lower() not in names and not (source.isdigit() and int(source) < len(stages)):
                    base = _pinned(dockerfile, one.line, source, what, faults)
                    bases += [] if base is None else [base]
            faults += _reaching_out(dockerfile, one, change)
    if stages[-1] != SCRATCH:
        faults.append(_last_stage(dockerfile, stages[-1]))
    faults += _unknown_arguments(dockerfile, change, declared)
    if faults:
        raise faults[0] if len(faults) == 1 else SeveralErrors(faults)
    return tuple(bases)


def _predefined(platform: Platform) -> dict[str, str]:
    """BuildKit's own arguments about the platform that is built for; those about the machine that builds stay unknown."""
    return {
        "TARGETPLATFORM": str(platform),
        "TARGETOS": platform.os,
        "TARGETARCH": platform.architecture,
        "TARGETVARIANT": platform.variant or "",
    }


def _from(one: Instruction, values: Mapping[str, str], dockerfile: Dockerfile) -> tuple[str, str | None]:
    words = one.words
    named = len(words) == 3 and words[1].upper() == "AS"
    if len(words) != 1 and not named:
        raise InputError(
            "stage.bad-dockerfile",
            f"{dockerfile.where(one.line)}: FROM takes an image, and perhaps a name",
            expected="FROM IMAGE@sha256:… [AS NAME]",
            found=clean(one.rest, 200),
        )
    return expand(words[0].strip("\"'"), values, dockerfile.where(one.line)), words[2] if named else None


def _pinned(dockerfile: Dockerfile, line: int, image: str, what: str, faults: list[ImagebuildError]) -> Base | None:
    try:
        reference = parse_registry_reference(image)
    except InputError:
        reference = None
    if isinstance(reference, DigestReference):
        return Base(line, reference)
    faults.append(
        RefusedError(
            "stage.unpinned",
            f"{dockerfile.where(line)}: {what} takes an image without digest, so it may be another one tomorrow",
            expected="IMAGE@sha256:…, or the name of a stage above",
            found=clean(image, 300) or "an empty name",
            hint=f"write the digest behind the name: {clean(image, 200) or 'IMAGE'}@sha256:…",
            details={"file": dockerfile.name, "line": line},
        )
    )
    return None


def _sources(one: Instruction) -> Iterator[tuple[str, str]]:
    """Images that an instruction takes files from."""
    if one.keyword in ("COPY", "ADD"):
        for key, value in one.flags:
            if key == "from":
                yield value, f"{one.keyword} --from"
    elif one.keyword == "RUN":
        for mount in _mounts(one):
            if mount.get("from"):
                yield mount["from"], "RUN --mount"


def _mounts(one: Instruction) -> Iterator[dict[str, str]]:
    for key, value in one.flags:
        if key == "mount":
            parts = (part.partition("=") for part in value.split(","))
            yield {name.strip().lower(): text.strip("\"' ") for name, _, text in parts}


def _reaching_out(dockerfile: Dockerfile, one: Instruction, change: StageChange) -> Iterator[ImagebuildError]:
    where = dockerfile.where(one.line)
    details = {"file": dockerfile.name, "line": one.line}
    if one.keyword == "ADD" and any(_REMOTE.match(word) for word in one.words[:-1]):
        checksum = one.flag("checksum") or ""
        if not checksum.startswith("sha256:"):
            yield RefusedError(
                "stage.unpinned",
                f"{where}: ADD takes from an address without saying what must come, network or not",
                expected="ADD --checksum=sha256:… URL, or files of the context",
                found=clean(one.rest, 300),
                hint="put the file into the folder of the Dockerfile and COPY it",
                details=details,
            )
    if one.keyword == "RUN":
        network = one.flag("network")
        if network not in (None, "none") and change.network == "none":
            yield RefusedError(
                "stage.network",
                f"{where}: the instruction asks for a network that the overlay does not allow",
                expected="no --network, or `network: default` in the overlay, which is written into the evidence",
                found=f"--network={clean(network or '', 40)}",
                details=details,
            )
        if one.flag("security") is not None:
            yield _hidden(where, "it asks for privileges, and what it sees of the machine is not pinned", details)
        if change.reproducible and any(mount.get("type") == "cache" for mount in _mounts(one)):
            yield _hidden(where, "a cache mount lives on between two builds, so that they prove nothing", details)


def _hidden(where: str, why: str, details: Mapping[str, object]) -> RefusedError:
    return RefusedError("stage.hidden-state", f"{where}: {why}", expected="RUN without it", details=details)


def _last_stage(dockerfile: Dockerfile, found: str) -> RefusedError:
    line = next(one.line for one in reversed(dockerfile.instructions) if one.keyword == "FROM")
    return RefusedError(
        "stage.not-scratch",
        f"{dockerfile.where(line)}: the last stage must hold the outputs alone",
        expected="FROM scratch, then COPY --from=STAGE",
        found=f"FROM {clean(found, 200)}",
        details={"file": dockerfile.name, "line": line},
    )


def _unknown_arguments(dockerfile: Dockerfile, change: StageChange, declared: set[str]) -> Iterator[ImagebuildError]:
    """A misspelt argument would be dropped without a word, and the default compiled."""
    for name in change.args:
        if name not in declared and name not in _PREDEFINED:
            near = get_close_matches(name, declared, 1)
            yield InputError(
                "stage.unknown-argument",
                f"{dockerfile.name}: no ARG declares {name}, so its value would change nothing",
                expected=f"ARG {near[0]}" if near else f"a line ARG {name}",
                found=name,
                hint=f"did you mean {near[0]}?" if near else None,
                details={"file": dockerfile.name},
            )
