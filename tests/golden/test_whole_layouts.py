"""Built images come out with the bytes that were pinned: every file of the layout, for both families and compressors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import whole_layouts


@pytest.fixture(autouse=True)
def no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


@pytest.mark.parametrize("name", whole_layouts.CASES)
def test_the_layout_is_the_one_that_was_pinned(name: str, tmp_path: Path) -> None:
    pinned = json.loads(whole_layouts.PINNED.read_text())[name]
    made = whole_layouts.make(name, tmp_path)
    assert made["base"] == pinned["base"], "the synthetic base itself came out differently: a fault of its maker"
    assert made == pinned
    for path, digest in made["layout"].items():
        assert not path.startswith("blobs/") or path == f"blobs/sha256/{digest}"


def test_every_case_is_pinned_and_the_file_is_as_the_program_writes_it() -> None:
    pinned = json.loads(whole_layouts.PINNED.read_text())
    assert set(pinned) == set(whole_layouts.CASES)
    assert whole_layouts.PINNED.read_text() == whole_layouts.text(pinned)
