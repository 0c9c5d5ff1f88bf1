"""Make the image of a target and store it.

With a committed lock nothing of the base is downloaded: the layers that are made, a config and a manifest are all that
moves.  The default output is oci:build/TARGET in the workspace, a sparse OCI layout; --push publishes under the
target's own tags.

Examples:
  imagebuild build demo
  imagebuild build b300-vllm gb200-dynamo --push
  imagebuild build demo --output oci-archive:demo.tar --output 127.0.0.1:5000/demo:test --allow-base-transfer
  imagebuild build --base oci:base@sha256:… --overlay ./my-fix      no workspace: locks and builds in one go
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagebuild.cli.session import Session
from imagebuild.content.text import size_text
from imagebuild.oci.platform import Platform
from imagebuild.oci.reference import PathReference, Reference, TagReference, parse_reference


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--base", metavar="REF", help="with --overlay: a pinned base, no workspace needed")
    parser.add_argument("--overlay", metavar="DIR", help="with --base: the overlay's folder")
    parser.add_argument(
        "--output", metavar="REF", action="append", default=[], help="where to store it; may be repeated"
    )
    parser.add_argument("--push", action="store_true", help="publish under the tags of target.yaml")
    parser.add_argument(
        "--platform", action="append", type=Platform.parse, default=[], help="one platform's image alone (default: all)"
    )
    parser.add_argument("--complete", action="store_true", help="copy the base's layers into layouts too")
    parser.add_argument("--force", action="store_true", help="move a tag that points at another image")
    parser.add_argument(
        "--allow-base-transfer",
        action="store_true",
        help="stream base layers through here where a registry will not mount them",
    )


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.targets import each_target
    from imagebuild.errors import InputError

    if (arguments.base is None) != (arguments.overlay is None):
        raise InputError("cli.usage", "--base and --overlay go together")
    if (arguments.base is None) == (not arguments.targets):
        raise InputError("cli.usage", "name targets, or --base and --overlay", hint="see imagebuild build --help")
    if len(set(arguments.targets)) > 1 and arguments.output:
        raise InputError("cli.usage", "--output goes with one target: several would overwrite each other")
    if arguments.base is not None:
        from imagebuild.cli.build_loose import loose_workspace

        if arguments.push:
            raise InputError("cli.usage", "--push needs a target that says where: use --output HOST/REPO:TAG")
        with loose_workspace(arguments, session) as name:
            from imagebuild.cli.verb_lock import lock_one

            lock_one(name, False, session)
            if not arguments.output:
                arguments.output = [f"oci:build/{name}"]
            return each_target(session, [name], "build-result", lambda each: _one(each, arguments, session))
    return each_target(session, arguments.targets, "build-result", lambda name: _one(name, arguments, session))


def _outputs(
    name: str, arguments: argparse.Namespace, session: Session, target: Any, lock: Any
) -> list[tuple[Reference, Sequence[Platform]]]:
    from imagebuild.errors import InputError

    platforms: list[Platform] = arguments.platform
    out: list[tuple[Reference, Sequence[Platform]]] = [(_here(text), platforms) for text in arguments.output]
    if arguments.push:
        if target.publish is None:
            raise InputError(
                "build.no-publish",
                f"{name} does not say where it is published",
                hint="write `publish: {repository: …, tag: …}` into target.yaml, or use --output HOST/REPO:TAG",
            )
        content, repository = lock.result.content_id, target.publish.repository
        if target.publish.arch_tag is not None:
            for item in lock.result.platforms:
                if not platforms or item.platform in platforms:
                    tag = target.arch_tag(content, item.platform)
                    out.append((TagReference(repository, tag), [item.platform]))
        if not platforms or len(platforms) == len(lock.result.platforms):
            out.append((TagReference(repository, target.index_tag(content)), platforms))
    if not out:
        out.append((PathReference("oci", str(session.workspace.root / "build" / name)), platforms))
    return out


def _here(text: str) -> Reference:
    """An output as typed: paths are relative to where the user stands, not to the workspace."""
    reference = parse_reference(text)
    if isinstance(reference, PathReference):
        return replace(reference, path=str(Path.cwd() / reference.path))
    return reference


def _one(name: str, arguments: argparse.Namespace, session: Session) -> tuple[int, Mapping[str, Any], str]:
    from imagebuild.build.ahead import ask_ahead
    from imagebuild.cli.targets import artefacts_of, contents_of, facts_of
    from imagebuild.target.lock import load_lock

    before = session.traffic_since()
    target = session.workspace.target(name)
    path = session.workspace.lock_path(name)
    found = load_lock(path)
    outputs = [] if found is None else _outputs(name, arguments, session, target, found)
    opener = session.opener(session.workspace.root)
    wait = ask_ahead(opener, [reference for reference, _ in outputs], target.base)
    # A registry far away answers while these modules load.
    from imagebuild.build.building import run_build
    from imagebuild.build.locked import refuse_stale

    overlays = session.workspace.series(target)
    lock = refuse_stale(found, target, overlays, path)
    wait()
    outcome = run_build(
        lock,
        target,
        overlays,
        outputs,
        opener,
        contents_of(session, name),
        facts_of(session),
        session.emitter,
        artefacts_of(session, opener),
        complete=arguments.complete,
        force=arguments.force,
    )
    last = outcome.stored[-1]
    traffic = session.traffic_since(before)
    document = {
        "kind": "build-result",
        "schemaVersion": 1,
        "target": name,
        "reference": last.reference,
        "references": [item.reference for item in outcome.stored],
        "digest": str(last.result.digest),
        "content_id": str(outcome.content_id),
        "unchanged": all(item.unchanged for item in outcome.stored),
        "previous": [str(item.result.previous) for item in outcome.stored if item.result.previous is not None],
        "platforms": [
            {
                "platform": str(item.platform),
                "digest": str(item.manifest),
                "layers": [
                    {"role": x.role, "digest": str(x.digest), "diff_id": str(x.diff_id), "size": x.size}
                    for x in item.layers
                ],
            }
            for item in outcome.platforms
        ],
        "missing_blobs": sorted({str(d) for item in outcome.stored for d in item.result.missing_blobs}),
        "not_proven": sorted({text for p in lock.inputs.platforms for text in p.not_proven}),
        "transfer": {**traffic, "mounted_blobs": sum(item.result.mounted_blobs for item in outcome.stored)},
    }
    for item in outcome.stored:
        made = sum(layer.size for p in outcome.platforms for layer in p.layers)
        state = "unchanged" if item.unchanged else f"stored ({size_text(made)} of our own layers)"
        session.output.note(f"{name}: {state} at {_pasted(item.reference)}")
        if item.result.previous is not None:
            session.output.note(f"{name}: the name pointed at {item.result.previous} before")
    return 0, document, _pasted(last.reference)


def _pasted(reference: str) -> str:
    """A layout below the current folder as it is named from there."""
    return reference.replace(f"oci:{Path.cwd()}/", "oci:", 1) if reference.startswith("oci:/") else reference
