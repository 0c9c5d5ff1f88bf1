"""A policy held against what trusted keys say of an image: each thing that it asks for becomes a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from imagebuild.attest.check import Check
from imagebuild.attest.evidence import Evidence, VerifiedStatement, cannot_tell, reasons, signature_checks
from imagebuild.attest.predicates.check_result import content_of_result
from imagebuild.attest.predicates.types import (
    BUILD_TYPE,
    PROVENANCE,
    RELEASE,
    TEST_RESULT,
    TYPES,
    at,
    predicate_type,
    stated_time,
    verdict_of,
)
from imagebuild.attest.trust import TrustedKey, count_signers, day_of
from imagebuild.content.digest import Digest
from imagebuild.host.clock import parse_rfc3339, rfc3339
from imagebuild.target.policy import Policy, Requirement

RELEASE_ALONE = "attest.release-alone"
"""Code of the reason why nothing but a release file was looked at."""
_IMPLIED = (Requirement("image"),)
"""What a policy that requires nothing by name asks for all the same: keys that nobody has to use would protect nothing."""
_SKEW = 86400
"""Seconds by which a signer's clock may be ahead of ours."""


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """What is judged.  `evidence` begins with the image's top; `repository` is where it was fetched from (None: not from
    a registry); `now` in seconds since 1970; `labels` of each platform's config, by manifest digest."""

    policy: Policy
    keys: tuple[TrustedKey, ...]
    evidence: Sequence[Evidence]
    repository: str | None
    now: int
    labels: Mapping[Digest, Mapping[str, str]] = field(default_factory=dict)

    def counting(self, found: VerifiedStatement, roles: Sequence[str] = ()) -> list[TrustedKey]:
        """Its signers that count: in one of the roles, on the day that the statement names (the signer's word), or
        today where it names none."""
        time = stated_time(found.statement.predicate_type, found.statement.value)
        day = day_of(self.now if time is None else time)
        return [key for key in found.keys if key.counts_on(day) and (not roles or key.role in roles)]

    def trusted(self, kind: str, item: Evidence) -> list[VerifiedStatement]:
        """Statements of a type about one part of the image that a key vouches for."""
        return [found for found in item.of_type(kind) if self.counting(found)]

    @property
    def releases(self) -> list[VerifiedStatement]:
        """Releases of the image as a whole, which is its top: another release may share a platform's manifest with it."""
        return self.trusted(RELEASE, self.evidence[0])

    @property
    def images(self) -> Sequence[Evidence]:
        """The platforms' manifests."""
        return [e for e in self.evidence if e.subject.name not in ("index", "nested index")]


def policy_checks(question: PolicyQuestion) -> list[Check]:
    """Every check that the policy asks for, in its order."""
    policy = question.policy
    out = [*_revoked(question)]
    out += _matches(
        "verify.repository", "the image was fetched from an allowed repository", policy.repositories,
        [question.repository] if question.repository is not None else None,
    )  # fmt: skip
    for need in policy.require or _IMPLIED:
        if policy.require or not _release_alone(question):
            out += _requirement(question, need)
    out += _named(question, "verify.allowed-base", "the base is an allowed one", policy.bases, _bases)
    out += _named(question, "verify.builder", "the builder is an allowed one", policy.builders, _builders)
    out += _minimum_release(question)
    out += _not_proven(question)
    out += _waiver(question)
    out += _content_ids(question)
    return out


def _revoked(question: PolicyQuestion) -> Iterator[Check]:
    revoked = question.policy.revoked
    for item in question.evidence:
        why = revoked.get(item.subject.digest)
        yield Check(
            "verify.revoked", why is None, f"the {item.subject.name} {item.subject.digest} is not revoked",
            None if why is None else "not revoked", why,
        )  # fmt: skip


def _matches(code: str, message: str, globs: Sequence[str], found: Sequence[str] | None) -> list[Check]:
    if not globs:
        return []
    expected = " or ".join(globs)
    if found is None:
        return [Check(code, None, f"{message}: it is not known where it comes from", expected)]
    good = bool(found) and all(any(fnmatchcase(text, glob) for glob in globs) for text in found)
    return [Check(code, good, message, expected, ", ".join(found) or "no trusted key says")]


