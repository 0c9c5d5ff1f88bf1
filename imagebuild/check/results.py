"""Reading accuracy runs: lm-eval's result and samples files, ours and those of others (InferenceX's artefacts).

A folder holds `results_*.json` (lm-eval's aggregate), `samples_<task>_*.jsonl` (one line a question and filter), and
where the run was ours or InferenceX's `meta_env.json`; ours also has `answers.jsonl` and `summary.json`.  Everything is
bounded and untrusted: scores are recomputed from the samples and compared with those that the file claims.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from imagebuild.content.files import io_faults
from imagebuild.errors import InputError

FILTERS = ("strict-match", "flexible-extract")
METRIC = "exact_match"
RESULTS_LIMIT = 64 << 20
LINE_LIMIT = 16 << 20
SCORE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Sample:
    """One question under one filter.  `answer` is what the filter took out, `response` what the model said (None for
    null); the hashes are lm-eval's, over the document, the prompt and the target."""

    question: int
    filter: str
    correct: bool
    answer: str
    response: str | None
    doc_hash: str
    prompt_hash: str
    target_hash: str


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted while a run went on; None where nobody recorded it."""

    null: int | None = None
    empty: int | None = None
    truncated: int | None = None
    failed: int | None = None

    def to_json(self) -> dict[str, int | None]:
        return {"null": self.null, "empty": self.empty, "truncated": self.truncated, "failed": self.failed}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one task.  `samples` by filter and question; `claimed` the score of each filter in the result file;
    `meta` is meta_env.json; `origin` tells how the image was known; `faults` what was found wrong while reading."""

    folder: Path
    task: str
    model: str
    claimed: Mapping[str, float]
    samples: Mapping[str, Mapping[int, Sample]]
    original: int | None
    effective: int | None
    meta: Mapping[str, Any]
    counts: Counts
    digests: Mapping[str, str]
    origin: str
    faults: tuple[str, ...]

    @property
    def questions(self) -> int:
        """Questions under the filter that has most."""
        return max((len(rows) for rows in self.samples.values()), default=0)

    def right(self, name: str) -> int:
        """How many samples of a filter are right."""
        return sum(sample.correct for sample in self.samples.get(name, {}).values())

    def describe(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "task": self.task,
            "model": self.model,
            "questions": self.questions,
            "signed": False,
            "image_known_by": self.origin,
            "image": self.meta.get("image_digest") or self.meta.get("image"),
            "counts": self.counts.to_json(),
            "files": dict(self.digests),
        }


def load_run(folder: Path, *, concurrency: int | None = None, task: str = "gsm8k") -> Run:
    """Reads a run.  `concurrency` picks one of a batched InferenceX artefact (`…_conc<N>`).

    Raises InputError `check.no-results`, `check.ambiguous-results`, `check.bad-results`.  What makes a run not count
    (scores that disagree with the samples, missing questions) is no error: it stands in `faults`.
    """
    if not folder.is_dir():
        raise InputError(
            "check.no-results",
            f"{folder} is not a folder",
            expected="a folder with results_*.json and samples_*.jsonl",
            details={"file": str(folder)},
        )
    results = _one(folder, "results*.json", concurrency)
    samples_file = _one(folder, f"samples_{task}_*.jsonl", concurrency)
    results_bytes = _read(results)
    document = _object(results_bytes, results)
    scores = _part(document, "results", results).get(task)
    if not isinstance(scores, dict):
        raise _bad(results, f"no result of the task {task}", expected=task, found=", ".join(document["results"]))
    digest = sha256()
    faults: list[str] = []
    samples = _samples(samples_file, digest, faults)
    counted = document.get("n-samples", {}).get(task, {}) if isinstance(document.get("n-samples"), dict) else {}
    meta, summary = _optional(folder / "meta_env.json"), _optional(folder / "summary.json")
    claimed = {
        name: float(value)
        for name in FILTERS
        if isinstance(value := scores.get(f"{METRIC},{name}"), (int, float)) and math.isfinite(value)
    }
    effective = _count(counted, "effective")
    faults += _disagreements(claimed, samples, effective)
    return Run(
        folder,
        task,
        str(document.get("model_name") or ""),
        MappingProxyType(claimed),
        MappingProxyType(samples),
        _count(counted, "original"),
        effective,
        MappingProxyType(meta),
        _counts(summary, samples),
        MappingProxyType(
            {
                results.name: f"sha256:{sha256(results_bytes).hexdigest()}",
                samples_file.name: f"sha256:{digest.hexdigest()}",
            }
        ),
        _origin(meta, summary),
        tuple(faults),
    )


def _one(folder: Path, pattern: str, concurrency: int | None) -> Path:
    with io_faults(folder, "reading"):
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if not found:
            # lm-eval makes a folder below its output folder, named after the model
            found = sorted(path for path in folder.glob(f"*/{pattern}") if path.is_file())
    if concurrency is not None:
        found = [path for path in found if path.stem.endswith(f"_conc{concurrency}")]
    if not found:
        raise InputError(
            "check.no-results", f"{folder} holds no {pattern}", expected=pattern, details={"file": str(folder)}
        )
    if len(found) > 1:
        raise InputError(
            "check.ambiguous-results",
            f"{folder} holds {len(found)} files {pattern}",
            expected="one run a folder",
            found=", ".join(path.name for path in found[:8]),
            hint="name a folder of one run, or the run's concurrency with --concurrency",
        )
    return found[0]


