"""Write a wheel into an overlay, with its digest for each platform of the target.

The package index that pip is set up with is asked for the wheel of each platform and of the base's Python; it is kept in
the cache, hashed, and checked against what the base has.  pip only downloads: nothing is installed, built or run.

Examples:
  imagebuild overlay pin dynamo ai-dynamo==1.6.1 --target gb200-dynamo
  imagebuild overlay pin dynamo ai-dynamo-runtime==1.6.1 --without uvloop
"""

from __future__ import annotations

import argparse
from typing import Any

from imagebuild.cli.session import Session, shown_here


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the overlay; a new one is made where it does not exist")
    parser.add_argument("pin", metavar="DIST==VERSION", help="distribution and exact version")
    parser.add_argument("--target", metavar="TARGET", help="the target (default: the only one that lists the overlay)")
    parser.add_argument("--url", metavar="URL", help="where the wheel is, {arch} and {platform} in it replaced")
    parser.add_argument(
        "--without",
        metavar="DIST",
        action="append",
        default=[],
        help="accept that the image lacks this requirement; may be repeated",
    )


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.build.base_access import read_whole_base
    from imagebuild.build.pinning import parse_pin, pin_wheel, pinned_text
    from imagebuild.cli.overlay_target import target_for
    from imagebuild.cli.targets import artefacts_of, contents_of, facts_of
    from imagebuild.content.files import atomic_write, io_faults
    from imagebuild.overlay.changes import WheelChange
    from imagebuild.overlay.distributions import normalise_name
    from imagebuild.overlay.document import FILE_NAME
    from imagebuild.overlay.findings import Severity

    name, version = parse_pin(arguments.pin)
    target = target_for(session, arguments.name, arguments.target)
    folder = session.workspace.overlay_path(arguments.name)
    file = folder / FILE_NAME
    overlay = session.workspace.overlay(arguments.name) if file.is_file() else None
    series = [session.workspace.overlay(each) for each in target.overlays if each != arguments.name]
    series += [] if overlay is None else [overlay]
    wheels = [change for each in series for change in each.changes if isinstance(change, WheelChange)]
    own = [wheel for wheel in wheels if normalise_name(wheel.name) == normalise_name(name)]
    without = tuple(dict.fromkeys([*(text for wheel in own for text in wheel.without), *arguments.without]))
    opener = session.opener(session.workspace.root)
    contents = contents_of(session, target.name)
    bases = read_whole_base(target, opener.source(target.base), facts_of(session), contents, session.emitter)
    store = artefacts_of(session, opener)
    pinned = pin_wheel(name, version, bases, store, contents, wheels, arguments.url, without)
    text = ""
    if overlay is not None:
        with io_faults(file, "reading"):
            text = file.read_bytes().decode("utf-8")
    atomic_write(file, pinned_text(overlay, text, arguments.name, pinned.change).encode("utf-8"))
    for finding in pinned.findings:
        session.output.note(f"{finding.severity.value}: {finding.message} [{finding.code}]")
    if any(finding.severity is Severity.BLOCKING for finding in pinned.findings):
        session.output.note("lock refuses this as it is: pin what is missing too, or accept it with --without DIST")
    if arguments.name not in target.overlays:
        session.output.note(
            f"next: add {arguments.name} to `overlays` of {target.name}, then imagebuild lock {target.name}"
        )
    document: dict[str, Any] = {
        "kind": "overlay-pinned",
        "schemaVersion": 1,
        "overlay": arguments.name,
        "file": str(file),
        "wheels": [
            {"platform": str(on), "file": pinned.files[on], "sha256": str(digest)}
            for on, digest in pinned.change.sha256.items()
        ],
        "findings": [finding.document() for finding in pinned.findings],
    }
    session.output.answer(document, shown_here(file))
    return 0
