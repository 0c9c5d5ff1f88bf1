"""The gate of a target: every arm counts, reaches the threshold, and holds against the others."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from imagebuild.check.gate import Demands, Gate, decide, gate_text
from imagebuild.check.results import load_run
from imagebuild.check.verdicts import Verdict

DATA = {"test": "sha256:" + "d" * 64, "train": "sha256:" + "e" * 64, "questions": 300}
DEMANDS = Demands(
    Decimal("0.90"), Decimal("2.0"), ("base", "off", "on"), dataset=str(DATA["test"]), shots=str(DATA["train"])
)
COUNTED = {"counts": {"null": 0, "empty": 0, "truncated": 0, "failed": 0}}
DECLARED = {"threshold": "0.90", "margin": "2.0", "max_null": "0", "max_truncated": "13"}
CUT = {"base": 4096, "off": 4096, "on": 512}
BASE, PATCHED = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.fixture
def gate(make_run: Callable[..., Path]) -> Callable[..., Gate]:
    def judged(
        wrong: dict[str, int] | None = None,
        leave_out: str = "",
        counted: dict[str, Any] = COUNTED,
        **changes: dict[str, Any],
    ) -> Gate:
        runs = {}
        for arm in ("base", "off", "on", "base-again"):
            bad = (wrong or {}).get(arm, 3)
            meta = {
                "image_digest": BASE if arm.startswith("base") else PATCHED,
                "settings": {"dataset": DATA},
                "switch_proof": {"counter": "x", "grown": 1.0} if arm == "on" else None,
                **changes.get(arm, {}),
            }
            if arm != leave_out:
                right = [number >= bad for number in range(300)]
                runs[arm] = load_run(make_run(arm, right, meta=meta, summary=counted if arm == "on" else COUNTED))
        return decide("t", runs, DEMANDS)

    return judged


def test_good_runs_pass(gate: Callable[..., Gate]) -> None:
    found = gate()
    assert found.verdict is Verdict.NON_INFERIOR
    assert set(found.comparisons) == {"off against base", "on against base", "on against off"}
    assert found.churn is not None
    assert gate_text(found).splitlines()[-1].startswith("non-inferior: t: ")
    assert found.to_json()["verdict"] == "non-inferior"


def test_the_acceptance_length_of_each_arm_stands_beside_base(gate: Callable[..., Gate]) -> None:
    found = gate(base={"mean_acceptance_length": 2.5}, on={"mean_acceptance_length": 2.375})
    assert found.to_json()["mean_acceptance_length"]["on"] == {"tokens": 2.375, "change_against_base": -0.125}
    assert "mean acceptance length, on: 2.375 tokens a step (-0.125 against base)" in gate_text(found).splitlines()
    assert gate().to_json()["mean_acceptance_length"] == {}


@pytest.mark.parametrize(
    ("wrong", "verdict", "words"),
    [
        ({"base": 40, "off": 40, "on": 40}, "failed", "260/300 = 0.86667, threshold 0.90"),
        ({"on": 25}, "inferior", "beyond the margin of 2.0 points"),
        ({"on": 6}, "inconclusive", "do not settle it"),
    ],
)
def test_bad_scores(gate: Callable[..., Gate], wrong: dict[str, int], verdict: str, words: str) -> None:
    found = gate(wrong)
    assert found.verdict is Verdict(verdict)
    assert words in found.reason


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({"on": {"switch_proof": None}}, "invalid", "switched branch"),
        ({"off": {"image_digest": BASE}}, "invalid", "off and on served different images"),
        ({"base": {"image_digest": PATCHED}}, "invalid", "base served the patched image"),
        ({"on": {"image_digest": None}}, "not-proven", "which image was served for on"),
        ({"on": {"settings": None}}, "invalid", "which questions"),
        ({"on": {"settings": {"dataset": {"test": "sha256:other"}}}}, "invalid", "other questions"),
        ({"on": {"settings": {"dataset": {**DATA, "questions": 1319}}}}, "invalid", "300 of 1319 questions"),
        ({"on": {"settings": {"dataset": {**DATA, "train": "sha256:other"}}}}, "invalid", "other training questions"),
        (
            {arm: {"settings": {"dataset": DATA, "max_tokens": longest}} for arm, longest in CUT.items()},
            "invalid",
            "the arms were asked differently: max_tokens: base 4096, off 4096, on 512",
        ),
        ({"off": {"acceptance": "synthetic"}}, "invalid", "synthetic acceptance"),
        ({"on": {"settings": {"dataset": DATA, "max_tokens_asked": 16}}}, "invalid", "answers were cut at 16 tokens"),
    ],
)
def test_what_does_not_count(gate: Callable[..., Gate], changes: dict[str, Any], verdict: str, words: str) -> None:
    found = gate(**changes)
    assert found.verdict is Verdict(verdict)
    assert words in found.reason
    assert not found.verdict.good


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ({"margin": "1.0"}, "margin was declared as 1.0 before the run, and is 2.0 now"),
        ({"threshold": "0.95"}, "threshold was declared as 0.95 before the run, and is 0.90 now"),
        ({"max_truncated": "0"}, "max_truncated was declared as 0 before the run, and is 13 now"),
        ({"margin": "2.5", "threshold": "0.8", "max_null": "3"}, None),
        ({"margin": "two"}, None),
    ],
)
def test_what_was_declared_before_the_run_is_not_loosened_after_it(
    gate: Callable[..., Gate], then: dict[str, str], words: str | None
) -> None:
    found = gate(on={"settings": {"dataset": DATA, "declared": {**DECLARED, **then}}, "switch_proof": [{"lines": 1}]})
    assert found.verdict is (Verdict.INVALID if words else Verdict.NON_INFERIOR), found.reason
    assert (words or "") in found.reason


@pytest.mark.parametrize("lost", ["null", "empty", "truncated", "failed"])
def test_what_nobody_counted_is_not_none(gate: Callable[..., Gate], lost: str) -> None:
    counts = {key: value for key, value in COUNTED["counts"].items() if key != lost}
    found = gate(counted={"counts": counts})
    assert found.verdict is Verdict.INVALID
    assert "on: nobody counted null, empty, cut and failed answers" in found.reason


def test_each_filter_has_every_question(gate: Callable[..., Gate], tmp_path: Path) -> None:
    gate()
    samples = next((tmp_path / "on").glob("samples_*.jsonl"))
    lines = samples.read_text().splitlines()
    samples.write_text("\n".join(lines[:-50]) + "\n")
    results = next((tmp_path / "on").glob("results_*.json"))
    document = json.loads(results.read_text())
    del document["n-samples"]
    results.write_text(json.dumps(document))
    found = decide("t", {"on": load_run(tmp_path / "on")}, replace(DEMANDS, arms=("on",)))
    assert "on: 300 of 300 questions" not in found.reason
    assert "on: 250 of 300 questions under flexible-extract" in found.reason


def test_a_missing_arm_is_not_run(gate: Callable[..., Gate]) -> None:
    found = gate(leave_out="off")
    assert found.verdict is Verdict.NOT_RUN
    assert set(found.comparisons) == {"on against base"}


def test_nothing_at_all_is_not_run() -> None:
    found = decide("t", {}, DEMANDS)
    assert found.verdict is Verdict.NOT_RUN
    assert found.verdict.exit_code == 3
