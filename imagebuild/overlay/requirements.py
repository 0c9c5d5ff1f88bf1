"""Whether what wheels bring fits what the image has: Requires-Dist and Requires-Python of METADATA, for the image's own
platform and Python, nothing run and nothing resolved (Core metadata; PEP 508).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.oci.platform import Platform
from imagebuild.overlay.distributions import normalise_name
from imagebuild.overlay.findings import Finding, Severity
from imagebuild.overlay.wheel_archive import headers_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True, slots=True)
class Metadata:
    """What METADATA of one distribution asks for: name (normalised), version, Requires-Python, and the lines of
    Requires-Dist."""

    name: str
    version: str
    requires_python: str
    requires: tuple[str, ...]
    path: str


def parse_metadata(text: str, path: str) -> Metadata:
    """The part of a METADATA file that dependencies are told by; `path` is its image path."""
    about = headers_of(text)
    return Metadata(
        normalise_name(about.get("name", [""])[0]),
        about.get("version", [""])[0],
        about.get("requires-python", [""])[0],
        tuple(about.get("requires-dist", [])),
        path,
    )


def marker_environment(platform: Platform, python: str) -> dict[str, str]:
    """The values that environment markers are evaluated with (PEP 508); the patch version is not known and taken as 0."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": platform.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


@dataclass(frozen=True, slots=True)
class Unmet:
    """A requirement that does not hold: who asks (`by`), for what (`text`), and what the image has (None: nothing)."""

    by: str
    name: str
    text: str
    found: str | None


def unmet_requirements(
    item: Metadata, installed: Mapping[str, Metadata], environment: Mapping[str, str]
) -> list[Unmet]:
    """The requirements of one distribution that `installed` (by normalised name) does not meet.

    Extras that a requirement asks for are followed into that distribution's own requirements, each once.  A line that
    is no requirement counts as unmet: nobody can say that it is met.
    """
    return list(_unmet(item, frozenset(), installed, environment, set()))


def _unmet(
    item: Metadata,
    extras: frozenset[str],
    installed: Mapping[str, Metadata],
    environment: Mapping[str, str],
    seen: set[tuple[str, frozenset[str]]],
) -> Iterator[Unmet]:
    from packaging.requirements import InvalidRequirement, Requirement

    if (item.name, extras) in seen:
        return
    seen.add((item.name, extras))
    for text in item.requires:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            if not extras:
                yield Unmet(item.name, "", text, None)
            continue
        if not _applies(wanted, extras, environment):
            continue
        name = normalise_name(wanted.name)
        found = installed.get(name)
        if found is None or not _holds(wanted, found.version):
            yield Unmet(item.name, name, text, None if found is None else found.version)
        elif wanted.extras:
            inner = frozenset(normalise_name(extra) for extra in wanted.extras)
            yield from _unmet(found, inner, installed, environment, seen)


def _applies(wanted: Requirement, extras: frozenset[str], environment: Mapping[str, str]) -> bool:
    """Whether a requirement counts: without extras those that need none, with extras those that only they bring."""
    if wanted.marker is None:
        return not extras
    plain = wanted.marker.evaluate({**environment, "extra": ""})
    if not extras:
        return plain
    return not plain and any(wanted.marker.evaluate({**environment, "extra": extra}) for extra in extras)


def _holds(wanted: Requirement, version: str) -> bool:
    from packaging.version import InvalidVersion

    if wanted.url is not None:
        return True
    try:
        return wanted.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def check_requirements(
    brought: Mapping[str, Metadata],
    before: Mapping[str, Metadata],
    after: Mapping[str, Metadata],
    platform: Platform,
    python: str,
    without: Callable[[str], Collection[str]],
) -> tuple[Finding, ...]:
    """What the wheels `brought` (by name) leave unmet, and what they break.

    `before` and `after` are the image's distributions without and with them, `without(name)` the requirements that the
    overlay accepts as missing for one wheel.  Blocking is what the wheels are the reason of: a requirement of a wheel
    that is not met now and was not equally unmet by the version that it replaces, a Requires-Python that does not hold,
    and a requirement of another distribution that was met and is not any more.  The rest are notes.
    """
    environment = marker_environment(platform, python)
    out: list[Finding] = []
    for name, item in brought.items():
        out += _python(item, python)
        accepted = {normalise_name(text) for text in without(name)}
        old = (
            {unmet.name for unmet in unmet_requirements(before[name], before, environment)} if name in before else set()
        )
        used = set()
        for unmet in unmet_requirements(item, after, environment):
            severity = Severity.BLOCKING
            if unmet.name in accepted:
                used.add(unmet.name)
                severity = Severity.NOTE
            elif unmet.name in old:
                severity = Severity.NOTE
            out.append(_finding(unmet, item, severity))
        out += [_unused(item, text) for text in sorted(accepted - used)]
    for name, item in after.items():
        if name in brought:
            continue
        old = {unmet.text for unmet in unmet_requirements(item, before, environment)}
        for unmet in unmet_requirements(item, after, environment):
            if unmet.text not in old:
                out.append(_finding(unmet, item, Severity.BLOCKING))
    return tuple(out)


def _finding(unmet: Unmet, item: Metadata, severity: Severity) -> Finding:
    have = f"the image has {unmet.found}" if unmet.found is not None else "the image does not have it"
    by = item.name if unmet.by == item.name else f"{item.name} (through {unmet.by})"
    message = f"{by} {item.version} requires {unmet.text}: {have}"
    return Finding("overlay.requirement-unmet", severity, item.path, message)


def _python(item: Metadata, python: str) -> Iterator[Finding]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if not item.requires_python:
        return
    try:
        # only the minor version is known: a bound within it cannot be told
        fits = any(
            SpecifierSet(item.requires_python).contains(f"{python}.{patch}", prereleases=True) for patch in (0, 99)
        )
    except InvalidSpecifier:
        fits = False
    if not fits:
        message = f"{item.name} {item.version} requires Python {item.requires_python}: the image's is {python}"
        yield Finding("overlay.requirement-python", Severity.BLOCKING, item.path, message)


def _unused(item: Metadata, name: str) -> Finding:
    message = f"`without` of {item.name} names {name}, which is there or not required: take it out of the overlay"
    return Finding("overlay.requirement-accepted", Severity.NOTE, item.path, message)
