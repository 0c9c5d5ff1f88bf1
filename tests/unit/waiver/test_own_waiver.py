"""The B300 target's waiver, as this repository holds it: refused for what is wrong with it, with the ways out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
Verb = Callable[..., Any]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("manifests/b300-vllm", "overlays/kimi-k3-tep-shared-tp", "waivers"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_b300_waiver_is_refused_and_says_what_can_be_done(copied: Path, verb: Verb) -> None:
    assert verb("waiver", "render", "4878").code == 0
    done = verb("waiver", "check", "4878", "--json")
    (report,) = done.document["waivers"]
    blocking = {f["code"] for f in report["findings"] if f["severity"] == "blocking"}
    assert (done.code, blocking) == (1, {"waiver.unmodified-image-runs", "waiver.no-upstream-link"})
    assert "waiver.switch-off-by-default" in {f["code"] for f in report["findings"]}
    assert {f["code"] for f in report["not_cured"]} >= {"image.namespace"}
    assert len(report["ways_out"]) == 3
    assert "VLLM_KIMI_K3_TEP_SHARED_TP removed" in report["ways_out"][0]


def test_the_committed_pages_are_what_render_writes(copied: Path, verb: Verb) -> None:
    assert verb("waiver", "render", "4878").code == 0
    for name in ("4878.md", "4878_zh.md"):
        same = (copied / "waivers" / name).read_bytes() == (ROOT / "waivers" / name).read_bytes()
        assert same, "run: imagebuild waiver render 4878"
