"""Runs the steps in order, or says what would run (cli.md, release)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from imagebuild.content.canonical import document_json
from imagebuild.content.files import atomic_write
from imagebuild.errors import ImagebuildError, UnavailableError
from imagebuild.oci.lock import locked
from imagebuild.release.request import CHECKS, ReleaseRequest, Tools
from imagebuild.release.state import Release
from imagebuild.release.step import Action, Decision, Step, StepReport
from imagebuild.release.steps_checks import CheckStep
from imagebuild.release.steps_image import BuildStep, LockStep, ReproduceStep
from imagebuild.release.steps_judge import PolicyStep, WaiverStep
from imagebuild.release.steps_publish import NOT_PUSHED, ManifestStep, PushStep, TagStep
from imagebuild.release.steps_sign import SignStep, StatementsStep

SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class ReleaseAccount:
    """What a release did, or (`planned`) would do.  `reference` is the pinned image; `counter` and `created` are the
    release manifest's, None in a plan; `warnings` are for people."""

    target: str
    planned: bool
    reference: str
    digest: str
    content_id: str
    steps: tuple[StepReport, ...]
    summary: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether a step ran that leaves something behind."""
        return any(report.decision.action is Action.RUN for report in self.steps)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "release-plan" if self.planned else "release-result",
            "schemaVersion": 1,
            "target": self.target,
            "reference": self.reference,
            "digest": self.digest,
            "content_id": self.content_id,
            "changed": self.changed,
            "steps": [report.to_json() for report in self.steps],
            "summary": dict(self.summary),
            "warnings": list(self.warnings),
        }


def steps_of(release: Release) -> Sequence[Step]:
    """Every step, in its order."""
    return (
        LockStep(release),
        BuildStep(release),
        ReproduceStep(release),
        *(CheckStep(release, check) for check in CHECKS),
        StatementsStep(release),
        SignStep(release),
        WaiverStep(release),
        PolicyStep(release),
        PushStep(release),
        TagStep(release),
        ManifestStep(release),
    )


def plan_release(request: ReleaseRequest, tools: Tools) -> ReleaseAccount:
    """What `run_release` would do, and why; nothing is written or sent.  Raises what deciding raises: an evidence file or
    a registry that cannot be read, a release file that no trusted key signed."""
    release = Release(request, tools, planned=True)
    reports: list[StepReport] = []
    for step in steps_of(release):
        before = [r.step for r in reports if r.decision.action in (Action.RUN, Action.WAITS)]
        reports.append(StepReport(step.name, _foreseen(step, release, before), {}))
    return _account(release, reports, {})


def _foreseen(step: Step, release: Release, before: Sequence[str]) -> Decision:
    """The decision on a step, as far as it can be known while the steps in `before` have not run."""
    if isinstance(step, PushStep | TagStep | ManifestStep) and before:
        asked = release.request.push or isinstance(step, ManifestStep)
        return Decision(Action.RUN, f"follows {', '.join(before)}") if asked else NOT_PUSHED
    decision = step.decide()
    if isinstance(step, WaiverStep) and decision.action is Action.CHECK:
        # later steps depend on whether it passes, and checking leaves nothing behind
        try:
            step.run()
        except ImagebuildError as error:
            return Decision(Action.CHECK, f"{decision.reason}; as things stand it stops here: {error.message}")
    return decision


def run_release(request: ReleaseRequest, tools: Tools) -> ReleaseAccount:
    """Brings a release to its end.  A step that is finished is not repeated; one that was interrupted is.

    Raises what the first step that does not succeed raises, with its name as `step` in the details; UnavailableError
    `release.busy` where another run of the same target is at work.
    """
    release = Release(request, tools, planned=False)
    release.folder.mkdir(parents=True, exist_ok=True)
    with locked(release.folder, wait=False) as held:
        if not held:
            raise UnavailableError(
                "release.busy", f"another release of {request.name} is at work", hint="wait until it has ended"
            )
        reports = [_carry_out(step, release) for step in steps_of(release)]
        summary = _summary(release, reports)
        atomic_write(release.folder / SUMMARY, document_json(summary))
        tools.emitter.emit("release.finished", target=request.name, digest=str(request.digest))
    return _account(release, reports, summary)


def _carry_out(step: Step, release: Release) -> StepReport:
    emitter, name = release.tools.emitter, release.request.name
    try:
        decision = step.decide()
        emitter.emit("release.step", target=name, step=step.name, action=str(decision.action), reason=decision.reason)
        if decision.action in (Action.RUN, Action.CHECK):
            result = step.run()
        elif decision.action is Action.WAITS:
            raise AssertionError(f"{step.name} waits for a step that should have run: {decision.reason}")
        else:
            result = _left(step, release)
    except ImagebuildError as error:
        error.details.setdefault("step", step.name)
        raise
    if decision.action is not Action.CHECK and decision.action is not Action.NOT_ASKED:
        # what a step depends on may have come about while it ran (evidence): the id is that of the end
        after = step.decide() if decision.action is Action.RUN and isinstance(step, CheckStep) else decision
        known = release.journal.finished(step.name)
        if after.id is not None and (known is None or known.id != after.id or known.result != result):
            release.journal.finish(step.name, after.id, result)
        emitter.emit("release.step-finished", target=name, step=step.name)
    return StepReport(step.name, decision, result)


def _left(step: Step, release: Release) -> Mapping[str, Any]:
    """What a step that is not repeated left when it ran."""
    if isinstance(step, CheckStep):
        return step.result()
    known = release.journal.finished(step.name)
    return known.result if known is not None else {}


def _summary(release: Release, reports: Sequence[StepReport]) -> dict[str, Any]:
    """What is true of the release, however many runs it took: the same release gives the same bytes."""
    request, by_name = release.request, {report.step: report for report in reports}
    manifest = by_name["release manifest"].result
    return {
        "kind": "release-summary",
        "schemaVersion": 1,
        "target": request.name,
        "reference": _reference(request),
        "digest": str(request.digest),
        "content_id": str(request.content_id),
        "platforms": {name: str(digest) for name, digest in request.images.items()},
        "tags": sorted(str(reference) for reference, _, _ in request.tags) if request.push else [],
        "counter": manifest.get("counter"),
        "created": manifest.get("created"),
        "manifest": manifest.get("file"),
        "key": by_name["sign and attest"].result.get("key"),
        "checks": {check: CheckStep(release, check).files() for check in CHECKS if request.asks_for(check) is not None},
        "waiver": None if release.waiver is None else release.waiver["number"],
        "verify": f"imagebuild verify {_reference(request)} --release {manifest.get('file')} {_trust(release)}",
    }


def _reference(request: ReleaseRequest) -> str:
    if request.push:
        return f"{request.repository}@{request.digest}"
    return f"oci:build/{request.name}@{request.digest}"


def _trust(release: Release) -> str:
    """By what others know the release for ours: the policy where it lists the key, else the public key."""
    request = release.request
    policy, signer = request.policy, request.signer
    if policy is not None and signer is not None and any(item.key == signer.public_key for item in policy.keys):
        return f"--policy {quote(release.tools.workspace.shown(policy.path.resolve()))}"
    return f"--key {quote(request.public_key)}"


def _account(release: Release, reports: Sequence[StepReport], summary: Mapping[str, Any]) -> ReleaseAccount:
    request = release.request
    return ReleaseAccount(
        request.name,
        release.planned,
        _reference(request),
        str(request.digest),
        str(request.content_id),
        tuple(reports),
        summary,
        tuple(release.warnings),
    )
