"""Build the stages of an overlay with BuildKit, prove the reproducible ones, and store their outputs by digest.

Run it where the compiler is: on a GPU node, say.  With --store the outputs become an OCI artifact, `artifact` is written
into overlay.yaml, and from then on any machine locks and builds with them.  What the artifact already has for other
platforms is taken over.  Guards of the outputs are brought up to date.

Examples:
  imagebuild overlay stage aiter-kernels
  imagebuild overlay stage aiter-kernels --store docker.io/example/artifacts
  imagebuild overlay stage aiter-kernels --store oci:/srv/artifacts --platform linux/arm64
"""

from __future__ import annotations

import argparse
import platform as machine
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.cli.session import Session
from imagebuild.oci.platform import Platform

if TYPE_CHECKING:
    from imagebuild.build.artefact_store import ArtefactStore
    from imagebuild.build.opening import Opener
    from imagebuild.build.stage_artifact import StageResult
    from imagebuild.oci.reference import PathReference, TagReference
    from imagebuild.oci.source import Image
    from imagebuild.overlay.changes import StageChange
    from imagebuild.overlay.document import Overlay

KNOWN = (Platform("linux", "amd64"), Platform("linux", "arm64"))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--store", metavar="REF", help="repository (HOST/REPO) or layout (oci:DIR) for the outputs")
    parser.add_argument(
        "--platform",
        action="append",
        type=Platform.parse,
        default=[],
        help="what to build for (default: this machine's)",
    )


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.build.stage_definition import read_definition
    from imagebuild.cli.targets import artefacts_of, stages_of
    from imagebuild.errors import InputError, UnavailableError
    from imagebuild.overlay.changes import StageChange

    overlay = session.workspace.overlay(arguments.name)
    stages = [(n, change) for n, change in enumerate(overlay.changes) if isinstance(change, StageChange)]
    if not stages:
        raise InputError(
            "stage.none", f"overlay {overlay.name} has no stage", expected="a change of the kind `stage`", found="none"
        )
    place = None if arguments.store is None else _place(arguments.store, session)
    opener = session.opener(session.workspace.root)
    store = artefacts_of(session, opener)
    maker = stages_of(session, opener, store)
    shown: list[dict[str, Any]] = []
    artifacts: dict[int, str] = {}
    made: list[tuple[StageChange, StageResult]] = []
    for number, change in stages:
        results = [maker.make(change, platform) for platform in arguments.platform or [_here()]]
        made += [(change, result) for result in results]
        if place is not None:
            root = session.workspace.root
            try:
                ids = {platform: read_definition(root, change, platform).id for platform in KNOWN}
                known = maker.artifact_results(change, ids)
            except UnavailableError as error:
                known = {}
                session.output.note(f"{change.artifact} cannot be read, nothing of it is taken over: {error.message}")
            together = {**known, **{result.platform: result for result in results}}
            artifacts[number] = _store(list(together.values()), change, place, opener, store)
            results = list(together.values())
        shown.append(_document(change, results, artifacts.get(number)))
    written = _rewrite(session, overlay, artifacts, made)
    for path in written:
        session.output.note(f"{overlay.name}: written into {path}: review it, then lock the targets that list it")
    document = {
        "kind": "overlay-stage",
        "schemaVersion": 1,
        "overlay": overlay.name,
        "stages": shown,
        "written": written,
    }
    session.output.answer(document, "\n".join(_lines(shown)))
    return 0


def _here() -> Platform:
    return Platform.parse(machine.machine())


