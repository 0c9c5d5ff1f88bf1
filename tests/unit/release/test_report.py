"""What a report says: changes from committed content, evidence that counts and evidence that does not, nothing unescaped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.testing.small_engine import SmallWorkspace

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'
WAIVER = """\
schema: 1
number: 7
title: "tuned engine"
targets: [tuned]
configs: [engine-tuned-fp4]
patched: auto
why_unmodified_cannot_run: {text: "The unmodified image stops at start."}
upstream: [{url: "https://github.com/example/engine/pull/9", state: open}]
removal_plan: {condition: "upstream merges it", delete: [manifests/tuned], expires: 2027-03-01}
zh: {title: "调优", why: "未修改的镜像启动即停止。", removal_plan: "上游合并后移除。"}
"""


@pytest.fixture
def space(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> SmallWorkspace:
    made = in_workspace(platforms=("linux/amd64", "linux/arm64"))
    made.write_target(
        description=HOSTILE,
        checks={
            "smoke": {"steps": ["files", "python"]},
            "gsm8k": {"threshold": 0.9, "margin": 1.0, "arms": ["base", "off"]},
        },
    )
    assert verb("lock", "tuned").code == 0
    return made


def page(space: SmallWorkspace, verb: Any, *words: str) -> str:
    done = verb("report", "tuned", *words)
    assert done.code == 0, done.err
    return Path(done.out.strip()).read_text(encoding="utf-8")


def smoke_evidence(space: SmallWorkspace, arch: str, digest: str, **more: Any) -> Path:
    path = space.root / "build" / "smoke" / "tuned" / arch / "evidence.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [
        {"name": "files", "verdict": "passed", "reason": HOSTILE, "seconds": 1.5},
        {"name": "python", "verdict": "failed", "reason": "the import found another file", "seconds": 2},
    ]
    document = {
        "kind": "smoke-evidence",
        "image": {"digest": digest},
        "steps": steps,
        "hardware": {"gpu": HOSTILE},
        **more,
    }
    path.write_text(json.dumps(document))
    return path


def manifest(space: SmallWorkspace, arch: str) -> str:
    platforms = space.lock()["result"]["platforms"]
    found = platforms[f"linux/{arch}"] if isinstance(platforms, dict) else next(
        one for one in platforms if one["platform"] == f"linux/{arch}"
    )  # fmt: skip
    text: str = found["manifest"] if isinstance(found["manifest"], str) else found["manifest"]["digest"]
    return text


def comparison(candidate: str, reference: str, verdict: str = "non-inferior") -> dict[str, Any]:
    filters = [
        {
            "filter": name,
            "questions": 200,
            "candidate": {"right": 190},
            "reference": {"right": 188},
            "difference_points": 1.0,
            "tango_interval_points": [-0.9, 3.1],
            "right_to_wrong": 1,
            "wrong_to_right": 3,
        }
        for name in ("strict-match", "flexible-extract")
    ]
    return {
        "kind": "gsm8k-comparison",
        "verdict": verdict,
        "reason": "at worst -0.70 points",
        "margin_points": 1.0,
        "candidate": {"image": candidate},
        "reference": {"image": reference},
        "filters": filters,
    }


def gate(space: SmallWorkspace, candidate: str, reference: str) -> None:
    folder = space.folder() / "evidence"
    folder.mkdir(exist_ok=True)
    document = {
        "kind": "gsm8k-gate",
        "verdict": "non-inferior",
        "reason": "both filters",
        "checks": [{"name": "off strict-match", "verdict": "passed", "reason": "190/200"}],
        "comparisons": {"off against base": comparison(candidate, reference)},
    }
    (folder / "gate.json").write_text(json.dumps(document))


def test_a_page_is_the_same_bytes_in_another_folder(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> None:
    pages = []
    for name in ("one", "another-folder"):
        space = in_workspace(name=name)
        assert verb("lock", "tuned").code == 0
        pages.append(page(space, verb))
        assert str(space.root) not in pages[-1]
    assert pages[0] == pages[1]


def test_changes_stand_side_by_side_with_what_was_and_what_is(space: SmallWorkspace, verb: Any) -> None:
    text = page(space, verb)
    assert "Hunk 1 of 1: lines 10 to 15 before, lines 10 to 16 after" in text
    assert re.search(r'<td class="ins"><ins><span class="mark">\+</span>    &quot;ENGINE_TUNED&quot;', text)
    assert re.search(r'<td class="del"><del><span class="mark">−</span>    return state \+ 17</del></td>', text)
    assert "engine/extra.py</code>: 3 lines, all new" in text
    assert "engine/legacy.py" in text
    assert "hidden by a whiteout" in text
    assert "RECORD" in text
    assert space.lock()["result"]["content_id"] in text


def test_nothing_from_outside_becomes_markup(space: SmallWorkspace, verb: Any) -> None:
    smoke_evidence(space, "amd64", manifest(space, "amd64"))
    text = page(space, verb)
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("&lt;script&gt;") >= 3
    assert "default-src &#x27;none&#x27;" in text
    markdown = verb("report", "tuned", "--markdown").out
    assert "<script" not in markdown


def test_what_never_ran_is_not_run_and_says_why(space: SmallWorkspace, verb: Any) -> None:
    done = verb("report", "tuned", "--json")
    assert (done.document["smoke"], done.document["gsm8k"]) == ("not-run", "not-run")
    text = Path(done.document["file"]).read_text(encoding="utf-8")
    assert "no smoke evidence of this image is in build/smoke/tuned/arm64/ or manifests/tuned/evidence/" in text
    kinds = {one["kind"] for one in done.document["unproven"]}
    assert {"smoke", "accuracy", "signature"} <= kinds


def test_smoke_evidence_counts_for_the_image_that_it_names_alone(space: SmallWorkspace, verb: Any) -> None:
    smoke_evidence(space, "amd64", manifest(space, "amd64"))
    smoke_evidence(space, "arm64", "sha256:" + "1" * 64)
    done = verb("report", "tuned", "--json").document
    assert done["smoke"] == "failed"
    text = Path(done["file"]).read_text(encoding="utf-8")
    assert "Smoke steps on linux/amd64, this image</caption>" in text
    assert "Smoke steps on another image; it does not count for this image" in text
    assert "the import found another file" in text
    missing = [one["what"] for one in done["unproven"] if one["kind"] == "smoke"]
    assert missing == ["linux/arm64: files, python"]


def test_a_step_that_the_evidence_leaves_out_is_not_run(space: SmallWorkspace, verb: Any) -> None:
    for arch in ("amd64", "arm64"):
        steps = [{"name": "files", "verdict": "passed"}]
        smoke_evidence(space, arch, manifest(space, arch), steps=steps)
    assert verb("report", "tuned", "--json").document["smoke"] == "not-run"


def test_what_went_wrong_inside_a_step_is_named(space: SmallWorkspace, verb: Any) -> None:
    parts = [
        {"name": "engine.envs", "verdict": "failed", "reason": "another file was imported"},
        {"name": "engine.extra", "verdict": "passed", "reason": ""},
    ]
    steps = [{"name": "python", "verdict": "failed", "reason": "1 of 2", "seconds": 1, "parts": parts}]
    smoke_evidence(space, "amd64", manifest(space, "amd64"), steps=steps)
    text = page(space, verb)
    assert "python: engine.envs</th>" in text
    assert "another file was imported" in text
    assert "engine.extra</th>" not in text


def test_an_unknown_verdict_is_never_good(space: SmallWorkspace, verb: Any) -> None:
    for arch in ("amd64", "arm64"):
        steps = [{"name": name, "verdict": "PASS"} for name in ("files", "python")]
        smoke_evidence(space, arch, manifest(space, arch), steps=steps)
    assert verb("report", "tuned", "--json").document["smoke"] == "not-proven"


def test_accuracy_is_drawn_with_its_intervals(space: SmallWorkspace, verb: Any) -> None:
    result = space.lock()["result"]
    gate(space, result["digest"], f"oci:build/base@{space.base.digest}")
    done = verb("report", "tuned", "--json").document
    assert done["gsm8k"] == "non-inferior"
    text = Path(done["file"]).read_text(encoding="utf-8")
    assert text.count('class="plot"') == 2
    assert "off against base, strict-match: 1.00, -0.90 to 3.10" in text
    assert "base, flexible-extract</th><td>188 of 200</td><td>94.00</td>" in text
    assert "Differences; the margin is 1 points" in text


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_accuracy_of_another_image_does_not_count(space: SmallWorkspace, verb: Any, side: str) -> None:
    sides = {"candidate": space.lock()["result"]["digest"], "reference": str(space.base.digest)}
    sides[side] = "sha256:" + "2" * 64
    gate(space, sides["candidate"], sides["reference"])
    done = verb("report", "tuned", "--json").document
    assert done["gsm8k"] == "not-run"
    text = Path(done["file"]).read_text(encoding="utf-8")
    assert "which does not count" in text
    assert "is none of this lock&#x27;s images" in text


def test_every_anchor_of_the_page_exists_and_no_id_stands_twice(space: SmallWorkspace, verb: Any) -> None:
    gate(space, space.lock()["result"]["digest"], str(space.base.digest))
    text = page(space, verb)
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    named = set(re.findall(r'href="#([^"]+)"', text)) | set(
        " ".join(re.findall(r'aria-labelledby="([^"]+)"', text)).split()
    )
    assert named <= set(ids)
    assert text.count("<caption") == text.count("<table")
    assert len(re.findall(r"<th(?=[ >])(?![^>]*scope=)", text)) == 0


def test_the_two_languages_hold_the_same_facts_in_the_same_order(space: SmallWorkspace, verb: Any) -> None:
    (space.root / "waivers").mkdir()
    (space.root / "waivers" / "7.yaml").write_text(WAIVER, encoding="utf-8")
    assert verb("waiver", "render", "7").code == 0
    smoke_evidence(space, "amd64", manifest(space, "amd64"))
    gate(space, space.lock()["result"]["digest"], str(space.base.digest))
    texts = [verb("report", "tuned", "--markdown", "--lang", one).out for one in ("en", "zh")]
    facts = [
        re.findall(r"```sh\n(.*?)\n```|(`+[^`]+`+)|<(https?://[^>]+)>|(sha256:[0-9a-f]{64})", text) for text in texts
    ]
    assert facts[0] == facts[1]
    assert len(facts[0]) > 30
    headings = [re.findall(r"^(#+) ", text, re.MULTILINE) for text in texts]
    assert headings[0] == headings[1]
    assert "## 未证明之处" in texts[1]
    assert "## What is not proven" in texts[0]
    both = verb("report", "tuned", "--markdown").out
    assert both == texts[0] + "\n---\n\n" + texts[1]
    assert "waiver.no-base-evidence" in both


def test_expiry_is_judged_on_a_named_day_only(space: SmallWorkspace, verb: Any) -> None:
    (space.root / "waivers").mkdir()
    (space.root / "waivers" / "7.yaml").write_text(WAIVER, encoding="utf-8")
    assert verb("waiver", "render", "7").code == 0
    assert "waiver.expired" not in page(space, verb)
    assert "waiver.expired" in page(space, verb, "--today", "2027-03-02")


def test_a_stale_lock_is_refused(space: SmallWorkspace, verb: Any) -> None:
    space.write_target(env={"ENGINE_PORT": "9000"})
    done = verb("report", "tuned", "--json")
    assert (done.code, done.document["code"]) == (1, "lock.stale")


@pytest.mark.parametrize("words", [["--lang", "en"], ["--markdown", "--lang", "fr"], ["--markdown", "--html", "x"]])
def test_options_that_do_not_go_together_are_refused(space: SmallWorkspace, verb: Any, words: list[str]) -> None:
    assert verb("report", "tuned", *words).code == 2