def _read(path: Path) -> bytes:
    with io_faults(path, "reading"), open(path, "rb") as stream:
        data = stream.read(RESULTS_LIMIT + 1)
    if len(data) > RESULTS_LIMIT:
        raise _bad(path, "too large", expected=f"at most {RESULTS_LIMIT} bytes")
    return data


def _bad(path: Path, what: str, *, expected: str | None = None, found: str | None = None, line: int = 0) -> InputError:
    place = f"{path}:{line}" if line else str(path)
    details: dict[str, Any] = {"file": str(path), **({"line": line} if line else {})}
    return InputError("check.bad-results", f"{place}: {what}", expected=expected, found=found, details=details)


def _object(data: bytes, path: Path, line: int = 0) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"not JSON: {error}", line=line) from error
    if not isinstance(value, dict):
        raise _bad(path, "not a JSON object", line=line)
    return value


def _part(document: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise _bad(path, f"no object under {key!r}: not a result file of lm-eval")
    return value


def _optional(path: Path) -> dict[str, Any]:
    return _object(_read(path), path) if path.is_file() else {}


def _count(values: object, key: str) -> int | None:
    value = values.get(key) if isinstance(values, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def read_lines(path: Path, digest: Any = None) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line that is not blank; a line over the limit is an InputError `check.bad-results`."""
    with io_faults(path, "reading"), open(path, "rb") as stream:
        number = 0
        while line := stream.readline(LINE_LIMIT + 1):
            number += 1
            if len(line) > LINE_LIMIT:
                raise _bad(path, "a line that is too long", expected=f"at most {LINE_LIMIT} bytes", line=number)
            if digest is not None:
                digest.update(line)
            if line.strip():
                yield number, line


def _samples(path: Path, digest: Any, faults: list[str]) -> dict[str, Mapping[int, Sample]]:
    found: dict[str, dict[int, Sample]] = {}
    for number, line in read_lines(path, digest):
        sample = _sample(_object(line, path, number), path, number)
        rows = found.setdefault(sample.filter, {})
        if sample.question in rows:
            faults.append(f"question {sample.question} stands twice under {sample.filter} ({path.name}:{number})")
        rows[sample.question] = sample
    return {name: MappingProxyType(rows) for name, rows in found.items()}


def _sample(row: Mapping[str, Any], path: Path, line: int) -> Sample:
    question, value = row.get("doc_id"), row.get(METRIC)
    if not isinstance(question, int) or isinstance(question, bool):
        raise _bad(path, "no question number under 'doc_id'", line=line)
    if value not in (0, 1):
        raise _bad(path, f"{METRIC} is neither 0 nor 1", found=repr(value)[:80], line=line)
    hashes = [row.get(key) for key in ("doc_hash", "prompt_hash", "target_hash")]
    if not all(isinstance(text, str) and text for text in hashes) or not isinstance(row.get("filter"), str):
        raise _bad(path, "no filter, doc_hash, prompt_hash or target_hash", line=line)
    doc_hash, prompt_hash, target_hash = (str(text) for text in hashes)
    answer, response = _first(row.get("filtered_resps")), _first(row.get("resps"))
    return Sample(question, row["filter"], value == 1, answer or "", response, doc_hash, prompt_hash, target_hash)


def _first(value: object) -> str | None:
    while isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, str) else None


def _counts(summary: Mapping[str, Any], samples: Mapping[str, Mapping[int, Sample]]) -> Counts:
    recorded = summary.get("counts")
    if isinstance(recorded, dict):
        return Counts(*(_count(recorded, key) for key in ("null", "empty", "truncated", "failed")))
    rows = next(iter(samples.values()), {})
    # lm-eval writes null answers as empty text, so that null and empty are one here; finish_reason is not kept
    return Counts(None, sum(not (sample.response or "").strip() for sample in rows.values()), None, None)


def _origin(meta: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    if summary.get("kind") == "gsm8k-run":
        return "declared to our own run" if meta.get("image_digest") else "not known"
    if meta.get("image_digest") or meta.get("image"):
        return "said by meta_env.json, unsigned"
    return "not known"


def _disagreements(
    claimed: Mapping[str, float], samples: Mapping[str, Mapping[int, Sample]], effective: int | None
) -> Iterator[str]:
    for name in FILTERS:
        rows = samples.get(name)
        if not rows:
            yield f"no sample under the filter {name}"
            continue
        if name not in claimed:
            yield f"the result file has no score of {name}"
        elif abs(claimed[name] - sum(s.correct for s in rows.values()) / len(rows)) > SCORE_TOLERANCE:
            yield f"the result file says {claimed[name]:.6f} for {name}, its samples say otherwise"
        if effective is not None and len(rows) != effective:
            yield f"{len(rows)} samples under {name}, the result file counts {effective}"
