"""What a smoke test leaves: evidence.json, junit.xml, the raw outputs by digest, and the statement made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuild import __version__
from imagebuild.attest.predicates.check_result import CONTENT_ID, check_result
from imagebuild.attest.statement import Statement
from imagebuild.check.junit import Case, junit_xml
from imagebuild.check.smoke.request import SmokeRequest
from imagebuild.check.smoke.result import SmokeResult
from imagebuild.check.verdicts import Judgement, Verdict
from imagebuild.content.canonical import canonical_json, load_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import InputError
from imagebuild.host.clock import rfc3339

KIND = "smoke-evidence"
SCHEMA_VERSION = 1
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
SIZE_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What surrounds a run: `started` and `finished` in seconds since 1970; `lock` the digest of the lock file's bytes;
    `source_commit` of the workspace, where git tells and nothing is uncommitted; `site` by name."""

    started: int
    finished: int
    lock: Digest
    source_commit: str | None = None
    site: str | None = None


def evidence_document(request: SmokeRequest, result: SmokeResult, around: Circumstances) -> dict[str, Any]:
    """evidence.json as a value (docs/reference/smoke-evidence.md)."""
    image, base = request.image, request.base
    return {
        "kind": KIND,
        "schemaVersion": SCHEMA_VERSION,
        "target": result.target,
        "platform": str(image.platform),
        "image": {
            "reference": image.reference,
            "digest": str(image.digest),
            "index": None if image.index is None else str(image.index),
            "content_id": str(request.expected.content_id),
        },
        "base": {
            "reference": request.lock.inputs.base,
            "digest": str(request.lock.inputs.base_digest),
            "manifest": None if base is None else str(base.digest),
        },
        **result.judgement.to_json(),
        "complete": result.complete,
        "steps": [step.to_json() for step in result.steps],
        "left_out": dict(request.left_out),
        "hardware": result.hardware,
        "runner": result.runner,
        "site": around.site,
        "settings": str(settings_digest(request)),
        "lock": str(around.lock),
        "tool": {"name": "imagebuild", "version": __version__},
        "source_commit": around.source_commit,
        "started": rfc3339(around.started),
        "finished": rfc3339(around.finished),
    }


def settings_digest(request: SmokeRequest) -> Digest:
    """The digest of what decided how the steps ran: settings of target and overlays, and the programs that were sent."""
    from imagebuild.check import inside
    from imagebuild.check.smoke.step_engine import arms_of, command_of, proofs_of
    from imagebuild.check.smoke.step_overlay import bundled, checks_of

    tiny = request.settings.engine
    value = {
        "steps": list(request.wanted_steps),
        "python": request.settings.python,
        "registry": request.settings.registry,
        "expected_devices": request.settings.expected_devices,
        "engine": None
        if tiny is None
        else {"config": str(tiny.config), "command": list(command_of(request) or ()), "env": dict(tiny.env)},
        "arms": arms_of(request),
        "proofs": proofs_of(request),
        "prompts": None if request.prompts is None else [list(one) for one in request.prompts],
        "programs": {name: str(Digest.of(inside.source(name))) for name in inside.PROGRAMS},
        "overlays": {one.name: str(Digest.of(bundled(one))) for one in request.overlays if checks_of(one)},
    }
    return Digest.of(canonical_json(value))


def statement_of(
    request: SmokeRequest, result: SmokeResult, around: Circumstances, evidence: Mapping[str, Digest]
) -> Statement | None:
    """The in-toto test result about the platform's manifest, None where nothing may be stated: a verdict that is no
    answer, and a good one of fewer steps than the target asks for."""
    verdict = result.judgement.verdict
    if verdict.test_result is None or (verdict.good and not result.complete):
        return None
    predicate = check_result(
        "smoke",
        str(verdict),
        configuration={
            CONTENT_ID: request.expected.content_id,
            "target.lock.json": around.lock,
            "checks": settings_digest(request),
        },
        evidence=evidence,
        finished=around.finished,
        passed=[one.step for one in result.steps if one.verdict is Verdict.PASSED],
        failed=[one.step for one in result.steps if one.verdict is Verdict.FAILED],
        platform=str(request.image.platform),
    )
    return Statement.about(request.image.digest, TEST_RESULT, predicate, request.image.reference)


