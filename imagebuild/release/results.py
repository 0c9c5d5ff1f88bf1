"""Result files of an accuracy run that nobody signed (InferenceX's artefacts, lm-eval's own), as an unsigned statement.

Scores are counted from the samples, never taken from the result file.  Without the other arms there is no paired verdict:
what can be said is whether both filters reach the target's threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from imagebuild.attest.predicates.check_result import CONTENT_ID, check_result
from imagebuild.attest.predicates.types import TEST_RESULT
from imagebuild.attest.statement import Statement
from imagebuild.check.results import FILTERS, Run, load_run
from imagebuild.content.digest import Digest
from imagebuild.content.files import io_faults
from imagebuild.errors import ImagebuildError, InputError, RefusedError
from imagebuild.target.document import Gsm8k, Target
from imagebuild.target.lock_types import Lock

QUESTIONS = 1319


@dataclass(frozen=True, slots=True)
class UnsignedResult:
    """What a run's files say: `payload` is a bare test-result statement; `files` their digests by name, `paths` where they
    lie."""

    image: Digest
    verdict: str
    payload: bytes
    files: Mapping[str, str]
    paths: Mapping[str, Path]


def find_runs(folder: Path) -> list[Path]:
    """Folders at or below `folder` that hold a run of GSM8K."""
    with io_faults(folder, "reading"):
        found = {path.parent for path in folder.rglob("samples_gsm8k_*.jsonl") if path.is_file()}
    return sorted(path for path in found if any(path.glob("results*.json")))


def run_files(folder: Path) -> list[Path]:
    """The result and samples files of a run's folder."""
    return [path for pattern in ("results*.json", "samples_gsm8k_*.jsonl") for path in sorted(folder.glob(pattern))]


def run_statement(
    folder: Path, target: Target, lock: Lock, now: int, image: Digest | None, concurrency: int | None
) -> UnsignedResult:
    """Raises InputError `release.no-image` where nobody says which image was served, and what load_run raises; RefusedError
    `release.other-image`, `release.run-does-not-count`."""
    run = load_run(folder, concurrency=concurrency)
    served = _image(run, image)
    images = {item.manifest: str(item.platform) for item in lock.result.platforms}
    images[lock.result.digest] = images.get(lock.result.digest, "index")
    if served not in images:
        raise RefusedError(
            "release.other-image",
            f"{folder} is a run of another image than {target.name}",
            expected=", ".join(f"{digest} ({name})" for digest, name in images.items()),
            found=str(served),
            hint="evidence is never reused for other content",
        )
    faults = [*run.faults]
    faults += [] if run.questions == QUESTIONS else [f"{run.questions} of {QUESTIONS} questions"]
    if faults:
        raise RefusedError(
            "release.run-does-not-count", f"{folder}: {'; '.join(faults[:5])}", details={"faults": faults}
        )
    asked = target.checks.gsm8k if target.checks is not None and target.checks.gsm8k is not None else Gsm8k()
    threshold = asked.threshold_of(run.model, target.serve.model.id if target.serve and target.serve.model else None)
    scores = {name: f"{run.right(name)}/{run.questions}" for name in FILTERS}
    good = all(Decimal(run.right(name)) >= threshold * run.questions for name in FILTERS)
    verdict = "passed" if good else "failed"
    if served == lock.result.digest and lock.inputs.is_index:
        subject_digests = (
            [item.manifest for item in lock.result.platforms][:1] if len(lock.result.platforms) == 1 else []
        )
    else:
        subject_digests = [served]
    if not subject_digests:
        raise InputError(
            "release.no-image",
            f"{folder} names the index, and which platform's image was served is not said",
            expected="--image with the digest of a platform's manifest",
        )
    predicate = check_result(
        "gsm8k",
        verdict,
        configuration={CONTENT_ID: lock.result.content_id},
        evidence={name: Digest.parse(text) for name, text in run.digests.items()},
        finished=now,
        passed=[f"{name} {scores[name]} (threshold {threshold})" for name in FILTERS] if good else (),
        failed=() if good else [f"{name} {scores[name]} (threshold {threshold})" for name in FILTERS],
        platform=next((str(p.platform) for p in lock.result.platforms if p.manifest == subject_digests[0]), None),
    )
    predicate |= {"signed": False, "imageKnownBy": run.origin if image is None else "said when it was imported"}
    statement = Statement.about(subject_digests[0], TEST_RESULT, predicate, images[served])
    names = [*run.digests, *(("meta_env.json",) if (folder / "meta_env.json").is_file() else ())]
    paths = {name: _path(folder, name) for name in names}
    files = {name: run.digests.get(name) or str(Digest.of(paths[name].read_bytes())) for name in names}
    return UnsignedResult(subject_digests[0], verdict, statement.format(), files, paths)


def _path(folder: Path, name: str) -> Path:
    direct = folder / name
    return direct if direct.is_file() else next(folder.glob(f"*/{name}"))


def _image(run: Run, said: Digest | None) -> Digest:
    if said is not None:
        return said
    for value in (run.meta.get("image_digest"), run.meta.get("image")):
        text = str(value or "")
        try:
            return Digest.parse(text[text.index("sha256:") :])
        except (ValueError, ImagebuildError):
            continue
    raise InputError(
        "release.no-image",
        f"{run.folder} does not say by digest which image was served",
        expected="image_digest in meta_env.json, or --image sha256:…",
        found=str(run.meta.get("image") or "nothing"),
    )
