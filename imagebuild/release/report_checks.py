"""Smoke and accuracy evidence as a reviewer is shown it: what counts for this image, what does not, and what never ran.

Read from `build/smoke/TARGET/ARCH/evidence.json`, `build/gsm8k/TARGET/ARM/` and `manifests/TARGET/evidence/**/*.json`.
Nothing here is signed: the page says so, and a release's policy decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.check.verdicts import Verdict
from imagebuild.content.canonical import load_json
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, clean
from imagebuild.oci.platform import Platform
from imagebuild.waiver.evidence import TestRecord, json_files
from imagebuild.waiver.facts import TargetFacts

SIZE_LIMIT = 16 << 20
DEPTH = 12
"""Levels of a JSON value that are looked at."""
PART_LIMIT = 500
"""Parts of one step."""
SMOKE = "smoke-evidence"
ACCURACY = ("gsm8k-gate", "gsm8k-comparison")


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON file of evidence: its name for people, the digest of its bytes, its content."""

    file: str
    digest: Digest
    value: Mapping[str, Any] = field(repr=False, hash=False)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One smoke step; `seconds` None where nobody took the time.  `parts` are what was looked at in it and is not good."""

    name: str
    verdict: Verdict
    reason: str
    seconds: float | None = None
    parts: tuple[StepResult, ...] = ()


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """The smoke steps of one platform.  `source` is the evidence's file, "" where there is none; `of` says which image
    was run; `hardware` in words."""

    platform: str
    source: str
    of: str
    steps: tuple[StepResult, ...]
    hardware: str = ""
    counts: bool = True


@dataclass(frozen=True, slots=True)
class AccuracyResult:
    """One judgement of accuracy runs: the document of `gsm8k gate` or `gsm8k compare`; `counts` tells whether every run in
    it is of this lock's images, `why` not."""

    source: str
    verdict: Verdict
    reason: str
    value: Mapping[str, Any] = field(repr=False)
    counts: bool = True
    why: str = ""

    @property
    def comparisons(self) -> Mapping[str, Mapping[str, Any]]:
        """Comparisons by name, `CANDIDATE against REFERENCE`."""
        if self.value.get("kind") == "gsm8k-comparison":
            return {"candidate against reference": self.value}
        found = _dict(self.value.get("comparisons"))
        return {str(name): _dict(one) for name, one in found.items()}


def load_documents(folders: Collection[tuple[Path, str]]) -> tuple[Document, ...]:
    """Every JSON object below the folders, by name.  What is no JSON object is not evidence and is left out here; the waiver's
    check counts it.  Raises UnavailableError `content.io`, InputError `content.too-many-files`."""
    out = []
    for folder, shown in folders:
        for name, data in json_files(folder, shown, SIZE_LIMIT):
            if data is None:
                continue
            try:
                value = load_json(data, name)
            except ImagebuildError:
                continue
            if isinstance(value, dict):
                out.append(Document(name, Digest.of(data), value))
    return tuple(out)


def altered_documents(documents: Collection[Document], records: Collection[TestRecord]) -> dict[Document, str]:
    """Documents that a test result beside them names with another digest, and that result's file: what they say is not what
    it rests on."""
    named: dict[str, dict[str, tuple[str, set[Digest]]]] = {}
    for record in records:
        for name, digest in record.raw:
            beside = named.setdefault(record.file.rpartition("/")[0], {})
            beside.setdefault(name, (record.file, set()))[1].add(digest)
    out = {}
    for document in documents:
        folder, _, own = document.file.rpartition("/")
        # a release keeps `evidence.json` as CHECK-MACHINE.evidence.json
        for name, (file, digests) in named.get(folder, {}).items():
            if (own == name or own.endswith(f".{name}")) and document.digest not in digests:
                out[document] = file
    return out


def smoke_results(
    facts: TargetFacts, documents: Collection[Document], records: Collection[TestRecord] = ()
) -> tuple[SmokeResult, ...]:
    """One result a platform at least: what ran on this image, then what ran on others; `not-run` where nothing did."""
    asked = facts.target.checks.smoke.steps if facts.target.checks and facts.target.checks.smoke else ()
    mine = {p.platform: frozenset({p.manifest, facts.lock.result.digest}) for p in facts.lock.result.platforms}
    out: list[SmokeResult] = []
    others: list[SmokeResult] = []
    found: set[Platform] = set()
    for document in documents:
        if document.value.get("kind") != SMOKE:
            continue
        digests = set(_digests(document.value.get("image")))
        for platform, names in mine.items():
            if digests & names and (len(mine) == 1 or _is_of(document.value, platform, digests, facts)):
                found.add(platform)
                out.append(_smoke(str(platform), document, "this image", asked))
                break
        else:
            of = "the unmodified base" if digests & facts.base_digests else "another image"
            others.append(_smoke("", document, of, (), counts=False))
    for platform, names in mine.items():
        if platform in found:
            continue
        told = [one for one in records if one.check == "smoke" and one.subjects & names]
        out += [_stated(platform, one, asked) for one in told] or [_no_smoke(facts, platform, asked)]
    return (*sorted(out, key=lambda one: (one.platform, one.source)), *sorted(others, key=lambda one: one.source))


def _is_of(value: Mapping[str, Any], platform: Platform, digests: set[Digest], facts: TargetFacts) -> bool:
    manifest = next(p.manifest for p in facts.lock.result.platforms if p.platform == platform)
    named = value.get("platform") or _dict(value.get("image")).get("platform")
    return manifest in digests or named == str(platform)