def write_evidence(
    folder: Path, request: SmokeRequest, result: SmokeResult, around: Circumstances
) -> tuple[Path, dict[str, Any]]:
    """Writes everything below `folder`, the statement last; what an earlier run stated there goes first, so that no moment
    shows a statement that is not of the evidence beside it.  Returns evidence.json's path and value.

    Raises UnavailableError `content.io`, `content.disk-full`.
    """
    document = evidence_document(request, result, around)
    # seconds and logprobs are fractions, which canonical JSON does not know
    raw = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    with io_faults(folder, "writing"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "statement.json").unlink(missing_ok=True)
    kept: set[str] = set()
    for step in result.steps:
        for name, data in step.outputs.items():
            place = f"sha256-{Digest.of(data).hex}.{_suffix(name)}"
            kept.add(place)
            atomic_write(folder / "outputs" / place, data)
    _tidy(folder / "outputs", kept)
    cases = [Case(step.step, step.judgement, step.seconds) for step in result.steps]
    cases += [Case(name, Judgement(Verdict.NOT_RUN, why)) for name, why in request.left_out.items()]
    junit = junit_xml(f"smoke.{result.target}.{request.image.platform}", cases)
    atomic_write(folder / "junit.xml", junit)
    atomic_write(folder / "evidence.json", raw)
    digests = {"evidence.json": Digest.of(raw), "junit.xml": Digest.of(junit)}
    statement = statement_of(request, result, around, digests)
    if statement is not None:
        atomic_write(folder / "statement.json", statement.format())
    return folder / "evidence.json", document


def _suffix(name: str) -> str:
    found = re.fullmatch(r".*\.([a-z]{1,8})", name)
    return found.group(1) if found is not None else "bin"


def _tidy(folder: Path, kept: set[str]) -> None:
    """Outputs of an earlier run go."""
    if not folder.is_dir():
        return
    with io_faults(folder, "tidying"):
        for path in folder.iterdir():
            if path.name.startswith("sha256-") and path.name not in kept:
                path.unlink()


def load_evidence_document(path: Path) -> dict[str, Any]:
    """An evidence file, as far as showing it needs.  Raises InputError `check.not-evidence`."""
    with io_faults(path, "reading"), path.open("rb") as stream:
        data = stream.read(SIZE_LIMIT + 1)
    value = load_json(data, str(path)) if len(data) <= SIZE_LIMIT else None
    if not isinstance(value, dict) or value.get("kind") != KIND or not isinstance(value.get("steps"), list):
        raise InputError(
            "check.not-evidence",
            f"{path} is no evidence of a smoke test",
            expected=f"a JSON document of kind {KIND}",
            found=str(value.get("kind"))[:80] if isinstance(value, dict) else "another document",
        )
    if value.get("schemaVersion") != SCHEMA_VERSION:
        raise InputError(
            "check.not-evidence",
            f"{path} is evidence of another format",
            expected=str(SCHEMA_VERSION),
            found=str(value.get("schemaVersion"))[:80],
        )
    wrong = _misshapen(value)
    if wrong is not None:
        raise InputError("check.not-evidence", f"{path} is not as a smoke test writes it: {wrong}")
    return value


def _misshapen(value: Mapping[str, Any]) -> str | None:
    """What keeps evidence from being shown; None for nothing.  Its meaning is not judged."""
    if value.get("verdict") not in tuple(Verdict):
        return f"verdict {str(value.get('verdict'))[:80]!r}"
    for key in ("image", "hardware", "tool", "left_out"):
        if not isinstance(value.get(key, {}), dict):
            return f"{key} is no object"
    accelerators = value.get("hardware", {}).get("accelerators", [])
    rows = [("steps", value["steps"]), ("accelerators", accelerators)]
    rows += [("parts", step.get("parts", [])) for step in value["steps"] if isinstance(step, dict)]
    for key, listed in rows:
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            return f"{key} is no list of objects"
    return None
