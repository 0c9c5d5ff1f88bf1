"""Waivers with their facts: what refuses, what passes, what stands apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiver_space import LINK, PUBLISH, SWITCH, write_result

from imagebuild.testing.small_engine import SmallWorkspace

Make = Callable[..., SmallWorkspace]
Verb = Callable[..., Any]
NEEDLESS = "The points can run with the variable off on the unmodified image itself, which needs no patch."


def report(verb: Verb, *options: str) -> dict[str, Any]:
    done = verb("waiver", "check", "77", "--json", *options)
    (found,) = done.document["waivers"]
    assert done.document["passed"] is found["passed"]
    assert done.code == (0 if found["passed"] else 1)
    return found  # type: ignore[no-any-return]


def codes(found: dict[str, Any], severity: str = "blocking") -> set[str]:
    return {f["code"] for f in found["findings"] if f["severity"] == severity}


def test_a_switched_change_whose_points_run_on_the_base_is_refused_with_three_ways_out(
    waived: Make, verb: Verb
) -> None:
    space = waived(switch=True, link=None, render=False)
    path = space.root / "waivers" / "77.yaml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("The scheduler of the unmodified image stops at step 17.", NEEDLESS)
    )
    verb("waiver", "render", "77")
    found = report(verb)
    assert codes(found) == {"waiver.unmodified-image-runs", "waiver.no-upstream-link"}
    assert codes(found, "warning") == {"waiver.no-base-evidence", "waiver.switch-off-by-default"}
    assert "image.namespace" in {f["code"] for f in found["not_cured"]}
    remove, upstream, elsewhere = found["ways_out"]
    assert "ENGINE_TUNED removed" in remove
    assert str(space.base.digest) in remove
    assert "upstream pull request" in upstream
    assert "policy" in elsewhere
    text = verb("waiver", "check", "77").out
    assert text.splitlines()[-1] == "waivers/77.md: refused (2 blocking)"
    assert "Not cured by any waiver:" in text


def test_a_target_whose_base_arm_fails_passes_and_the_namespace_stands_apart(waived: Make, verb: Verb) -> None:
    space = waived(render=False)
    write_result(space, str(space.base.digest), "FAILED", "smoke-base", "tuned")
    verb("waiver", "render", "77")
    found = report(verb)
    assert codes(found) == set()
    assert codes(found, "note") == {"waiver.base-fails"}
    assert [f["code"] for f in found["not_cured"]] == ["image.namespace"]
    assert found["ways_out"] == []


def test_a_base_arm_that_passes_refutes_the_waiver_whatever_it_says(waived: Make, verb: Verb) -> None:
    space = waived(render=False)
    path = write_result(space, str(space.base.digest), "PASSED", "smoke-base", "tuned")
    verb("waiver", "render", "77")
    found = report(verb)
    assert codes(found) == {"waiver.unmodified-image-runs"}
    assert path.name in next(f["message"] for f in found["findings"])
    write_result(space, str(space.base.digest), "FAILED", "gsm8k-base", "tuned")
    verb("waiver", "render", "77")
    assert "waiver.base-evidence-mixed" in codes(report(verb), "warning")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"predicateType": 7}', '{"payload": "!"}', '{"predicateType": "x", "subject": [{}]}', "[" * 5000],
)
def test_evidence_that_says_nothing_claims_nothing(waived: Make, verb: Verb, text: str) -> None:
    space = waived()
    folder = space.folder() / "evidence"
    folder.mkdir()
    (folder / "smoke.json").write_text(text)
    (folder / "loop.json").symlink_to("loop.json")
    assert "waiver.no-base-evidence" in codes(report(verb), "warning")


def edit(space: SmallWorkspace, old: str, new: str) -> None:
    path = space.root / "waivers" / "77.md"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def row_of(space: SmallWorkspace, name: str) -> str:
    text = (space.root / "waivers" / "77.md").read_text(encoding="utf-8")
    return next(line + "\n" for line in text.splitlines() if line.startswith(f"| `{name}`"))


def test_rule_3_a_change_that_is_not_in_the_table_blocks(waived: Make, verb: Verb) -> None:
    space = waived()
    edit(space, row_of(space, "engine/legacy.py"), "")
    found = report(verb)
    assert codes(found) == {"waiver.not-covered"}
    assert "deletion engine/legacy.py" in found["findings"][0]["message"]
    assert codes(found, "warning") >= {"waiver.page-stale"}


def test_rule_3_a_row_that_no_lock_has_blocks(waived: Make, verb: Verb) -> None:
    space = waived()
    row = row_of(space, "engine/extra.py")
    edit(space, row, row + row.replace("engine/extra.py", "engine/other.py"))
    assert codes(report(verb)) == {"waiver.covers-too-much"}


def test_rule_3_swapped_digests_block_and_none_do_not(waived: Make, verb: Verb) -> None:
    space = waived()
    row = row_of(space, "engine/envs.py")
    before, after = row.split("`")[3], row.split("`")[5]
    swapped = row.replace(before, "X").replace(after, before).replace("X", after)
    edit(space, row, swapped)
    assert codes(report(verb)) == {"waiver.digest-differs"}
    edit(space, swapped, f"| `/usr/lib/python3/dist-packages/engine/envs.py` | | {LINK} | |\n")
    assert codes(report(verb)) == set()


def test_environment_defaults_are_covered_too(waived: Make, verb: Verb) -> None:
    space = waived(render=False)
    space.write_target(publish=PUBLISH, sku="b300", env={"ENGINE_WORKERS": "4"})
    assert verb("lock", "tuned").code == 0
    verb("waiver", "render", "77")
    row = row_of(space, "ENGINE_WORKERS")
    assert "`ENGINE_WORKERS=4`" in row
    assert "environment default" in row
    assert codes(report(verb)) == set()
    edit(space, "ENGINE_WORKERS=4", "ENGINE_WORKERS=5")
    assert codes(report(verb)) == {"waiver.digest-differs"}


def test_two_overlays_need_links_of_their_own(waived: Make, verb: Verb) -> None:
    space = waived(render=False)
    folder = space.write_overlay("more", "  - symlink: {path: engine/again.py, to: extra.py}\n", {})
    space.write_target(publish=PUBLISH, overlays=["tune", "more"])
    assert verb("lock", "tuned").code == 0
    verb("waiver", "render", "77")
    found = report(verb)
    assert len([f for f in found["findings"] if f["code"] == "waiver.no-upstream-link"]) == 2
    for path in (folder, space.root / "overlays" / "tune"):
        file = path / "overlay.yaml"
        file.write_text(file.read_text().replace("author: tests\n", f"author: tests\nforwarded: {LINK}\n"))
    verb("waiver", "render", "77")
    assert codes(report(verb)) == set()
    file.write_text(file.read_text().replace("/pull/12", "/tree/main"))
    verb("waiver", "render", "77")
    assert codes(report(verb)) == {"waiver.no-upstream-link"}


def test_strict_asks_for_accuracy_of_this_content(waived: Make, verb: Verb) -> None:
    space = waived()
    assert codes(report(verb, "--strict")) == {"waiver.accuracy-missing"}
    other = write_result(space, "ab" * 32, "PASSED", "gsm8k", "tuned")
    verb("waiver", "render", "77")
    assert codes(report(verb, "--strict")) == {"waiver.accuracy-of-other-content"}
    other.unlink()
    write_result(space, str(space.digest()), "FAILED", "gsm8k", "tuned")
    verb("waiver", "render", "77")
    assert codes(report(verb, "--strict")) == {"waiver.accuracy-failed"}
    write_result(space, str(space.digest()), "PASSED", "gsm8k", "tuned")
    verb("waiver", "render", "77")
    assert codes(report(verb, "--strict")) == set()


def test_expiry_is_judged_on_the_day_that_is_named(waived: Make, verb: Verb) -> None:
    waived()
    assert "waiver.expired" not in codes(report(verb, "--today", "2027-03-01"), "warning")
    assert "waiver.expired" in codes(report(verb, "--today", "2027-03-02"), "warning")
    assert "waiver.expired" in codes(report(verb, "--today", "2027-03-02", "--strict"))


def test_strict_wants_both_pages_a_last_day_and_a_published_image(waived: Make, verb: Verb) -> None:
    space = waived()
    (space.root / "waivers" / "77_zh.md").unlink()
    assert "waiver.no-chinese-page" in codes(report(verb, "--strict"))
    path = space.root / "waivers" / "77.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text("".join(x for x in text.replace(", expires: 2027-03-01", "").splitlines(True) if "zh:" not in x))
    space.write_target()
    verb("waiver", "render", "77")
    assert codes(report(verb, "--strict")) >= {"waiver.no-chinese-page", "waiver.no-expiry", "waiver.local-image"}
    assert codes(report(verb)) == set()


def test_a_waiver_without_its_page_is_refused(waived: Make, verb: Verb) -> None:
    waived(render=False)
    assert codes(report(verb)) == {"waiver.page-missing"}


def test_every_waiver_and_every_other_page_is_checked_without_a_name(waived: Make, verb: Verb) -> None:
    space = waived()
    (space.root / "waivers" / "PENDING-x.md").write_text("# x\n")
    done = verb("waiver", "check", "--json")
    assert [w["subject"] for w in done.document["waivers"]] == ["waivers/77.md", "waivers/PENDING-x.md"]
    assert done.code == 1


def test_a_page_named_by_its_path_is_checked_with_its_facts(waived: Make, verb: Verb, tmp_path: Path) -> None:
    space = waived()
    edit(space, row_of(space, "engine/legacy.py"), "")
    found = verb("waiver", "check", space.root / "waivers" / "77.md", "--json").document["waivers"][0]
    assert "waiver.not-covered" in codes(found)
    # away from its yaml it is anybody's page
    (tmp_path / "77.md").write_text((space.root / "waivers" / "77.md").read_text(encoding="utf-8"), encoding="utf-8")
    found = verb("waiver", "check", tmp_path / "77.md", "--json").document["waivers"][0]
    assert found["targets"] == []
    assert codes(found) == set()


def test_a_switch_alone_is_a_hint(waived: Make, verb: Verb) -> None:
    assert SWITCH
    waived(switch=True)
    found = report(verb)
    assert found["passed"]
    assert "waiver.switch-off-by-default" in codes(found, "warning")
