"""Everything that a report says of a target, gathered once for the page and for the pull request's text.

The same files give the same facts: no clock is asked.  An expiry is judged only where a day is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from imagebuild.attest.release_file import FILE_NAME as RELEASE_FILE
from imagebuild.build.contents import Contents
from imagebuild.check.gate import AGAIN, decide
from imagebuild.check.gate_record import demands_of
from imagebuild.check.run_folders import load_runs, runs_folder
from imagebuild.check.verdicts import Verdict
from imagebuild.errors import ImagebuildError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.document import guards_for
from imagebuild.release.report_checks import (
    AccuracyResult,
    SmokeResult,
    accuracy_result,
    accuracy_results,
    altered_documents,
    load_documents,
    smoke_results,
)
from imagebuild.release.report_files import ChangedFile, changed_files
from imagebuild.target.workspace import Workspace
from imagebuild.waiver.check import Asked, check_number
from imagebuild.waiver.evidence import load_evidence
from imagebuild.waiver.facts import TargetFacts, load_facts
from imagebuild.waiver.findings import WaiverReport
from imagebuild.waiver.gather import load_numbered, waiver_numbers


@dataclass(frozen=True, slots=True)
class GuardRow:
    """One guarded path of one overlay: what the overlay expects, and what the lock found in the base (`state`: matches,
    absent, absent-above, not-proven)."""

    overlay: str
    path: str
    platform: Platform | None
    before: str
    after: str
    git: str
    state: str


@dataclass(frozen=True, slots=True)
class Unproven:
    """One thing that nobody has shown.  `kind` picks the sentence, `what` is its fact."""

    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """What a report says.  `reference` names the image, pinned; `problems` are checks that could not be made, in words;
    `today` is the day on which expiries were judged, None for no day; `release` is the release file beside the lock, unread, "" where
    there is none."""

    facts: TargetFacts
    reference: str
    files: tuple[ChangedFile, ...]
    guards: tuple[GuardRow, ...]
    smoke: tuple[SmokeResult, ...]
    accuracy: tuple[AccuracyResult, ...]
    waivers: tuple[WaiverReport, ...]
    problems: tuple[str, ...]
    unproven: tuple[Unproven, ...]
    commands: tuple[tuple[str, str], ...]
    today: date | None = None
    release: str = ""

    @property
    def smoke_verdict(self) -> Verdict:
        """The worst step of this image; `not-run` where the target asks for none."""
        from imagebuild.check.verdicts import worst

        steps = [step.verdict for one in self.smoke if one.counts for step in one.steps]
        return worst(steps) if steps else Verdict.NOT_RUN

    @property
    def accuracy_verdict(self) -> Verdict:
        """The last judgement that counts; `not-run` where none does."""
        from imagebuild.check.verdicts import worst

        counted = [one.verdict for one in self.accuracy if one.counts]
        return worst(counted) if counted else Verdict.NOT_RUN


def gather_report(workspace: Workspace, name: str, contents: Contents, today: date | None = None) -> ReportFacts:
    """Raises RefusedError `lock.missing` or `lock.stale`, and what loading a target raises."""
    facts = load_facts(workspace, name)
    evidence = facts.target.folder / "evidence"
    smoke = workspace.root / "build" / "smoke" / name
    documents = load_documents([(smoke, workspace.shown(smoke)), (evidence, workspace.shown(evidence))])
    files = changed_files(facts, contents)
    records = load_evidence(evidence, workspace.shown(evidence)).records
    altered = altered_documents(documents, records)
    problems = [f"{one.file} is not the file that {file} names: it does not count" for one, file in altered.items()]
    documents = tuple(one for one in documents if one not in altered)
    results = smoke_results(facts, documents, records)
    accuracy = [
        *(one for platform in facts.target.platforms for one in _own_runs(workspace, facts, platform, problems)),
        *accuracy_results(facts, documents, records),
    ]
    waivers = tuple(_waivers(workspace, facts, today, problems))
    released = _release_file(workspace, facts)
    reference = facts.image or f"oci:build/{name}@{facts.lock.result.digest}"
    made = ReportFacts(
        facts,
        reference,
        files,
        tuple(_guards(facts)),
        results,
        tuple(accuracy),
        waivers,
        tuple(problems),
        (),
        tuple(_commands(facts, reference, released)),
        today,
        released,
    )
    from dataclasses import replace

    return replace(made, unproven=tuple(_unproven(made)))


def _own_runs(
    workspace: Workspace, facts: TargetFacts, platform: Platform, problems: list[str]
) -> Iterator[AccuracyResult]:
    """The judgement of a platform's runs below build/gsm8k/TARGET, made now with the target's own demands."""
    asked = facts.target.checks.gsm8k if facts.target.checks is not None else None
    if asked is None:
        return
    folder = runs_folder(workspace.root, facts.target, platform)
    shown = workspace.shown(folder)
    try:
        runs = load_runs(folder, (*asked.arms, AGAIN))
    except ImagebuildError as error:
        problems.append(f"{shown}: {error.code}: {error.message.splitlines()[0].replace(str(folder), shown)}")
        return
    if not any(arm in runs for arm in asked.arms):
        return
    gate = decide(facts.name, runs, demands_of(facts.target, facts.overlays))
    yield accuracy_result(facts, f"{shown} ({', '.join(runs)})", gate.to_json())


def _waivers(
    workspace: Workspace, facts: TargetFacts, today: date | None, problems: list[str]
) -> Iterator[WaiverReport]:
    numbers = {facts.target.waiver} if facts.target.waiver is not None else set()
    for number in waiver_numbers(workspace):
        try:
            if facts.name in load_numbered(workspace, number).targets:
                numbers.add(number)
        except ImagebuildError as error:
            problems.append(f"waiver {number}: {error.code}: {error.message.splitlines()[0]}")
    # without a day nothing is past
    asked = Asked(today if today is not None else date.min)
    for number in sorted(numbers):
        try:
            yield check_number(workspace, number, asked)
        except ImagebuildError as error:
            problems.append(f"waiver {number}: {error.code}: {error.message.splitlines()[0]}")


def _guards(facts: TargetFacts) -> Iterator[GuardRow]:
    seen: dict[tuple[str, ...], list[Platform]] = {}
    for platform in facts.lock.inputs.platforms:
        states = {fact.change: fact for fact in platform.facts if fact.change}
        for overlay in facts.overlays:
            for path, guard in sorted(guards_for(overlay, platform.platform).items()):
                fact = states.get(path)
                expected = [("absent" if one is None else str(one)) for one in guard.preimage]
                if fact is None:
                    state = "not-proven"
                else:
                    state = "matches" if fact.state == "present" else fact.state
                after = "absent" if guard.postimage is None else str(guard.postimage)
                git = f"{guard.preimage_git or '-'} → {guard.postimage_git or '-'}"
                key = (overlay.name, path, " or ".join(expected), after, git, state)
                seen.setdefault(key, []).append(platform.platform)
    every = len(facts.lock.inputs.platforms)
    for (name, path, before, after, git, state), platforms in seen.items():
        for one in [None] if len(platforms) == every else platforms:
            yield GuardRow(name, path, one, before, after, git, state)


def _release_file(workspace: Workspace, facts: TargetFacts) -> str:
    """The release file beside the lock.  Nothing of it is read: without a key nobody knows whose word it is."""
    path = facts.target.folder / RELEASE_FILE
    return workspace.shown(path) if path.is_file() else ""


def _commands(facts: TargetFacts, reference: str, released: str) -> Iterator[tuple[str, str]]:
    name = facts.name
    yield "lock", f"imagebuild lock {name} --check"
    yield "build", f"imagebuild build {name}"
    yield "recompute", f"imagebuild verify oci:build/{name}@{facts.lock.result.digest} --target {name}"
    yield "reproduce", f"imagebuild reproduce {name}"
    if facts.image is not None:
        yield "signed", f"imagebuild verify {reference} --target {name} --key release.pub"
    if released:
        yield "release", f"imagebuild verify {reference} --release {released} --key release.pub"
    if facts.target.waiver is not None:
        yield "waiver", f"imagebuild waiver check {facts.target.waiver}"


def _unproven(report: ReportFacts) -> Iterator[Unproven]:
    facts = report.facts
    for platform in facts.lock.inputs.platforms:
        for text in platform.not_proven:
            yield Unproven("lock", f"{platform.platform}: {text}")
    for row in report.guards:
        if row.state == "not-proven":
            yield Unproven("guard", row.path)
    for one in report.smoke:
        if one.counts and any(step.verdict in (Verdict.NOT_RUN, Verdict.NOT_PROVEN) for step in one.steps):
            names = [step.name for step in one.steps if step.verdict in (Verdict.NOT_RUN, Verdict.NOT_PROVEN)]
            yield Unproven("smoke", f"{one.platform}: {', '.join(names)}")
        elif one.counts and not one.steps:
            yield Unproven("no-smoke", one.platform)
    if report.accuracy_verdict is Verdict.NOT_RUN:
        yield Unproven("accuracy", str(facts.lock.result.content_id))
    for file in report.files:
        if file.missing:
            yield Unproven("bytes", file.name)
    yield Unproven("signature", report.reference)
    if report.today is None and report.waivers:
        yield Unproven("expiry", ", ".join(str(one.number) for one in report.waivers))
    for text in report.problems:
        yield Unproven("problem", text)