def _unavailable(question: PolicyQuestion, code: str, message: str) -> list[Check]:
    return [cannot_tell(code, item, message) for item in question.evidence if item.unavailable is not None][:1]


def _release_unavailable(question: PolicyQuestion, code: str, message: str) -> list[Check]:
    """Whether a release statement may be missing: not where a release file is all that was to be looked at."""
    return [] if _release_alone(question) else _unavailable(question, code, message)


def _release_alone(question: PolicyQuestion) -> bool:
    return any(item.unavailable and item.unavailable.code == RELEASE_ALONE for item in question.evidence)


def _named(
    question: PolicyQuestion,
    code: str,
    message: str,
    globs: Sequence[str],
    names: Callable[[PolicyQuestion, Evidence], list[str]],
) -> list[Check]:
    """Each platform must have such a name of its own, and all of its names must be allowed."""
    if not globs:
        return []
    unknown = _unavailable(question, code, message)
    if unknown:
        return unknown
    named = [(item.subject.name, names(question, item)) for item in question.images]
    (check,) = _matches(code, message, globs, sorted({name for _, each in named for name in each}))
    silent = [platform for platform, each in named if not each]
    if silent and len(silent) < len(named):
        return [replace(check, passed=False, found=f"{check.found}; no trusted key says of {', '.join(silent)}")]
    return [check]


def _bases(question: PolicyQuestion, item: Evidence) -> list[str]:
    """What signed statements call the base of one platform: `REFERENCE@DIGEST`."""
    said = [
        at(found.statement.value, "buildDefinition", "externalParameters", "base")
        for found in question.trusted(PROVENANCE, item)
    ]
    for found in question.releases:
        if found.statement.names(item.subject.digest):
            said.append(at(found.statement.value, "base", "reference"))
    return [str(name) for name in said]


def _builders(question: PolicyQuestion, item: Evidence) -> list[str]:
    return [str(at(f.statement.value, "runDetails", "builder", "id")) for f in question.trusted(PROVENANCE, item)]


def _requirement(question: PolicyQuestion, need: Requirement) -> list[Check]:
    kind = predicate_type(need.predicate)
    if need.predicate == "image" and (need.verdicts or need.max_age is not None):
        # a plain signature has neither verdict nor time: what is asked for cannot be shown, and is not passed over
        return [_has(question, item, need, kind) for item in question.evidence]
    if need.predicate == "image":
        today = day_of(question.now)
        able = [k for k in question.keys if k.counts_on(today) and (not need.roles or k.role in need.roles)]
        return [_image_signed(question, item, able, need) for item in question.evidence]
    if kind == RELEASE:
        return [_has(question, question.evidence[0], need, kind)]
    return [_has(question, item, need, kind) for item in question.images or question.evidence[:1]]


def _image_signed(question: PolicyQuestion, item: Evidence, able: list[TrustedKey], need: Requirement) -> Check:
    narrowed = item.limited_to(able)
    (check,) = signature_checks([narrowed], able, need.threshold)
    if check.passed and need.distinct_roles:
        signers = [key for f in narrowed.of_type(TYPES["image"]) for key in f.keys]
        if count_signers(signers, distinct_roles=True) < need.threshold:
            return Check(check.code, False, f"{check.message} in {need.threshold} roles", check.expected, check.found)
    return check


