"""Write the same change for the pristine image, for places that admit only upstream images.

`--as script` gives one Python file that patches the pinned image in its running container: standard library only, three-way
guards, everything rehearsed before anything is written, fatal on any difference.  `--as dockerfile` gives one Dockerfile
that does it in a build.  Both leave the files that `build` puts into the image.

Examples:
  imagebuild export b300-vllm --as script
  imagebuild export b300-vllm --as script --output - | docker exec -i ENGINE python3 -
  imagebuild export mi355x-rocm --as dockerfile --output Dockerfile
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagebuild.cli.session import Session, shown_here
from imagebuild.oci.platform import Platform

FORMS = ("script", "dockerfile")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    parser.add_argument("--as", dest="form", choices=FORMS, required=True, help="what is written")
    parser.add_argument(
        "--output", metavar="FILE", help="where to (default: build/export/ of the workspace; -: stdout)"
    )
    parser.add_argument(
        "--platform", action="append", type=Platform.parse, default=[], help="for these only (default: all)"
    )


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.targets import each_target
    from imagebuild.errors import InputError

    if arguments.output is not None and len(set(arguments.targets)) > 1:
        raise InputError("cli.usage", "--output goes with one target: several would overwrite each other")
    return each_target(
        session,
        arguments.targets,
        "export",
        lambda name: _export(name, arguments, session),
        whole=arguments.output == "-",
    )


def _export(name: str, arguments: argparse.Namespace, session: Session) -> tuple[int, Mapping[str, Any], str]:
    from imagebuild.build.building import BaseFiles, select_platforms
    from imagebuild.build.export import Exporter
    from imagebuild.cli.targets import artefacts_of, contents_of, current_lock, facts_of, load_target_and_series
    from imagebuild.content.files import atomic_write

    loaded = load_target_and_series(session, name)
    lock = current_lock(session, loaded)
    for platform in arguments.platform:
        select_platforms(lock, [platform])
    contents = contents_of(session, name)
    opener = session.opener(session.workspace.root)
    base_files = BaseFiles(lock, opener, loaded.target, contents, facts_of(session), session.emitter)
    store = artefacts_of(session, opener)
    exporter = Exporter(lock, loaded.target, loaded.overlays, contents, base_files, store)
    export = exporter.export(
        p for p in lock.inputs.platforms if not arguments.platform or p.platform in arguments.platform
    )
    data = export.script() if arguments.form == "script" else export.dockerfile()
    document = {
        "kind": "export",
        "schemaVersion": 1,
        "target": name,
        "as": arguments.form,
        "base": export.base,
        "content_id": str(export.content_id),
        "platforms": sorted(export.platforms),
        "paths": export.paths,
        "size": len(data),
    }
    if arguments.output == "-":
        return 0, {**document, "text": data.decode("utf-8")}, data.decode("utf-8").rstrip("\n")
    ending = "py" if arguments.form == "script" else "Dockerfile"
    default = session.workspace.root / "build" / "export" / f"{name}.{ending}"
    path = default if arguments.output is None else Path(arguments.output)
    atomic_write(path, data, 0o755 if arguments.form == "script" else 0o644)
    return 0, {**document, "file": str(path)}, shown_here(path)
