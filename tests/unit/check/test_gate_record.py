"""What the gate leaves: a test result of the patched image that others read, and JUnit."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from imagebuild.check.gate import Demands, Gate, decide
from imagebuild.check.gate_record import gate_junit, gate_statement, run_predicate, store_gate, store_predicate
from imagebuild.check.results import Run, load_run
from imagebuild.check.verdicts import Judgement, Verdict
from imagebuild.content.digest import Digest
from imagebuild.waiver.evidence import load_evidence, parse_record

DATA = {"test": "sha256:" + "d" * 64, "train": "sha256:" + "e" * 64, "questions": 300}
DEMANDS = Demands(
    Decimal("0.90"), Decimal("2.0"), ("base", "off", "on"), dataset=str(DATA["test"]), shots=str(DATA["train"])
)
COUNTED = {"counts": {"null": 0, "empty": 0, "truncated": 0, "failed": 0}}
BASE, PATCHED, CONTENT = Digest("a" * 64), Digest("b" * 64), Digest("c" * 64)
Judged = Callable[..., tuple[Gate, dict[str, Run]]]


@pytest.fixture
def judged(make_run: Callable[..., Path]) -> Judged:
    def judge(wrong: int = 3, **changes: Any) -> tuple[Gate, dict[str, Run]]:
        runs = {}
        for arm in ("base", "off", "on"):
            ours = arm != "base"
            meta = {
                "image_digest": str(PATCHED if ours else BASE),
                "content_id": str(CONTENT) if ours else None,
                "settings": {"dataset": DATA},
                "switch_proof": [{"overlay": "tune", "lines": 1}] if arm == "on" else None,
                **(changes if arm == "on" else {}),
            }
            bad = wrong if arm == "on" else 3
            right = [number >= bad for number in range(300)]
            runs[arm] = load_run(make_run(arm, right, meta=meta, summary=COUNTED))
        return decide("t", runs, DEMANDS), runs

    return judge


def test_a_good_gate_is_a_test_result_of_the_patched_image(judged: Judged, tmp_path: Path) -> None:
    gate, runs = judged()
    statement = gate_statement(gate, runs, DEMANDS, 1_700_000_000)
    path = store_gate(tmp_path / "t" / "evidence", gate, statement)
    assert path is not None
    (record,) = load_evidence(tmp_path / "t" / "evidence", "evidence").records
    assert (record.check, record.result, record.subjects) == ("gsm8k", "PASSED", {PATCHED})
    assert {CONTENT, Digest.parse(str(DATA["test"])), Digest.parse(str(DATA["train"]))} <= record.configuration
    predicate = json.loads(path.read_bytes())["predicate"]
    named = {one["name"]: one["digest"]["sha256"] for one in predicate["evidence"]}
    samples = next(name for name in runs["on"].digests if name.startswith("samples_"))
    assert named[f"on/{samples}"] == Digest.of((runs["on"].folder / samples).read_bytes()).hex
    assert "base/meta_env.json" in named
    assert "on against base: non-inferior" in predicate["passedTests"]
    assert predicate["demands"]["threshold"] == "0.90"
    assert predicate["finishedOn"] == "2023-11-14T22:13:20Z"


def test_a_bad_gate_says_what_failed(judged: Judged) -> None:
    gate, runs = judged(wrong=40)
    statement = gate_statement(gate, runs, DEMANDS, 0)
    assert statement is not None
    record = parse_record(statement.format(), "x")
    assert record is not None
    assert record.result == "FAILED"
    assert "on strict-match: failed" in record.failed


@pytest.mark.parametrize(
    "changes",
    [{"switch_proof": None}, {"image_digest": None}, {"image_digest": str(BASE)}, {"image_digest": "sha256:x"}],
)
def test_what_is_no_answer_is_not_attested(judged: Judged, tmp_path: Path, changes: dict[str, Any]) -> None:
    good, good_runs = judged()
    path = store_gate(tmp_path / "out", good, gate_statement(good, good_runs, DEMANDS, 0))
    gate, runs = judged(**changes)
    assert gate_statement(gate, runs, DEMANDS, 0) is None
    assert store_gate(tmp_path / "out", gate, None) is None
    assert path is not None
    assert not path.exists(), "an older result stands for runs that are not there any more"
    assert json.loads((tmp_path / "out" / "gate.json").read_bytes())["verdict"] == str(gate.verdict)


def test_junit_shows_each_check_and_never_passes_what_is_unknown(judged: Judged) -> None:
    root = ElementTree.fromstring(gate_junit(judged(switch_proof=None, image_digest=None)[0]))
    suite = root[0]
    kinds = {case.get("name"): [child.tag for child in case] for case in suite}
    assert kinds["on counts"] == ["error"]
    assert kinds["images"] == ["skipped"]
    assert kinds["base strict-match"] == ["system-out"]
    assert (suite.get("errors"), suite.get("skipped"), suite.get("failures")) == ("1", "1", "0")
    failed = ElementTree.fromstring(gate_junit(judged(wrong=40)[0]))[0]
    assert failed.get("failures") == "4"


def test_one_arm_by_itself_leaves_a_predicate_that_is_no_statement(judged: Judged, tmp_path: Path) -> None:
    runs = judged(wrong=40)[1]
    counts = Judgement(Verdict.PASSED, "the run counts")
    good, bad = (run_predicate(runs[arm], counts, DEMANDS, 0) for arm in ("off", "on"))
    assert good is not None
    assert bad is not None
    assert (good["result"], bad["result"]) == ("PASSED", "FAILED")
    assert bad["failedTests"][0] == "strict-match: 260/300, threshold 0.90"
    assert (good["image"], good["check"]) == (str(PATCHED), "gsm8k")
    assert {"name": "content id", "digest": {"sha256": CONTENT.hex}} in good["configuration"]
    store_predicate(tmp_path, good)
    assert parse_record((tmp_path / "predicate.json").read_bytes(), "x") is None
    store_predicate(tmp_path, None)
    assert not (tmp_path / "predicate.json").exists()


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.INVALID),
        ({"settings": {"dataset": {**DATA, "questions": 1319}}}, Verdict.PASSED),
        ({"settings": {"dataset": DATA, "max_tokens_asked": 16}}, Verdict.PASSED),
    ],
)
def test_what_does_not_count_by_itself_leaves_nothing(
    judged: Judged, changes: dict[str, Any], verdict: Verdict
) -> None:
    assert run_predicate(judged(**changes)[1]["on"], Judgement(verdict, "x"), DEMANDS, 0) is None
