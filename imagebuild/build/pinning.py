"""`overlay pin`: from a version to a wheel change with a digest for each platform (cli.md, overlay pin)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from imagebuild.build.artefact_plan import plan_wheels
from imagebuild.build.artefact_store import ArtefactStore
from imagebuild.build.contents import Contents
from imagebuild.build.index_wheels import IndexWheel
from imagebuild.build.survey import Survey
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import WheelChange
from imagebuild.overlay.distributions import normalise_name
from imagebuild.overlay.document import Overlay
from imagebuild.overlay.findings import Finding
from imagebuild.overlay.install_scheme import wheel_interpreter
from imagebuild.overlay.overlay_text import append_change, format_overlay, insert_change, remove_change
from imagebuild.overlay.wheel_tags import check_tags, filename_tags
from imagebuild.target.lock_types import SECONDS_1980


@dataclass(frozen=True, slots=True)
class Pinned:
    """A wheel change, the file name of each platform's wheel, and what the dependency check found."""

    change: WheelChange
    files: Mapping[Platform, str]
    findings: tuple[Finding, ...]


def parse_pin(text: str) -> tuple[str, str]:
    """Name and version of `DIST==VERSION`.  Raises InputError `overlay.bad-pin`."""
    name, equals, version = text.partition("==")
    if not equals or not name.strip() or not version.strip() or set(version) & set("=<>!~,* "):
        raise InputError(
            "overlay.bad-pin",
            f"{text[:100]!r} is no pin",
            expected="DIST==VERSION, one exact version",
            found=text[:100],
        )
    return name.strip(), version.strip()


def pin_wheel(
    name: str,
    version: str,
    bases: Mapping[Platform, Survey],
    store: ArtefactStore,
    contents: Contents,
    wheels: Sequence[WheelChange],
    url: str | None = None,
    without: tuple[str, ...] = (),
) -> Pinned:
    """Finds the wheel of each platform and checks it against the base, under the other `wheels` of the target.

    Requirements that are not met are findings here: the wheels that meet them may be pinned next.  Raises what
    fetching, reading and laying out wheels raise.
    """
    digests = {}
    files = {}
    draft = WheelChange(name, version, {}, url, without)
    for platform, base in bases.items():
        python = wheel_interpreter(base.layout).version
        file, filename = store.find_wheel(IndexWheel(name, version, platform, python), draft.address(platform))
        if filename_tags(filename):
            check_tags(filename, filename_tags(filename), platform, python, None)
        digests[platform], files[platform] = file.sha256, filename
    change = replace(draft, sha256=digests)
    every = [*(wheel for wheel in wheels if normalise_name(wheel.name) != normalise_name(name)), change]
    findings: dict[Finding, None] = {}
    for platform, base in bases.items():
        here = [wheel for wheel in every if platform in wheel.sha256]
        plan = plan_wheels(here, base, store, platform, SECONDS_1980, contents, strict=False)
        findings.update(dict.fromkeys(plan.findings))
    return Pinned(change, files, tuple(findings))


def pinned_text(overlay: Overlay | None, text: str, name: str, change: WheelChange) -> str:
    """overlay.yaml with the wheel: a new file, the distribution's own change replaced where it stands, or put behind
    the other wheels, before all changes that may touch its files.  Raises InputError `overlay.cannot-rewrite`."""
    if overlay is None:
        return format_overlay(name, f"{change.name} {change.version}", {}, [change], {})
    ahead = 0
    for number, known in enumerate(overlay.changes):
        if isinstance(known, WheelChange):
            if normalise_name(known.name) == normalise_name(change.name):
                inserted = insert_change(text, number, change)
                return remove_change(inserted, number + 1)
            ahead = number + 1
    if ahead == len(overlay.changes):
        return append_change(text, change)
    return insert_change(text, ahead, change)
