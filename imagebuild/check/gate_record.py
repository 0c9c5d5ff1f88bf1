"""What accuracy runs and their gate leave behind: documents, JUnit, and in-toto test results of the images.

A run by itself leaves a predicate, which `attest` can sign for the image that it served; it is no statement, so that the
threshold of one arm is never taken for the gate's answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagebuild.attest.predicates.check_result import CONTENT_ID, check_result
from imagebuild.attest.predicates.types import RESULTS, TEST_RESULT
from imagebuild.attest.statement import Statement
from imagebuild.check import protocol
from imagebuild.check.compare import AnswerLimits
from imagebuild.check.gate import Demands, Gate
from imagebuild.check.junit import Case, junit_xml
from imagebuild.check.results import FILTERS, Run
from imagebuild.check.verdicts import Judgement, Verdict
from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_write, io_faults
from imagebuild.errors import ImagebuildError
from imagebuild.overlay.document import Overlay
from imagebuild.target.document import Target
from imagebuild.target.lock_types import Lock
from imagebuild.target.serve import Gsm8k

STATEMENT = "statement.json"
GATE = "gate.json"
PREDICATE = "predicate.json"
KEPT = ("meta_env.json", "summary.json", "answers.jsonl", "server.log")
"""Files of a run that evidence names by digest, beside lm-eval's own."""


def demands_of(target: Target, overlays: Sequence[Overlay]) -> Demands:
    """What a target's gate asks for: the threshold is that of its model where the table names it."""
    asked = (target.checks.gsm8k if target.checks is not None else None) or Gsm8k()
    model = target.serve.model.id if target.serve is not None and target.serve.model is not None else None
    return Demands(
        asked.threshold_of(model),
        asked.margin,
        asked.arms,
        AnswerLimits(asked.max_null, asked.max_truncated),
        needs_proof=any(overlay.switch is not None for overlay in overlays),
    )


def gate_junit(gate: Gate) -> bytes:
    return junit_xml(f"gsm8k {gate.target}", [Case(check.name, check.judgement) for check in gate.checks])


def patched_image(runs: Mapping[str, Run]) -> tuple[Digest, Digest | None] | None:
    """Digest and content id of the image that the arms `on` and `off` served; None where that is not known, or not one."""
    found = {
        (str(run.meta["image_digest"]), str(run.meta.get("content_id") or ""))
        for arm, run in runs.items()
        if arm in ("off", "on") and run.meta.get("image_digest")
    }
    if len(found) != 1:
        return None
    digest, content = found.pop()
    try:
        return Digest.parse(digest), Digest.parse(content) if content else None
    except ImagebuildError:
        return None


def gate_statement(
    gate: Gate,
    runs: Mapping[str, Run],
    demands: Demands,
    finished: int,
    lock: Lock | None = None,
) -> Statement | None:
    """The test result of the patched image, None where the gate gave no answer that could be attested, or where the image
    is not known.

    Subject is the manifest that was served; `configuration` the content id that was read inside (else the lock's, where the
    manifest is one of the lock's), the task, the questions and the demands; `evidence` every file of every run.  `finished`
    in seconds since 1970.
    """
    image = patched_image(runs)
    if image is None or str(gate.verdict) not in RESULTS:
        return None
    digest, served = image
    configuration = _configuration(runs, demands)
    locked = lock is not None and digest in {lock.result.digest, *(one.manifest for one in lock.result.platforms)}
    content_id = served or (lock.result.content_id if lock is not None and locked else None)
    if content_id is not None:
        configuration[CONTENT_ID] = content_id
    good = [f"{check.name}: {check.judgement.verdict}" for check in gate.checks if check.judgement.verdict.good]
    bad = [f"{check.name}: {check.judgement.verdict}" for check in gate.checks if not check.judgement.verdict.good]
    predicate = check_result(
        "gsm8k",
        str(gate.verdict),
        configuration=configuration,
        evidence={f"{arm}/{name}": found for arm, run in runs.items() for name, found in run_files(run).items()},
        finished=finished,
        passed=good,
        failed=bad,
        platform=next((str(one.platform) for one in lock.result.platforms if one.manifest == digest), None)
        if lock is not None
        else None,
    )
    predicate |= {"demands": _asked(demands), "reason": gate.reason}
    if lock is not None and locked and lock.result.digest != digest:
        predicate["index"] = str(lock.result.digest)
    return Statement.about(digest, TEST_RESULT, predicate, gate.target)