def _has(question: PolicyQuestion, item: Evidence, need: Requirement, kind: str) -> Check:
    message = f"{need.predicate} for the {item.subject.name} {item.subject.digest}"
    signers: list[TrustedKey] = []
    why: list[str] = []
    others: list[str] = []
    for found in [*item.of_type(kind), *_same_content(question, item, kind)]:
        fault = _fault(question, found, need, kind)
        if fault is None:
            signers += question.counting(found, need.roles)
            if found in item.elsewhere:
                others += [str(subject.digest) for subject in found.statement.subjects]
        else:
            why.append(fault)
    good = count_signers(signers, distinct_roles=need.distinct_roles) >= need.threshold
    if item.unavailable is not None and not good:
        return cannot_tell("verify.evidence", item, message)
    unsigned = None if good else _unsigned(question, need)
    if unsigned is not None:
        return Check("verify.evidence", True, f"{message}: {unsigned}, which the policy allows")
    roles = f" in the role {' or '.join(need.roles)}" if need.roles else ""
    each = " of distinct roles" if need.distinct_roles else ""
    verdicts = f", {' or '.join(need.verdicts)}" if need.verdicts else ""
    there = ", ".join(dict.fromkeys(str(key) for key in signers))
    if others:
        message += f", by what was found of {', '.join(dict.fromkeys(others))}, another image with the same content id"
    return Check(
        "verify.evidence",
        good,
        message,
        f"signed by {need.threshold}{each}{roles}{verdicts}",
        there if good else "; ".join(filter(None, [there, *why])) or reasons(item, "no such statement is attached"),
    )


def _unsigned(question: PolicyQuestion, need: Requirement) -> str | None:
    """In words, the unsigned result that a signed release names and that may stand for a check; None where there is none
    or the policy wants none."""
    if question.policy.unsigned_evidence != "allow" or need.predicate not in ("smoke", "gsm8k"):
        return None
    wanted = need.verdicts or ("passed", "non-inferior")
    for release in _releases(question):
        listed = release.get("evidence")
        for item in listed if isinstance(listed, list) else ():
            if at(item, "check") == need.predicate and at(item, "signed") is False and at(item, "verdict") in wanted:
                return f"{at(item, 'verdict')} by unsigned evidence that the release names, sha256:{at(item, 'digest', 'sha256')}"
    return None


def _same_content(question: PolicyQuestion, item: Evidence, kind: str) -> Iterator[VerifiedStatement]:
    """Test results about another digest that serve this manifest: of the content id and platform that a trusted provenance of ours
    says this manifest has.  A label proves nothing, and what was found on one platform says nothing of another."""
    if kind != TEST_RESULT:
        return
    proven = {
        (
            str(at(found.statement.value, "buildDefinition", "internalParameters", "contentId")),
            str(at(found.statement.value, "buildDefinition", "externalParameters", "platform")),
        )
        for found in item.of_type(PROVENANCE)
        if question.counting(found) and at(found.statement.value, "buildDefinition", "buildType") == BUILD_TYPE
    }
    for found in item.elsewhere:
        if found.statement.predicate_type == kind and content_of_result(found.statement.value) in proven:
            yield found


def _fault(question: PolicyQuestion, found: VerifiedStatement, need: Requirement, kind: str) -> str | None:
    """Why a statement does not do what is asked; None where it does."""
    value = found.statement.value
    if not question.counting(found, need.roles):
        return "signed by " + ", ".join(map(str, found.keys)) + ", which does not count here"
    if need.predicate == "provenance" and at(value, "buildDefinition", "buildType") != BUILD_TYPE:
        return f"buildType is {at(value, 'buildDefinition', 'buildType')}"
    if kind == TEST_RESULT:
        verdict = verdict_of(need.predicate, value) if need.predicate in TYPES else str(value.get("verdict"))
        if verdict is None:
            return f"the result of another check, {value.get('check')}"
        wanted = need.verdicts or ("passed", "non-inferior")
        if verdict not in wanted:
            return f"the verdict is {verdict}"
    elif need.verdicts and value.get("verdict") not in need.verdicts:
        return f"the verdict is {value.get('verdict')}"
    if need.max_age is not None:
        made = stated_time(kind, value)
        if made is None:
            return "it does not say when it was made"
        if made < question.now - need.max_age:
            return f"made {rfc3339(made)}, which is too old"
        if made > question.now + _SKEW:
            return f"made {rfc3339(made)}, which is still to come"
    return None


