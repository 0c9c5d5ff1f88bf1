"""Evidence that somebody else wrote, in a report: any JSON gives a page, and none of it becomes markup or a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.testing.small_engine import SmallWorkspace

DEEP = "[" * 400 + "]" * 400
ODD = [
    '{"kind": "smoke-evidence"}',
    '{"kind": "smoke-evidence", "image": DIGEST, "steps": 7, "hardware": []}',
    '{"kind": "smoke-evidence", "image": DIGEST, "steps": [null, 1, {"name": {}, "verdict": [], "seconds": "1"}]}',
    '{"kind": "smoke-evidence", "image": DIGEST, "steps": [{"name": "files", "verdict": "passed", "seconds": 1e999}]}',
    '{"kind": "smoke-evidence", "image": DIGEST, "hardware": ' + DEEP + ', "steps": []}',
    '{"kind": "smoke-evidence", "image": ' + DEEP + "}",
    '{"kind": "gsm8k-gate", "verdict": "passed", "comparisons": []}',
    '{"kind": "gsm8k-gate", "verdict": "non-inferior", "comparisons": {"a against b": null}, "checks": [1, {}]}',
    '{"kind": "gsm8k-comparison", "verdict": "non-inferior", "candidate": DIGEST, "filters": [{"questions": true}]}',
    '{"kind": "gsm8k-comparison", "verdict": 7, "filters": {"a": 1}}',
    '{"kind": "gsm8k-comparison", "filters": [{"questions": -1, "candidate": {"right": 5}, "difference_points": NaN}]}',
    "[" * 100_000,
    "\x00\xff",
    "",
]


@pytest.fixture
def space(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> SmallWorkspace:
    made = in_workspace()
    made.write_target(checks={"smoke": {"steps": ["files"]}, "gsm8k": {"arms": ["base", "off"]}})
    assert verb("lock", "tuned").code == 0
    (made.folder() / "evidence").mkdir()
    return made


def test_odd_evidence_gives_a_page_and_nothing_good(space: SmallWorkspace, verb: Any) -> None:
    for number, text in enumerate(ODD):
        path = space.folder() / "evidence" / "odd.json"
        path.write_bytes(text.replace("DIGEST", json.dumps(str(space.digest()))).encode("utf-8", "replace"))
        done = verb("report", "tuned", "--json")
        assert done.code == 0, (number, done.err)
        assert done.document["smoke"] in ("not-run", "not-proven") or "1e999" in text, number
        assert done.document["gsm8k"] == "not-run", number
        assert verb("report", "tuned", "--markdown").code == 0, number


def test_a_name_of_a_file_is_text(space: SmallWorkspace, verb: Any) -> None:
    path = space.folder() / "evidence" / "<img src=x>|`a`.json"
    steps = [{"name": "fi|les`", "verdict": "passed", "reason": "# heading\n| a | b |\n<script>"}]
    path.write_text(json.dumps({"kind": "smoke-evidence", "image": str(space.digest()), "steps": steps}))
    page = Path(verb("report", "tuned").out.strip()).read_text(encoding="utf-8")
    assert "<img" not in page
    assert "<script" not in page
    text = verb("report", "tuned", "--markdown", "--lang", "en").out
    assert "<script" not in text
    assert "\n# heading" not in text
    rows = [line for line in text.splitlines() if line.startswith("| smoke")]
    assert all(row.replace("\\|", "").count("|") == 4 for row in rows)
