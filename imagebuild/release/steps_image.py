"""The steps that make the image and prove that it comes out the same elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagebuild import __version__
from imagebuild.build.building import BaseFiles, build_image, run_build
from imagebuild.build.reproduce import image_blobs, reproduce
from imagebuild.content.files import io_faults
from imagebuild.errors import RefusedError, UnavailableError
from imagebuild.oci.reference import PathReference
from imagebuild.oci.source import Image
from imagebuild.release.state import Release
from imagebuild.release.step import Action, Decision, step_id


@contextmanager
def made_image(release: Release, *, with_base: bool) -> Iterator[Image]:
    """The image of the lock, made anew in a temporary folder that lives as long as the block; `with_base` its base can be
    read, which need not be at hand otherwise."""
    request, tools = release.request, release.tools
    base_files = BaseFiles(request.lock, tools.opener, request.target, tools.contents, tools.facts, tools.emitter)
    with io_faults("the temporary folder", "writing"), tempfile.TemporaryDirectory(prefix="imagebuild-") as folder:
        image = build_image(
            request.lock,
            request.target,
            request.overlays,
            tools.contents,
            base_files,
            Path(folder),
            tools.emitter,
            tools.artefacts,
        )
        yield replace(image, base=base_files.source()) if with_base else image


class LockStep:
    """The lock is current (whoever made the request saw to that), and nothing that the image relies on is unproven."""

    name = "lock"

    def __init__(self, release: Release) -> None:
        self._release = release

    def decide(self) -> Decision:
        return Decision(Action.CHECK, "looked at each time")

    def run(self) -> Mapping[str, Any]:
        """Raises RefusedError `release.lock-incomplete`."""
        request = self._release.request
        open_facts = sorted({text for p in request.lock.inputs.platforms for text in p.not_proven})
        if open_facts:
            if request.policy is None or request.policy.policy.not_proven == "refuse":
                raise RefusedError(
                    "release.lock-incomplete",
                    f"the lock of {request.name} leaves {len(open_facts)} facts unproven, {open_facts[0]} among them",
                    expected="a lock for which every layer was read, or a policy with `not_proven: allow`",
                    hint=f"imagebuild lock {request.name} --complete",
                    details={"not_proven": open_facts},
                )
            self._release.warnings.append(f"{len(open_facts)} facts are not proven; the policy allows that")
        return {
            "lock": str(request.lock_digest),
            "content_id": str(request.content_id),
            "not_proven": len(open_facts),
        }


class BuildStep:
    """The image in the layout build/TARGET."""

    name = "build"

    def __init__(self, release: Release) -> None:
        self._release = release

    def decide(self) -> Decision:
        release = self._release
        id = step_id(self.name, {"content_id": str(release.request.content_id), "digest": str(release.request.digest)})
        shown = release.tools.workspace.shown(release.layout)
        if release.built():
            return Decision(Action.DONE, f"{shown} holds it", id)
        return Decision(Action.RUN, f"{shown} does not hold {release.request.digest}", id)

    def run(self) -> Mapping[str, Any]:
        release, request, tools = self._release, self._release.request, self._release.tools
        outcome = run_build(
            request.lock,
            request.target,
            request.overlays,
            [(PathReference("oci", str(release.layout)), [])],
            tools.opener,
            tools.contents,
            tools.facts,
            tools.emitter,
            tools.artefacts,
        )
        return {"digest": str(outcome.digest), "layout": tools.workspace.shown(release.layout)}


class ReproduceStep:
    """The same bytes come out under every other condition that this machine can offer."""

    name = "reproduce"

    def __init__(self, release: Release) -> None:
        self._release = release

    def decide(self) -> Decision:
        request = self._release.request
        id = step_id(
            self.name,
            {"content_id": str(request.content_id), "digest": str(request.digest), "tool": __version__},
        )
        known = self._release.journal.finished(self.name)
        if known is None:
            return Decision(Action.RUN, "never ran", id)
        if known.id != id:
            return Decision(Action.RUN, "another image, or another version of imagebuild, than the last time", id)
        return Decision(Action.DONE, "reproduced before", id)

    def run(self) -> Mapping[str, Any]:
        """Raises RefusedError `release.not-reproducible`, UnavailableError `release.not-rebuilt`."""
        request, tools = self._release.request, self._release.tools
        with made_image(self._release, with_base=False) as image:
            expected = image_blobs(image)
        rebuilds = reproduce(
            tools.workspace, request.target, request.lock, tools.contents, expected, tools.emitter, tools.artefacts
        )
        made = [item for item in rebuilds if item.equal is not None]
        different = [item for item in made if not item.equal]
        if different:
            raise RefusedError(
                "release.not-reproducible",
                f"{len(different)} of {len(made)} rebuilds of {request.name} gave other bytes",
                expected=str(request.digest),
                found=", ".join(str(item.digest) for item in different[:3]),
                hint=f"imagebuild reproduce {request.name} tells which blobs differ",
            )
        if not made:
            raise UnavailableError(
                "release.not-rebuilt",
                f"{request.name} could not be built a second time: {rebuilds[0].reason if rebuilds else 'no Python'}",
                hint=f"imagebuild reproduce {request.name}",
            )
        pythons = sorted({item.conditions["python"] for item in made})
        return {"digest": str(request.digest), "rebuilds": len(made), "pythons": pythons}
