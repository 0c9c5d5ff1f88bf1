"""`build --base REF --overlay DIR`: an image without a workspace, locked and built in one go."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from imagebuild.cli.session import Session
from imagebuild.content.files import io_faults
from imagebuild.content.strict_yaml import quoted
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import PathReference
from imagebuild.overlay.changes import StageChange, WheelChange
from imagebuild.overlay.document import load_overlay
from imagebuild.target.parts import parse_base
from imagebuild.target.workspace import Workspace

PLACE = "base"
"""The path of a base that is a layout or an archive, in the workspace that lasts for one run."""


@contextmanager
def loose_workspace(arguments: argparse.Namespace, session: Session) -> Iterator[str]:
    """A workspace that lasts for one run, with one target made of the options; gives the target's name.

    The roots are the first parts of the overlay's paths, each the Python package of that name.  Relative paths stay
    relative to where the user stands.  Raises InputError as reading base and overlay does.
    """
    from imagebuild.build.asked import asked_paths
    from imagebuild.build.stage_definition import export_stage
    from imagebuild.oci.tree import read_image_tree

    base = parse_base(arguments.base)
    assert base.digest is not None
    overlay = load_overlay(Path(arguments.overlay).absolute())
    tree = read_image_tree(session.opener().source(base), base.digest)
    platforms: list[Platform] = arguments.platform or list(tree.children)
    place = None
    if isinstance(base, PathReference):
        # an image says what its base is called: where a layout lies here would make another image of each folder
        place, base = Path.cwd() / base.path, replace(base, path=PLACE)
    roots = sorted(
        {path.partition("/")[0] for platform in platforms for path in asked_paths([overlay], platform).named}
    )
    if not roots and not any(isinstance(change, WheelChange) for change in overlay.changes):
        raise InputError(
            "build.no-roots",
            f"the overlay {overlay.name} changes no path below a package",
            hint="make a workspace (imagebuild init) and write the roots into target.yaml",
        )
    with tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
        root = Path(folder) / "workspace"
        target = root / "manifests" / overlay.name
        with io_faults(root, "writing"):
            target.mkdir(parents=True)
            shutil.copytree(overlay.folder, root / "overlays" / overlay.name)
            if place is not None:
                (root / PLACE).symlink_to(place)
            for stage in (change for change in overlay.changes if isinstance(change, StageChange)):
                export_stage(Workspace.find(overlay.folder).root, stage, root)
            (target / "target.yaml").write_text(
                "\n".join(
                    [
                        "schema: 1",
                        f"name: {quoted(overlay.name)}",
                        f"base: {quoted(str(base))}",
                        f"platforms: [{', '.join(str(platform) for platform in platforms)}]",
                        f"overlays: [{quoted(overlay.name)}]",
                        "content: cache",
                        f"roots: {{{', '.join(f'{quoted(name)}: {{python: {quoted(name)}}}' for name in roots)}}}",
                        "",
                    ]
                ),
                encoding="utf-8",
            )
        session.__dict__["workspace"] = Workspace.find(root, root)
        yield overlay.name
