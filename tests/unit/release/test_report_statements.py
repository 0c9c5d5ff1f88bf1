"""Reports with in-toto test results alone, and with a release file beside the lock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.testing.small_engine import SmallWorkspace

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"


@pytest.fixture
def space(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> SmallWorkspace:
    made = in_workspace()
    made.write_target(checks={"smoke": {"steps": ["files", "python"]}, "gsm8k": {"arms": ["base", "off"]}})
    assert verb("lock", "tuned").code == 0
    return made


def state(space: SmallWorkspace, check: str, result: str, subject: str, **more: Any) -> None:
    folder = space.folder() / "evidence" / "imported"
    folder.mkdir(parents=True, exist_ok=True)
    predicate = {"result": result, "check": check, "configuration": [], **more}
    subjects = [{"name": "image", "digest": {"sha256": subject.removeprefix("sha256:")}}]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": TEST_RESULT,
        "predicate": predicate,
    }
    (folder / f"{check}-{result}.json").write_text(json.dumps(statement))


def test_a_test_result_tells_its_steps_by_name(space: SmallWorkspace, verb: Any) -> None:
    digest = space.lock()["result"]["digest"]
    state(space, "smoke", "PASSED", digest, passedTests=["files"])
    done = verb("report", "tuned", "--json").document
    assert done["smoke"] == "not-run"
    state(space, "smoke", "PASSED", digest, passedTests=["files", "python"])
    done = verb("report", "tuned", "--json").document
    assert done["smoke"] == "passed"
    text = Path(done["file"]).read_text(encoding="utf-8")
    assert "as the test result says" in text
    assert "imported/smoke-PASSED.json" in text


def test_a_failed_test_result_is_never_good(space: SmallWorkspace, verb: Any) -> None:
    digest = space.lock()["result"]["digest"]
    state(space, "smoke", "PASSED", digest, passedTests=["files", "python"])
    state(space, "smoke", "FAILED", digest, passedTests=["files", "python"])
    assert verb("report", "tuned", "--json").document["smoke"] == "failed"


@pytest.mark.parametrize("name", ["evidence.json", "smoke-x86_64.evidence.json"])
def test_evidence_that_is_not_what_its_statement_names_does_not_count(
    space: SmallWorkspace, verb: Any, name: str
) -> None:
    """Somebody made a failed step good in the raw file, and left the statement as it was signed."""
    digest = space.lock()["result"]["digest"]
    good = [{"name": "files", "verdict": "passed"}, {"name": "python", "verdict": "passed"}]
    document = {"kind": "smoke-evidence", "image": {"digest": digest}, "steps": good}
    was = json.dumps({**document, "steps": [good[0], {**good[1], "verdict": "failed"}]}).encode()
    raw = [{"name": "evidence.json", "digest": {"sha256": hashlib.sha256(was).hexdigest()}}]
    state(space, "smoke", "FAILED", digest, failedTests=["python"], passedTests=["files"], evidence=raw)
    file = space.folder() / "evidence" / "imported" / name
    file.write_bytes(was)
    done = verb("report", "tuned", "--json").document
    assert (done["smoke"], "problem" in [one["kind"] for one in done["unproven"]]) == ("failed", False)
    file.write_text(json.dumps(document))
    done = verb("report", "tuned", "--json").document
    assert done["smoke"] == "failed"
    (told,) = [one["what"] for one in done["unproven"] if one["kind"] == "problem"]
    assert told == (
        f"manifests/tuned/evidence/imported/{name} is not the file that manifests/tuned/evidence/imported/"
        "smoke-FAILED.json names: it does not count"
    )


def test_accuracy_by_a_test_result_alone_says_so(space: SmallWorkspace, verb: Any) -> None:
    state(space, "gsm8k", "PASSED", "sha256:" + "3" * 64)
    assert verb("report", "tuned", "--json").document["gsm8k"] == "not-run"
    state(space, "gsm8k", "PASSED", space.lock()["result"]["digest"])
    done = verb("report", "tuned", "--json").document
    assert done["gsm8k"] == "passed"
    assert "its figures are not at hand" in Path(done["file"]).read_text(encoding="utf-8")


def test_a_release_file_is_named_and_not_believed(space: SmallWorkspace, verb: Any) -> None:
    command = "--release manifests/tuned/release.dsse.json --key release.pub"
    done = verb("report", "tuned", "--json").document
    assert command not in Path(done["file"]).read_text(encoding="utf-8")
    (space.folder() / "release.dsse.json").write_text("anything")
    done = verb("report", "tuned", "--json").document
    text = Path(done["file"]).read_text(encoding="utf-8")
    assert command in text
    assert "this page has no key to verify it with" in text
    assert "signature" in {one["kind"] for one in done["unproven"]}
