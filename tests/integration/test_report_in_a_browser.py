"""Reports in a real browser: no console error, nothing loaded, anchors that lead somewhere, and what a screen reader is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, headless

from imagebuild.testing.small_engine import SmallWorkspace

pytestmark = [pytest.mark.integration, pytest.mark.slow(30)]
ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("b300-vllm", "gb200-dynamo", "mi355x-rocm")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless() as one:
        yield one


@pytest.fixture(params=TARGETS)
def page(request: pytest.FixtureRequest, tmp_path: Path, verb: Any) -> Path:
    """The report of one of the repository's targets."""
    path = tmp_path / "report.html"
    done = verb("-C", ROOT, "report", request.param, "--html", path)
    assert done.code == 0, done.err
    return path


@pytest.fixture
def judged(in_workspace: Callable[..., SmallWorkspace], verb: Any, tmp_path: Path) -> Path:
    """A small target with smoke and accuracy on record."""
    space = in_workspace()
    space.write_target(
        checks={"smoke": {"steps": ["files"]}, "gsm8k": {"threshold": 0.9, "margin": 1.0, "arms": ["base", "off"]}}
    )
    assert verb("lock", "tuned").code == 0
    digest = space.lock()["result"]["digest"]
    folder = space.folder() / "evidence"
    folder.mkdir()
    smoke = {"kind": "smoke-evidence", "image": digest, "steps": [{"name": "files", "verdict": "passed", "seconds": 3}]}
    (folder / "smoke.json").write_text(json.dumps(smoke))
    figures = {
        "filter": "strict-match", "questions": 1319, "candidate": {"right": 1270}, "reference": {"right": 1275},
        "difference_points": -0.379, "tango_interval_points": [-1.1, 0.4], "right_to_wrong": 12, "wrong_to_right": 7,
    }  # fmt: skip
    sides = {"candidate": {"image": digest}, "reference": {"image": str(space.base.digest)}}
    compared = {"margin_points": 1.0, **sides, "filters": [figures, {**figures, "filter": "flexible-extract"}]}
    gate = {"kind": "gsm8k-gate", "verdict": "inconclusive", "reason": "the margin lies between", "checks": []}
    (folder / "gate.json").write_text(json.dumps({**gate, "comparisons": {"off against base": compared}}))
    path = tmp_path / "judged.html"
    assert verb("report", "tuned", "--html", path).code == 0
    return path


def named(nodes: list[dict[str, Any]], role: str) -> list[str]:
    return [node.get("name", {}).get("value", "") for node in nodes if node["role"]["value"] == role]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_renders_without_a_complaint_at_every_width(browser: Browser, page: Path, scheme: str) -> None:
    browser.scheme(scheme)
    for width in (1280, 400):
        browser.resize(width)
        browser.open(page.as_uri())
        assert browser.complaints() == []
        inside, outside = browser.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert inside <= outside, f"the page is scrolled sideways at {width} px"
    background, text = browser.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    light = sum(map(int, background[4:-1].split(","))) > 382
    assert light == (scheme == "light"), background
    assert abs(sum(map(int, background[4:-1].split(","))) - sum(map(int, text[4:-1].split(",")))) > 400


def test_its_links_lead_to_parts_of_it(browser: Browser, page: Path) -> None:
    browser.resize(1280)
    browser.open(page.as_uri())
    links = browser.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.getAttribute('href'))")
    assert len(links) > 10
    for link in dict.fromkeys(links):
        top = browser.evaluate(
            f"(() => {{ document.querySelector('a[href=\"{link}\"]').click();"
            f" const part = document.querySelector(':target'); return part && part.id }})()"
        )
        assert top == link[1:], link
    others = browser.evaluate("[...document.querySelectorAll('a:not([href^=\"#\"])')].map(a => a.protocol)")
    assert set(others) <= {"https:", "http:"}


def test_a_script_in_it_would_not_run(browser: Browser, page: Path, tmp_path: Path) -> None:
    """The page's own policy holds: what is put in after it was written neither runs nor loads."""
    broken = tmp_path / "broken.html"
    extra = (
        '<script>document.title = "ran"</script><img src="http://127.0.0.1:9/x.png"><p style="color:red">x</p></body>'
    )
    broken.write_text(page.read_text(encoding="utf-8").replace("</body>", extra), encoding="utf-8")
    browser.open(broken.as_uri())
    assert browser.evaluate("document.title") != "ran"
    refused = [text for text in browser.complaints() if "Content Security Policy" in text]
    assert len(refused) == 3, browser.complaints()


def test_a_screen_reader_is_told_the_structure(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    nodes = browser.accessibility()
    assert {"What was changed", "Guards", "Smoke checks", "What is not proven"} <= set(named(nodes, "heading"))
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert len(named(nodes, landmark)) == 1, landmark
    tables = named(nodes, "table")
    assert all(tables)
    assert "Every change of the lock" in tables
    assert any(name.startswith("Smoke steps on linux/") for name in tables)
    assert {"Step", "Verdict", "Before", "After"} <= set(named(nodes, "columnheader"))
    assert any(name.startswith("From the base to ") for name in named(nodes, "image") + named(nodes, "img"))
    images = [node for node in nodes if node["role"]["value"] in ("image", "img")]
    assert all("sha256:" in json.dumps(node) for node in images)


def test_the_difference_is_in_the_accessibility_tree(browser: Browser, tmp_path: Path, verb: Any) -> None:
    path = tmp_path / "b300.html"
    assert verb("-C", ROOT, "report", "b300-vllm", "--html", path).code == 0
    browser.open(path.as_uri())
    nodes = browser.accessibility()
    assert any(name.startswith("vllm/envs.py: 2 hunks") for name in named(nodes, "table"))
    headers = named(nodes, "rowheader") + named(nodes, "columnheader")
    assert any(name.startswith("Hunk 1 of 2: lines ") for name in headers), headers[:40]
    by_id = {node["nodeId"]: node for node in nodes}
    for role, text in (("insertion", "VLLM_KIMI_K3_TEP_SHARED_TP"), ("deletion", "")):
        found = [node for node in nodes if node["role"]["value"] == role]
        assert found, role
        told = json.dumps([by_id.get(child) for node in found for child in node.get("childIds", [])])
        assert text in told


def test_evidence_is_told_as_table_and_as_drawing(browser: Browser, judged: Path) -> None:
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.resize(400)
        browser.open(judged.as_uri())
        assert browser.complaints() == []
        inside, outside = browser.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert inside <= outside
    nodes = browser.accessibility()
    drawings = named(nodes, "image") + named(nodes, "img")
    assert sum("95 % interval" in name for name in drawings) == 2
    assert {"Accuracy of each arm", "Differences; the margin is 1 points"} <= set(named(nodes, "table"))
    told = json.dumps(nodes, ensure_ascii=False)
    assert "off against base, strict-match: -0.38, -1.10 to 0.40" in told
    boxes = browser.evaluate(
        "[...document.querySelectorAll('svg.plot text')].map(t => { const b = t.getBBox(), v = t.ownerSVGElement.viewBox.baseVal;"
        " return [b.x >= 0 && b.x + b.width <= v.width, t.textContent] })"
    )
    assert [text for inside, text in boxes if not inside] == []
