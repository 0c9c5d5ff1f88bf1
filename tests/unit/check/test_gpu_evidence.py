"""The committed evidence of h200-vllm: whole, of the committed lock's image, and what the pages say of it."""

from __future__ import annotations

import hashlib
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

from imagebuild.check.compare import AnswerLimits, compare_runs
from imagebuild.check.results import load_run
from imagebuild.check.smoke.evidence import load_evidence_document
from imagebuild.target.lock import load_lock

ROOT = Path(__file__).resolve().parents[3]
TARGET = ROOT / "manifests/h200-vllm"
SMOKE, GSM8K = TARGET / "evidence/smoke", TARGET / "evidence/gsm8k"


def statement(path: Path) -> Any:
    return json.loads(path.read_bytes())


def claimed(path: Path) -> dict[str, str]:
    return {one["name"]: one["digest"]["sha256"] for one in statement(path)["predicate"]["evidence"]}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_it_is_of_the_image_that_the_lock_describes() -> None:
    lock = load_lock(TARGET / "target.lock.json")
    assert lock is not None
    (platform,) = lock.result.platforms
    for path in (SMOKE / "statement.json", GSM8K / "statement.json"):
        (subject,) = statement(path)["subject"]
        assert subject["digest"]["sha256"] == platform.manifest.hex
    document = load_evidence_document(SMOKE / "evidence.json")
    assert document["image"]["content_id"] == str(lock.inputs.content_id)
    assert document["verdict"] == "passed"
    assert document["runner"] == "oci"


def test_every_raw_output_is_there_by_its_digest() -> None:
    for name, digest in claimed(SMOKE / "statement.json").items():
        assert sha256((SMOKE / name).read_bytes()) == digest
    document = load_evidence_document(SMOKE / "evidence.json")
    wanted = {one["sha256"] for step in document["steps"] for one in step["outputs"]}
    assert wanted == {sha256(path.read_bytes()) for path in (SMOKE / "outputs").iterdir()}


def test_proof_parity_and_the_all_reduce_are_in_it() -> None:
    document = load_evidence_document(SMOKE / "evidence.json")
    parts = {(step["name"], one["name"]): one for step in document["steps"] for one in step["parts"]}
    assert "FP32 logits" in parts["engine", "proof of vllm-fp32-logits"]["reason"]
    assert parts["parity", "off"]["reason"] == "equal in all 128 tokens and logprobs"
    assert parts["kernel", "all-reduce"]["reason"] == "2 ranks over nccl"


def test_the_accuracy_runs_are_whole_and_judged_as_they_were(tmp_path: Path) -> None:
    with lzma.open(GSM8K / "runs.tar.xz") as stream, tarfile.open(fileobj=stream) as archive:
        archive.extractall(tmp_path, filter="data")
    runs = tmp_path / "gsm8k"
    for name, digest in claimed(GSM8K / "statement.json").items():
        assert sha256((runs / name).read_bytes()) == digest, name
    on, base = load_run(runs / "on"), load_run(runs / "base")
    assert on.questions == base.questions == 1319
    assert on.meta["switch_proof"]
    assert (
        str(compare_runs(on, base, limits=AnswerLimits(truncated=1319)).judgement.verdict)
        == statement(GSM8K / "compare-on.json")["verdict"]
    )
    # a base model: the path is proved, accuracy is not
    assert statement(GSM8K / "statement.json")["predicate"]["result"] == "FAILED"