def run_predicate(run: Run, judgement: Judgement, demands: Demands, finished: int) -> dict[str, Any] | None:
    """The test result of one arm: both filters against the threshold.  None for a run that does not count, that is not
    over all of its questions, or whose answers were cut."""
    settings = run.meta.get("settings")
    data = settings.get("dataset") if isinstance(settings, dict) else None
    whole = isinstance(data, dict) and run.questions == data.get("questions")
    if judgement.verdict is not Verdict.PASSED or not whole or (settings or {}).get("max_tokens_asked") is not None:
        return None
    passed: list[str] = []
    failed: list[str] = []
    for name in FILTERS:
        right, total = run.right(name), len(run.samples.get(name, {}))
        good = total > 0 and right >= demands.threshold * total
        (passed if good else failed).append(f"{name}: {right}/{total}, threshold {demands.threshold}")
    configuration = _configuration({"run": run}, demands)
    content = run.meta.get("content_id")
    if content:
        configuration["content id"] = Digest.parse(str(content))
    predicate = check_result(
        "gsm8k",
        "failed" if failed else "passed",
        configuration=configuration,
        evidence=run_files(run),
        finished=finished,
        passed=passed,
        failed=failed,
    )
    return {**predicate, "arm": run.meta.get("arm"), "image": run.meta.get("image_digest")}


def store_predicate(folder: Path, predicate: Mapping[str, Any] | None) -> None:
    """Writes predicate.json into a run's folder; one of before that no longer holds is removed."""
    path = folder / PREDICATE
    if predicate is None:
        with io_faults(path, "removing"):
            path.unlink(missing_ok=True)
    else:
        atomic_write(path, (json.dumps(predicate, indent=2, ensure_ascii=False) + "\n").encode())


def _configuration(runs: Mapping[str, Run], demands: Demands) -> dict[str, Digest]:
    task = protocol.task_document(Path("test.jsonl"), Path("train.jsonl"))
    return {
        "task gsm8k": Digest.of(json.dumps(task, sort_keys=True).encode()),
        "gate": Digest.of(canonical_json(_asked(demands))),
        **_questions(runs),
    }


def _asked(demands: Demands) -> dict[str, Any]:
    return {
        "threshold": str(demands.threshold),
        "margin": str(demands.margin),
        "arms": list(demands.arms),
        "max_null": demands.limits.null,
        "max_truncated": demands.limits.truncated,
    }


def _questions(runs: Mapping[str, Run]) -> dict[str, Digest]:
    out: dict[str, Digest] = {}
    for run in runs.values():
        settings = run.meta.get("settings")
        data = settings.get("dataset") if isinstance(settings, dict) else None
        for name in ("test", "train"):
            try:
                out[f"{name}.jsonl"] = Digest.parse(str((data or {}).get(name)))
            except ImagebuildError:
                continue
    return out


def run_files(run: Run) -> dict[str, Digest]:
    """The digest of each file of a run that a verdict stands on."""
    out = {name: Digest.parse(text) for name, text in run.digests.items()}
    for name in KEPT:
        path = run.folder / name
        if path.is_file():
            with io_faults(path, "reading"):
                out[name] = Digest.of(path.read_bytes())
    return out


def store_gate(folder: Path, gate: Gate, statement: Statement | None) -> Path | None:
    """Writes gate.json and statement.json into `folder`; the statement's path.  A statement of before that no longer holds
    is removed."""
    document = (json.dumps(gate.to_json(), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    path = folder / STATEMENT
    with io_faults(folder, "writing"):
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / GATE, document)
        if statement is None:
            path.unlink(missing_ok=True)
            return None
    atomic_write(path, statement.format() + b"\n")
    return path
