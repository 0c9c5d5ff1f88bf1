"""The steps that may still say no before anything is published: the waiver, and the policy as a whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from imagebuild.attest.evidence import Evidence, VerifiedStatement, gather
from imagebuild.attest.policy_checks import PolicyQuestion, policy_checks
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.oci.tree import read_image_tree
from imagebuild.release.state import Release
from imagebuild.release.statement import planned_release
from imagebuild.release.step import Action, Decision
from imagebuild.release.steps_sign import is_superseded, said_now
from imagebuild.waiver.check import Asked, check_number
from imagebuild.waiver.findings import BLOCKING, WaiverReport
from imagebuild.waiver.gather import load_numbered


class WaiverStep:
    """The target's waiver, checked as `waiver check` does.  It decides only where the policy asks for one; one that is
    refused and not asked for is told, and the release does not name it."""

    name = "waiver check"

    def __init__(self, release: Release) -> None:
        self._release = release

    def _asked(self) -> bool:
        policy = self._release.request.policy
        return policy is not None and policy.policy.waiver.required

    def decide(self) -> Decision:
        if self._asked():
            return Decision(Action.CHECK, "the policy asks for a waiver")
        number = self._release.request.target.waiver
        if number is None:
            return Decision(Action.NOT_ASKED, "the policy asks for no waiver")
        return Decision(Action.CHECK, f"the policy asks for no waiver; {number} is named in the release if it passes")

    def run(self) -> Mapping[str, Any]:
        """Raises RefusedError `release.no-waiver`, `release.waiver-of-others`, `release.waiver-refused`,
        `release.waiver-expired`, and what reading the waiver raises where the policy asks for one."""
        release, request = self._release, self._release.request
        number = request.target.waiver
        if number is None:
            raise RefusedError(
                "release.no-waiver",
                f"the policy asks for a waiver, and {request.name} names none",
                expected="`waiver: NUMBER` in target.yaml",
                hint=f"imagebuild waiver new NUMBER --target {request.name}",
            )
        today = datetime.fromtimestamp(request.now, UTC).date()
        try:
            report = check_number(release.tools.workspace, number, Asked(today))
            expires = load_numbered(release.tools.workspace, number).removal_plan.expires
        except ImagebuildError as error:
            if self._asked():
                raise
            return self._left_out(number, error.message)
        if request.name not in report.targets:
            if self._asked():
                raise RefusedError(
                    "release.waiver-of-others",
                    f"waiver {number} does not cover {request.name}",
                    expected=f"a waiver with {request.name} among its `targets`",
                    found=", ".join(report.targets),
                    hint=f"imagebuild waiver new NUMBER --target {request.name}",
                )
            return self._left_out(number, f"it covers {', '.join(report.targets)}, not {request.name}")
        if not report.passed:
            if self._asked():
                raise _refused(number, report)
            return self._left_out(number, f"{_blocking(report)} findings block")
        if expires is not None and expires < today:
            policy = request.policy
            if self._asked() and policy is not None and policy.policy.waiver.expired == "refuse":
                raise RefusedError(
                    "release.waiver-expired",
                    f"waiver {number} has expired",
                    expected=f"a last day not before {today}",
                    found=str(expires),
                    hint="write a new last day, or a policy with `waiver: {expired: warn}`",
                )
            release.warnings.append(f"waiver {number} expired on {expires}")
        release.waiver = {"number": number, "expires": expires}
        return {"number": number, "passed": True, "expires": None if expires is None else expires.isoformat()}

    def _left_out(self, number: int, why: str) -> dict[str, Any]:
        self._release.warnings.append(
            f"waiver {number} does not pass ({why}) and is not named in the release; imagebuild waiver check {number}"
        )
        return {"number": number, "passed": False}


def _blocking(report: WaiverReport) -> int:
    return sum(finding.severity == BLOCKING for finding in report.findings)


def _refused(number: int, report: WaiverReport) -> RefusedError:
    codes = dict.fromkeys(finding.code for finding in report.findings if finding.severity == BLOCKING)
    return RefusedError(
        "release.waiver-refused",
        f"waiver {number} is refused: {', '.join(codes)}",
        expected="a waiver that passes, as the policy asks",
        hint=f"imagebuild waiver check {number} tells what can be done",
        details={"findings": [finding.to_json() for finding in report.findings], "ways_out": list(report.ways_out)},
    )


class PolicyStep:
    """The policy, held against the signed layout and the release that will be stated, as whoever pulls the image will do."""

    name = "policy"

    def __init__(self, release: Release) -> None:
        self._release = release

    def decide(self) -> Decision:
        policy = self._release.request.policy
        if policy is None:
            return Decision(Action.NOT_ASKED, "there is no policy")
        return Decision(Action.CHECK, self._release.tools.workspace.shown(policy.path))

    def run(self) -> Mapping[str, Any]:
        """Raises RefusedError `release.policy-refuses`, UnavailableError `release.policy-unknown`."""
        release, request = self._release, self._release.request
        policy = request.policy
        assert policy is not None
        source = release.place.source
        tree = read_image_tree(source, request.digest)
        now = said_now(release)
        evidence = [self._current(item, now) for item in gather(source, request.subjects, policy.keys)]
        evidence[0] = self._with_release(evidence[0])
        checks = policy_checks(
            PolicyQuestion(
                policy.policy,
                policy.keys,
                evidence,
                None if request.repository is None else str(request.repository),
                request.now,
                {child.descriptor.digest: child.config.labels for child in tree.children.values()},
            )
        )
        failed = [check for check in checks if check.passed is False]
        unknown = [check for check in checks if check.passed is None and check.required]
        details = {"checks": [check.to_json() for check in checks]}
        if failed:
            raise RefusedError(
                "release.policy-refuses",
                f"the policy refuses the release: {failed[0].message}"
                + (f", and {len(failed) - 1} more" if len(failed) > 1 else ""),
                expected=failed[0].expected,
                found=failed[0].found,
                hint=f"imagebuild verify oci:{release.layout} --policy {policy.path} shows every check",
                details=details,
            )
        if unknown:
            raise UnavailableError(
                "release.policy-unknown", f"could not find out: {unknown[0].message}", details=details
            )
        return {"checks": len(checks), "policy": str(policy.digest)}

    def _current(self, item: Evidence, now: Collection[bytes]) -> Evidence:
        """Without what this release's key said earlier and does not say now."""
        kept = []
        for found in item.verified:
            own = next((key.key for key in found.keys if key.key == self._release.signer().public_key), None)
            if own is None or not is_superseded(found.statement, now):
                kept.append(found)
        return replace(item, verified=tuple(kept))

    def _with_release(self, top: Evidence) -> Evidence:
        """The release statement as if it were attached: it is signed and stored once everything else has been."""
        release, request = self._release, self._release.request
        key = release.signer().public_key
        names = tuple(
            item
            for item in request.trusted
            if item.key == key and item in (request.policy.keys if request.policy else ())
        )
        if not names:
            return top
        statement = planned_release(release)
        said = VerifiedStatement(top.subject.digest, Digest.of(statement.format()), statement, names)
        return replace(top, verified=(*top.verified, said))