def _place(text: str, session: Session) -> TagReference | PathReference:
    """Where to store: a repository without tag, or a layout without name, its path as overlay.yaml will have it."""
    from imagebuild.errors import InputError
    from imagebuild.oci.reference import PathReference, TagReference, parse_reference

    reference = parse_reference(text)
    if isinstance(reference, TagReference) and reference.tag == "latest" and not text.endswith(":latest"):
        return reference
    if (
        isinstance(reference, PathReference)
        and reference.transport == "oci"
        and reference.name is None
        and reference.digest is None
    ):
        path = Path.cwd() / reference.path
        root = session.workspace.root
        return replace(reference, path=str(path.relative_to(root) if path.is_relative_to(root) else path))
    raise InputError(
        "cli.usage",
        f"--store {text}: outputs are stored in a repository or a layout, under names of their own",
        expected="HOST/REPO or oci:DIR, without tag, name and digest",
        found=text,
    )


def _store(
    results: Sequence[StageResult],
    change: StageChange,
    place: TagReference | PathReference,
    opener: Opener,
    store: ArtefactStore,
) -> str:
    """Stores the artifact under a name that is never another's, and gives its pinned reference."""
    from imagebuild.build.building import pinned_text
    from imagebuild.build.stage_artifact import make_artifact
    from imagebuild.oci.reference import PathReference

    image: Image = make_artifact(results, store)
    digest = image.top.descriptor.digest
    stem = Path(change.dockerfile).name.partition(".")[0].lower() or "stage"
    name = f"{stem}-{digest.hex[:12]}"
    named = replace(place, name=name) if isinstance(place, PathReference) else replace(place, tag=name)
    sink, _ = opener.sink(named)
    sink.store(image, name, force=True)
    return pinned_text(named, digest)


def _document(change: StageChange, results: Sequence[StageResult], artifact: str | None) -> dict[str, Any]:
    platforms = {
        str(result.platform): {
            "definition": str(result.definition),
            "proof": result.proof,
            "builder": result.builder,
            "outputs": [output.to_json() for output in result.outputs],
        }
        for result in results
    }
    return {"dockerfile": change.dockerfile, "network": change.network, "artifact": artifact, "platforms": platforms}


def _lines(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    out = []
    for stage in stages:
        for platform, value in stage["platforms"].items():
            for output in value["outputs"]:
                out.append(f"{stage['dockerfile']} {platform} {output['path']} {output['sha256']} {value['proof']}")
        if stage["artifact"] is not None:
            out.append(stage["artifact"])
    return out


def _rewrite(
    session: Session,
    overlay: Overlay,
    artifacts: Mapping[int, str],
    made: Sequence[tuple[StageChange, StageResult]],
) -> list[str]:
    """Writes artifacts and the postimages of guards that are there; the files that changed."""
    from imagebuild.content.files import atomic_write, io_faults
    from imagebuild.overlay.document import FILE_NAME
    from imagebuild.overlay.overlay_text import rewrite_guards
    from imagebuild.overlay.stage_text import set_artifact

    file = overlay.folder / FILE_NAME
    with io_faults(file, "reading"):
        before = file.read_bytes().decode("utf-8")
    text = before
    for number, reference in artifacts.items():
        text = set_artifact(text, number, reference)
    guards = _guards(overlay, made)
    if guards != overlay.guards:
        text = rewrite_guards(text, guards)
    if text == before:
        return []
    atomic_write(file, text.encode("utf-8"))
    return [session.workspace.shown(file)]


def _guards(overlay: Overlay, made: Sequence[tuple[StageChange, StageResult]]) -> dict[str, Any]:
    """The overlay's guards with the postimages of what was built now; those that are not there are left to `lock`."""
    from imagebuild.overlay.changes import Guard

    guards: dict[str, Any] = dict(overlay.guards)
    for change, result in made:
        for output in result.outputs:
            path = change.out[output.path]
            guard = guards.get(path)
            if isinstance(guard, Guard):
                if guard.postimage != output.sha256:
                    guards[path] = replace(guard, postimage=output.sha256, postimage_git=None)
            elif guard is not None and result.platform in guard:
                own = replace(guard[result.platform], postimage=output.sha256, postimage_git=None)
                if guard[result.platform].postimage != output.sha256:
                    guards[path] = {**guard, result.platform: own}
    return guards
