"""Questions by a revision of the hub: a commit only, fetched once, and nothing but GSM8K's own.

The library that fetches is a stand-in: what the hub would answer is the fault that is tested here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from imagebuild.check import protocol
from imagebuild.check.hub import fetch_dataset, parse_hub
from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError, UnavailableError

COMMIT = "e53f048856ff4f594e959d75785d2c2d37b678ee"
ROWS = """\
def load_dataset(name, configuration, revision, split):
    assert (name, configuration, revision) == ("openai/gsm8k", "main", "{commit}")
    return [{{"answer": f"it’s {{n}}\\n#### {{n}}", "question": f"{{split}} {{n}}?"}} for n in range(6)]
"""


def lines(split: str) -> bytes:
    row = '{{"question": "{0} {1}?", "answer": "it\\u2019s {1}\\n#### {1}"}}\n'
    return "".join(row.format(split, n) for n in range(6)).encode()


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "datasets.py").write_text(ROWS.format(commit=COMMIT))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return sys.executable


def test_a_path_is_no_revision_and_a_branch_neither() -> None:
    assert parse_hub("gsm8k") is None
    assert parse_hub(f"hub:{COMMIT}") == COMMIT
    with pytest.raises(InputError) as caught:
        parse_hub("hub:main")
    assert caught.value.code == "check.bad-revision"


def test_rows_give_the_bytes_of_the_files_and_are_fetched_once(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "TEST_DIGEST", Digest.of(lines("test")))
    monkeypatch.setattr(protocol, "TRAIN_DIGEST", Digest.of(lines("train")))
    first = fetch_dataset(COMMIT, python, tmp_path / "kept")
    assert (first.test, first.train, first.questions) == (lines("test"), lines("train"), 6)
    (tmp_path / "site" / "datasets.py").write_text("raise SystemExit(1)")
    assert fetch_dataset(COMMIT, python, tmp_path / "kept") == first


def test_other_questions_are_refused_and_not_kept(python: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        fetch_dataset(COMMIT, python, tmp_path / "kept")
    assert caught.value.code == "check.other-questions"
    assert not list((tmp_path / "kept").rglob("*.jsonl"))


def test_a_hub_that_does_not_answer_is_could_not_find_out(python: str, tmp_path: Path) -> None:
    (tmp_path / "site" / "datasets.py").write_text("raise ConnectionError('no route to the hub')")
    with pytest.raises(UnavailableError) as caught:
        fetch_dataset(COMMIT, python, tmp_path / "kept")
    assert caught.value.code == "check.hub-unavailable"
    assert "no route to the hub" in caught.value.message