def _smoke(platform: str, document: Document, of: str, asked: Collection[str], *, counts: bool = True) -> SmokeResult:
    steps = [_step(one) for one in _list(document.value.get("steps")) if isinstance(one, dict)]
    have = {step.name for step in steps}
    steps += [
        StepResult(name, Verdict.NOT_RUN, "the evidence does not tell of it") for name in asked if name not in have
    ]
    hardware = words_of(document.value.get("hardware"))
    return SmokeResult(platform, f"{document.file} {document.digest}", of, tuple(steps), hardware, counts)


def _stated(platform: Platform, record: TestRecord, asked: Collection[str]) -> SmokeResult:
    """A smoke run of which only the in-toto test result is at hand: names of steps, no reasons."""
    why = "as the test result says"
    steps = [StepResult(name, Verdict.PASSED, why) for name in record.passed]
    steps += [StepResult(name, Verdict.FAILED, why) for name in record.failed]
    if record.result != "PASSED" and not record.failed:
        steps.append(StepResult("result", Verdict.FAILED, f"the test result says {record.result}"))
    have = {step.name for step in steps}
    missing = [name for name in asked if name not in have]
    steps += [StepResult(name, Verdict.NOT_RUN, "the test result does not name it") for name in missing]
    return SmokeResult(str(platform), f"{record.file} {record.digest}", "this image", tuple(steps))


def _no_smoke(facts: TargetFacts, platform: Platform, asked: Collection[str]) -> SmokeResult:
    where = f"build/smoke/{facts.name}/{platform.architecture}/ or manifests/{facts.name}/evidence/"
    reason = f"no smoke evidence of this image is in {where}"
    return SmokeResult(
        str(platform), "", "this image", tuple(StepResult(name, Verdict.NOT_RUN, reason) for name in asked)
    )


def _step(value: Mapping[str, Any]) -> StepResult:
    name, reason = clean(str(value.get("name", "?")), 100), clean(str(value.get("reason") or ""), 600)
    try:
        verdict = Verdict(str(value.get("verdict")))
    except ValueError:
        verdict, reason = (
            Verdict.NOT_PROVEN,
            f"no verdict is known by the name {clean(str(value.get('verdict')), 60)!r}",
        )
    listed = _list(value.get("parts"))[:PART_LIMIT]
    parts = [_step({**one, "parts": None}) for one in listed if isinstance(one, dict)]
    seconds = value.get("seconds")
    good = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < 1e9
    taken = float(seconds) if good and seconds is not None else None
    return StepResult(name, verdict, reason, taken, tuple(one for one in parts if not one.verdict.good))


def accuracy_results(
    facts: TargetFacts, documents: Collection[Document], records: Collection[TestRecord] = ()
) -> tuple[AccuracyResult, ...]:
    """The judgements on record, those of this lock's images first; test results where no judgement itself is there."""
    out = []
    for document in documents:
        if document.value.get("kind") in ACCURACY:
            source = f"{document.file} {document.digest}"
            out.append(accuracy_result(facts, source, document.value))
    for record in () if any(one.counts for one in out) else records:
        if record.check == "gsm8k" and record.of({*facts.image_digests, facts.lock.result.content_id}):
            verdict = Verdict.PASSED if record.result == "PASSED" else Verdict.FAILED
            reason = f"the test result says {record.result}; its figures are not at hand"
            out.append(AccuracyResult(f"{record.file} {record.digest}", verdict, reason, {}))
    return tuple(sorted(out, key=lambda one: (not one.counts, one.source)))


def accuracy_result(facts: TargetFacts, source: str, value: Mapping[str, Any]) -> AccuracyResult:
    """One judgement, with the question answered whose images its runs were of."""
    try:
        verdict = Verdict(str(value.get("verdict")))
    except ValueError:
        verdict = Verdict.NOT_PROVEN
    result = AccuracyResult(source, verdict, clean(str(value.get("reason") or ""), 2000), value)
    faults = list(dict.fromkeys(_foreign(facts, result)))
    return AccuracyResult(source, verdict, result.reason, value, not faults, "; ".join(faults))


def _foreign(facts: TargetFacts, result: AccuracyResult) -> Iterator[str]:
    if not result.comparisons:
        yield "it compares nothing, so that no image is named"
    for name, comparison in result.comparisons.items():
        candidate, _, reference = name.partition(" against ")
        for side, role in (("candidate", candidate), ("reference", reference)):
            image = _dict(comparison.get(side)).get("image")
            digests = set(_digests(image))
            allowed = facts.base_digests if role in ("base", "reference", "base-again") else facts.image_digests
            if not digests:
                yield f"{role}: no digest says which image was served"
            elif not digests & allowed:
                yield f"{role}: {clean(str(image), 200)} is none of this lock's images"


def words_of(value: Any, depth: int = 0) -> str:
    """A JSON value in words for people, keys sorted; what is nested deeper than DEPTH is left out."""
    if depth > DEPTH:
        return "…"
    if isinstance(value, dict):
        return "; ".join(f"{clean(str(key), 80)}: {words_of(one, depth + 1)}" for key, one in sorted(value.items()))
    if isinstance(value, list):
        return ", ".join(words_of(one, depth + 1) for one in value)
    return "" if value is None else clean(str(value), 300)


def _digests(value: Any, depth: int = 0) -> Iterator[Digest]:
    """Every sha256 digest that a JSON value names, down to DEPTH."""
    if depth > DEPTH:
        return
    if isinstance(value, dict):
        for one in value.values():
            yield from _digests(one, depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _digests(one, depth + 1)
    elif isinstance(value, str):
        text = value.rpartition("@")[2] if "@" in value else value
        try:
            yield Digest.parse(text)
        except ImagebuildError:
            return


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
