"""`waiver changelog`: an entry at the physical end in the file's own manner, and every earlier byte as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ix_repository import CHANGELOG, KEY, git_diff
from waiver_space import write_result

from imagebuild.content.strict_yaml import parse_yaml, plain_value
from imagebuild.errors import RefusedError
from imagebuild.testing.small_engine import SmallWorkspace
from imagebuild.waiver.changelog_append import ChangelogEntry, append_entry, link_of

Make = Callable[..., SmallWorkspace]
Verb = Callable[..., Any]
LINK = "https://github.com/bench/bench/pull/77"
ENTRY = ChangelogEntry((KEY,), ("Run the tuned image",), LINK)
MANNERS = {
    "blank lines between": CHANGELOG,
    "none between": CHANGELOG.replace("\n\n", "\n"),
    "one entry": CHANGELOG.partition("\n\n")[0] + "\n",
    "lists not indented further": CHANGELOG.replace("    - ", "  - "),
    "a comment before": "# What changed.\n\n" + CHANGELOG,
    "a slip before the last": CHANGELOG + "\n" + 2 * CHANGELOG.partition("\n\n")[2],
    "line ends of another system": CHANGELOG.replace("\n", "\r\n"),
    "empty": "",
}


@pytest.fixture
def mapped(waived: Make) -> SmallWorkspace:
    """A workspace whose map names a changelog."""
    space = waived()
    write_result(space, space.lock()["inputs"]["base"]["digest"], "FAILED", "base-smoke")
    (space.root / ".imagebuild.yaml").write_text("changelog: perf-changelog.yaml\n")
    (space.root / "perf-changelog.yaml").write_text(CHANGELOG)
    return space


@pytest.mark.parametrize("manner", MANNERS)
def test_earlier_bytes_stay_and_the_check_of_an_append_is_content(
    mapped: SmallWorkspace, verb: Verb, tmp_path: Path, manner: str
) -> None:
    before, path = MANNERS[manner], mapped.root / "perf-changelog.yaml"
    path.write_text(before, newline="")
    path.chmod(0o664)
    ran = verb("waiver", "changelog", "77", "--link", LINK, "--json")
    assert (ran.code, ran.out and ran.document["unchanged"]) == (0, False), ran.err
    after = path.read_bytes().decode()
    assert after.startswith(before)
    assert after.count("\r\n") == (after.count("\n") if "\r" in before else 0)
    assert path.stat().st_mode & 0o777 == 0o664
    last = plain_value(parse_yaml(after.encode(), "the file"))[-1]
    assert last == {"config-keys": [KEY], "description": ["Tune the engine"], "pr-link": LINK}
    if before:
        diff = tmp_path / "pr.diff"
        diff.write_text(git_diff("perf-changelog.yaml", before, after), newline="")
        ran = verb("waiver", "check", "77", "--diff", str(diff), "--changelog", "perf-changelog.yaml", "--json")
        assert ran.code == 0, ran.out
        found = [f["code"] for f in ran.document["waivers"][0]["findings"] if f["code"].startswith("changelog.")]
        assert found == ["changelog.appended"]


def test_again_appends_nothing(mapped: SmallWorkspace, verb: Verb) -> None:
    path = mapped.root / "perf-changelog.yaml"
    assert verb("waiver", "changelog", "77").code == 0
    once, time = path.read_bytes(), path.stat().st_mtime_ns
    ran = verb("waiver", "changelog", "77", "--json")
    assert (ran.document["unchanged"], path.read_bytes(), path.stat().st_mtime_ns) == (True, once, time)


def test_the_link_follows_the_last_entry(mapped: SmallWorkspace, verb: Verb) -> None:
    assert verb("waiver", "changelog", "77", "--json").document["link"] == LINK
    assert link_of(b"- config-keys: [a]\n", 77) is None
    (mapped.root / "perf-changelog.yaml").write_text("- config-keys:\n    - a\n")
    ran = verb("waiver", "changelog", "77", "--json")
    assert (ran.code, ran.document["code"]) == (2, "changelog.no-link")


@pytest.mark.parametrize("text", ["- config-keys:\n    - a", "just: a mapping\n"])
def test_a_file_that_cannot_take_an_entry_is_left_alone(mapped: SmallWorkspace, verb: Verb, text: str) -> None:
    path = mapped.root / "perf-changelog.yaml"
    path.write_text(text)
    ran = verb("waiver", "changelog", "77", "--link", LINK, "--json")
    assert (ran.code, ran.document["code"], path.read_text()) == (1, "changelog.cannot-append", text)


def test_which_file_must_be_said(mapped: SmallWorkspace, verb: Verb) -> None:
    os.unlink(".imagebuild.yaml")
    ran = verb("waiver", "changelog", "77", "--json")
    assert (ran.code, ran.document["code"]) == (2, "changelog.no-file")
    assert verb("waiver", "changelog", "77", "--file", "perf-changelog.yaml").code == 0


@given(st.text(max_size=200), st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=4))
def test_whatever_stood_there_stands_there_still(before: str, words: list[str]) -> None:
    entry = ChangelogEntry((KEY,), tuple(words), LINK)
    raw = before.encode("utf-8", "replace")
    try:
        after = append_entry(raw, entry, "changelog")
    except RefusedError:
        return
    assert after.startswith(raw)
    assert after.count(LINK.encode()) >= 1
    assert append_entry(after, entry, "changelog") == after


def test_an_entry_with_other_line_ends_than_the_file_is_told(
    mapped: SmallWorkspace, verb: Verb, tmp_path: Path
) -> None:
    before = CHANGELOG.replace("\n", "\r\n")
    after = before + append_entry(CHANGELOG.encode(), ENTRY, "f")[len(CHANGELOG) :].decode()
    (mapped.root / "perf-changelog.yaml").write_text(after, newline="")
    (tmp_path / "d").write_text(git_diff("perf-changelog.yaml", before, after), newline="")
    words = ("--diff", tmp_path / "d", "--changelog", "perf-changelog.yaml", "--json")
    found = verb("waiver", "check", "77", *words).document["waivers"][0]["findings"]
    assert [f["message"] for f in found if f["code"] == "changelog.separator"] == [
        "the new lines end otherwise than those before"
    ]