def _counter(release: Mapping[str, Any]) -> int:
    counter = release.get("counter")
    return counter if isinstance(counter, int) and not isinstance(counter, bool) else 0


def _releases(question: PolicyQuestion) -> list[Mapping[str, Any]]:
    """What the newest release of each target says of the image: an older one of the same image is superseded."""
    said = [found.statement.value for found in question.releases]
    newest: dict[str, int] = {}
    for item in said:
        target = str(item.get("target"))
        newest[target] = max(newest.get(target, 0), _counter(item))
    return [item for item in said if _counter(item) == newest[str(item.get("target"))]]


def _minimum_release(question: PolicyQuestion) -> list[Check]:
    least = question.policy.minimum_release
    if not least:
        return []
    message = "the release is not older than the policy accepts"
    expected = ", ".join(f"{target} {number}" for target, number in sorted(least.items()))
    said = [item.statement.value for item in question.releases]
    found = [(str(item.get("target")), item.get("counter")) for item in said]
    good = [str(item.get("target")) in least and _counter(item) >= least[str(item.get("target"))] for item in said]
    unknown = _release_unavailable(question, "verify.minimum-release", message)
    if unknown and not any(good):
        return unknown
    text = ", ".join(f"{target} {counter}" for target, counter in found) or "no signed release statement"
    return [Check("verify.minimum-release", any(good), message, expected, text)]


def _not_proven(question: PolicyQuestion) -> list[Check]:
    if question.policy.not_proven == "allow":
        return []
    message = "every fact that the build relied on was proven"
    listed: list[Any] = []
    silent: list[str] = []
    for item in question.images:
        ours = [
            at(found.statement.value, "buildDefinition", "internalParameters", "notProven")
            for found in question.trusted(PROVENANCE, item)
            if at(found.statement.value, "buildDefinition", "buildType") == BUILD_TYPE
        ]
        listed += ours
        silent += [] if ours else [item.subject.name]
    open_facts = [str(path) for paths in listed for path in (paths if isinstance(paths, list) else ["unknown"])]
    if not open_facts and (silent or not listed):
        of = f" of {', '.join(silent)}" if listed else ""
        return [Check("verify.not-proven", None, f"{message}: no signed provenance says so{of}", required=False)]
    return [
        Check(
            "verify.not-proven", not open_facts, message,
            "none" if open_facts else None, ", ".join(open_facts[:5]) if open_facts else None,
        )
    ]  # fmt: skip


def _waiver(question: PolicyQuestion) -> list[Check]:
    rule = question.policy.waiver
    if not rule.required:
        return []
    message = "the release has a waiver"
    waivers = [item.get("waiver") for item in _releases(question)]
    unknown = _release_unavailable(question, "verify.waiver", message)
    if unknown and not any(waivers):
        return unknown
    if not any(waivers):
        return [Check("verify.waiver", False, message, "a waiver in a signed release statement", "none")]
    out = []
    for waiver in filter(None, waivers):
        until = at(waiver, "expires")
        ends = parse_rfc3339(f"{until}T23:59:59Z") if isinstance(until, str) else None
        expired = until is not None and (ends is None or ends < question.now)
        out.append(
            Check(
                "verify.waiver", not expired if rule.expired == "refuse" else True,
                f"{message}, number {at(waiver, 'number')}" + (", which has expired" if expired else ""),
                "not expired" if expired else None, str(until) if expired else None,
            )
        )  # fmt: skip
    return out


def _content_ids(question: PolicyQuestion) -> list[Check]:
    """A signed provenance and the image's own label must name one content id."""
    from imagebuild import LABEL_PREFIX

    out = []
    for item in question.images:
        label = question.labels.get(item.subject.digest, {}).get(LABEL_PREFIX + "content-id")
        for found in item.of_type(PROVENANCE):
            said = at(found.statement.value, "buildDefinition", "internalParameters", "contentId")
            if label is not None and said is not None and question.counting(found):
                out.append(
                    Check("verify.content-id", said == label, f"label and provenance of the {item.subject.name} agree", label, str(said))
                )  # fmt: skip
    return out
