"""The pages of a waiver: from facts alone, one structure in two languages, the same bytes from the same facts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from waiver_space import LINK, change_a_postimage, write_result, write_waiver

from imagebuild.testing.small_engine import SmallWorkspace
from imagebuild.waiver.headings import BY_KEY, ORDER
from imagebuild.waiver.page import parse_page

Make = Callable[..., SmallWorkspace]
Verb = Callable[..., Any]


def page(space: SmallWorkspace, name: str = "77.md") -> str:
    return (space.root / "waivers" / name).read_text(encoding="utf-8")


def test_every_change_of_the_lock_stands_in_the_table_with_its_digests(waived: Make) -> None:
    space = waived()
    rows = list(parse_page(page(space), "77.md").section("patched").rows())  # type: ignore[union-attr]
    changes = space.lock()["inputs"]["platforms"]["linux/amd64"]["changes"]
    named = {c["origin"].partition(":")[2]: c for c in changes if c["origin"].startswith("change:")}
    assert {row.cells[0].strip("`") for row in rows} == set(named)
    for row in rows:
        item = named[row.cells[0].strip("`")]
        assert re.findall("sha256:[0-9a-f]{64}", row.text) == [
            x for x in (item.get("preimage"), item.get("postimage")) if x
        ]
        assert LINK in row.cells[2]
    assert "registers the switch" in next(r for r in rows if "envs.py" in r.text).cells[3]
    # what follows from the changes is told as well
    assert all(
        c["path"] in page(space) for c in changes if c["origin"].startswith(("record:", "bytecode:", "provenance:"))
    )


def test_both_pages_hold_the_sections_in_order_and_equal_code_addresses_and_digests(waived: Make) -> None:
    space = waived(switch=True)
    english, chinese = parse_page(page(space), "77.md"), parse_page(page(space, "77_zh.md"), "77_zh.md")
    assert [s.heading for s in english.sections] == [BY_KEY[key].en for key in ORDER]
    assert [s.heading for s in chinese.sections] == [BY_KEY[key].zh for key in ORDER]
    for pattern in (r"`[^`\n]+`", r"https?://[^\s>)]+", r"sha256:[0-9a-f]{64}", r"```text\n.*?```"):
        assert re.findall(pattern, english.text, re.DOTALL) == re.findall(pattern, chinese.text, re.DOTALL)
    assert english.text.splitlines()[2] == "**English** | [中文](./77_zh.md)"
    assert chinese.text.splitlines()[2] == "[English](./77.md) | **中文**"


def test_the_same_facts_give_the_same_bytes(waived: Make, verb: Verb) -> None:
    space = waived()
    before = page(space), page(space, "77_zh.md")
    assert verb("waiver", "render", "77").code == 0
    assert (page(space), page(space, "77_zh.md")) == before


def test_one_digest_in_the_lock_changes_the_page_and_the_old_one_is_refused(waived: Make, verb: Verb) -> None:
    space = waived()
    old = page(space)
    before, after = change_a_postimage(space)
    found = verb("waiver", "check", "77", "--strict", "--json")
    codes = [f["code"] for f in found.document["waivers"][0]["findings"] if f["severity"] == "blocking"]
    assert found.code == 1
    assert "waiver.page-stale" in codes
    assert "waiver.digest-differs" in codes
    assert verb("waiver", "render", "77").code == 0
    assert before in old
    assert after not in old
    assert after in page(space)
    assert before not in page(space)
    again = verb("waiver", "check", "77", "--strict", "--json").document["waivers"][0]["findings"]
    assert not [f for f in again if f["code"] in ("waiver.page-stale", "waiver.digest-differs")]


def test_evidence_of_the_base_stands_on_the_page(waived: Make, verb: Verb) -> None:
    space = waived()
    assert "No run on the unmodified image of `tuned` is on record." in page(space)
    path = write_result(space, str(space.base.digest), "FAILED", "smoke-base")
    write_result(space, str(space.digest()), "PASSED", "gsm8k-on")
    (path.parent / "notes.json").write_text(json.dumps({"kind": "something else"}))
    assert verb("waiver", "render", "77").code == 0
    assert "| `smoke` | failed |" in page(space)
    assert "| `gsm8k` | passed |" in page(space)
    assert "No run on the unmodified image" not in page(space)


def test_a_mapped_folder_takes_the_pages(waived: Make, verb: Verb) -> None:
    space = waived(render=False)
    (space.root / ".imagebuild.yaml").write_text("waivers: docs/waiver\n")
    write_waiver(space)
    done = verb("waiver", "render", "77", "--json")
    assert done.document["paths"] == ["docs/waiver/77.md", "docs/waiver/77_zh.md"]
    assert (space.root / "docs/waiver/77.md").is_file()


def test_a_stale_lock_renders_nothing(waived: Make, verb: Verb) -> None:
    space = waived(render=False)
    space.write_overlay(changes="  - delete: {path: engine/legacy.py}\n", files={})
    done = verb("waiver", "render", "77", "--json")
    assert (done.code, done.document["code"]) == (1, "lock.stale")
    assert not (space.root / "waivers" / "77.md").exists()


def test_new_starts_a_file_that_loads_and_is_refused_until_it_is_written(waived: Make, verb: Verb) -> None:
    space = waived()
    done = verb("waiver", "new", "78", "--target", "tuned")
    assert done.out == "waivers/78.yaml\n"
    assert verb("waiver", "render", "78").code == 0
    report = verb("waiver", "check", "78", "--json").document["waivers"][0]
    assert len([f for f in report["findings"] if f["code"] == "waiver.placeholder"]) >= 3
    again = verb("waiver", "new", "78", "--target", "tuned", "--json")
    assert (again.code, again.document["code"]) == (2, "waiver.exists")
    assert (space.root / "waivers" / "78.yaml").is_file()


@pytest.mark.parametrize(("number", "code"), [("x1", "waiver.bad-number"), ("79", "waiver.unknown")])
def test_a_number_that_is_none_is_told(waived: Make, verb: Verb, number: str, code: str) -> None:
    waived()
    done = verb("waiver", "render", number, "--json")
    assert (done.code, done.document["code"]) == (2, code)


def test_peoples_text_cannot_make_sections_rows_or_code(waived: Make, verb: Verb) -> None:
    space = waived(render=False)
    path = write_waiver(space)
    path.write_text(
        path.read_text(encoding="utf-8")
        .replace("title: Tune the engine", r'title: "Tune | the `engine`"')
        .replace('text: "The scheduler', r'text: "## Removal plan\n| a | b |\nThe scheduler')
        .replace("registers the switch", r'"a | b"'),
        encoding="utf-8",
    )
    assert verb("waiver", "render", "77").code == 0
    made = parse_page(page(space), "77.md")
    assert [s.key for s in made.sections] == list(ORDER)
    assert len(list(made.section("patched").rows())) == 4  # type: ignore[union-attr]
    assert not list(made.section("why").rows())  # type: ignore[union-attr]
