"""Make a workspace, or a target in an existing one.

Without --base an empty workspace appears in DIR.  With --base a target is added to the workspace; a base that is only a
tag is looked up once, and its digest written down.

Examples:
  imagebuild init my-images
  imagebuild init --base docker.io/vllm/vllm-openai:v0.33.0 --sku b300 --root vllm
  imagebuild init --base oci:build/bases/demo@sha256:… --name try-out
  imagebuild init --ci github                    workflows that build, check and release the images
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session, shown_here

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuild.oci.platform import Platform
    from imagebuild.target.parts import Base
    from imagebuild.target.scaffold import NewFile


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", metavar="DIR", help="where (default: the workspace here, else this folder)"
    )
    parser.add_argument("--base", metavar="REF", help="the base of a new target; a tag is resolved and pinned")
    parser.add_argument("--sku", metavar="SKU", help="the accelerator that the target is for, b300 for example")
    parser.add_argument("--name", metavar="NAME", help="the target's name (default: made from SKU and base)")
    parser.add_argument(
        "--root",
        metavar="IMPORT_NAME",
        action="append",
        default=[],
        help="a package that overlays will change; may be repeated",
    )
    parser.add_argument("--ci", choices=("github",), help="write the workflows of this code host as well")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.errors import InputError
    from imagebuild.overlay.vocabulary import validate_name
    from imagebuild.target.scaffold import scaffold_target, scaffold_workspace, target_name
    from imagebuild.target.workspace import Folders, Workspace

    if arguments.base is None and (arguments.sku or arguments.name or arguments.root):
        raise InputError("cli.usage", "--sku, --name and --root describe a target: name its --base")
    folder = Path(arguments.folder or arguments.workspace or ".").absolute()
    if folder.exists() and not folder.is_dir():
        raise InputError("cli.usage", f"{folder} is a file", expected="a folder, new or not")
    if arguments.name is not None:
        validate_name(arguments.name, "a target")
    try:
        workspace = Workspace.find(folder) if arguments.folder is None else Workspace.find(folder, folder)
        root, folders = workspace.root, workspace.folders
        files: tuple[NewFile, ...] = ()
    except InputError as error:
        if error.code != "target.no-workspace":
            raise
        root, folders, files = folder, Folders(), scaffold_workspace()
    planned: list[NewFile] = list(files)
    if arguments.base is not None:
        base, platforms = _pinned(arguments.base, arguments.sku, root, session)
        name = arguments.name or target_name(base, arguments.sku)
        planned += scaffold_target(name, base, platforms, arguments.sku, (), folders, arguments.root)
    if arguments.ci is not None:
        planned += _workflows()
    written = _write(root, planned)
    if not written:
        session.output.note("everything is there already; nothing was written")
    document = {
        "kind": "init-result",
        "schemaVersion": 1,
        "folder": str(root),
        "written": [str(path) for path in written],
    }
    session.output.answer(document, "\n".join(shown_here(path) for path in written))
    return 0


def _workflows() -> list[NewFile]:
    """The reusable workflow, and the one that says when it runs.  Both are the user's from then on."""
    from importlib import resources

    from imagebuild.target.scaffold import NewFile

    folder = resources.files("imagebuild.release") / "workflows"
    return [
        NewFile(f".github/workflows/{name}", (folder / name).read_bytes())
        for name in ("images.yaml", "images-on-change.yaml")
    ]


def _pinned(text: str, sku: str | None, root: Path, session: Session) -> tuple[Base, Sequence[Platform]]:
    """The base with its digest, and the platforms that it has (only the SKU's, where one is given)."""
    from dataclasses import replace

    from imagebuild.errors import RefusedError
    from imagebuild.oci.platform import Platform
    from imagebuild.oci.reference import DigestReference, PathReference, TagReference
    from imagebuild.oci.tree import read_image_tree
    from imagebuild.target.parts import parse_base
    from imagebuild.target.sku import SKUS

    reference = session.reference(text)
    source = session.opener(root).source(reference)
    at = reference.digest if isinstance(reference, DigestReference | PathReference) else None
    if at is None:
        at = source.resolve(
            reference.tag if isinstance(reference, TagReference) else getattr(reference, "name", None)
        ).digest
        session.output.note(f"{text} points at {at} now; that digest is written down")
    tree = read_image_tree(source, at)
    known = (Platform("linux", "amd64"), Platform("linux", "arm64"))
    platforms = [platform for platform in tree.children if platform in known]
    if sku is not None and sku in SKUS:
        platforms = [platform for platform in platforms if platform == SKUS[sku].platform] or platforms
    if not platforms:
        raise RefusedError(
            "oci.platform-missing",
            f"{text} has neither linux/amd64 nor linux/arm64",
            found=", ".join(str(platform) for platform in tree.children),
        )
    if isinstance(reference, TagReference):
        pinned = str(DigestReference(reference.repository, at, reference.tag))
    elif isinstance(reference, PathReference):
        pinned = str(replace(reference, digest=at))
    else:
        pinned = str(reference)
    return parse_base(pinned), platforms


def _write(root: Path, files: Sequence[NewFile]) -> list[Path]:
    from imagebuild.content.files import atomic_write, io_faults

    written = []
    for file in files:
        path = root / file.path
        with io_faults(path, "reading"):
            existing = path.read_bytes() if path.is_file() else None
        data = file.merged(existing)
        if data is not None:
            atomic_write(path, data)
            written.append(path)
    return written
