"""Pages that others wrote by hand, judged without a workspace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hand_made import CHINESE, PAGE

Verb = Callable[..., Any]


@pytest.fixture
def judged(tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Blocking and warning codes of a page, code to message; the page stands in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def judge(
        text: str, name: str = "310.md", *options: str, severities: tuple[str, ...] = ("blocking",)
    ) -> dict[str, str]:
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = verb("waiver", "check", name, "--json", *options)
        (report,) = done.document["waivers"]
        found = {f["code"]: f["message"] for f in report["findings"] if f["severity"] in severities}
        assert done.code == (0 if report["passed"] else 1)
        return found

    return judge


Judge = Callable[..., dict[str, str]]


def test_a_page_in_other_words_passes_and_says_what_is_not_on_record(judged: Judge) -> None:
    assert judged(PAGE, severities=("blocking", "warning")).keys() == {"waiver.no-base-evidence"}


def test_a_chinese_page_passes(judged: Judge) -> None:
    assert judged(CHINESE, "310_zh.md") == {}


def test_an_underlined_heading_and_another_level_are_headings_too(judged: Judge) -> None:
    text = PAGE.replace("## Removal Plan\n", "Removal plan\n------------\n").replace("## What Is", "### What is")
    assert judged(text) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("## Upstream PRs and links", "## Upstream tracking"),
        ("## Upstream PRs and links", "## Upstream status and review gate"),
        ("## What Is Patched", "## What changes and limits"),
        ("## Removal Plan", "## Validation and removal"),
        ("## WHY the stock image can't run this", "## Necessity"),
        ("## config covered", "## Scope"),
        ("once a nightly carries", "from the first nightly on that contains"),
    ],
)
def test_the_same_in_other_words(judged: Judge, old: str, new: str) -> None:
    assert old in PAGE
    assert judged(PAGE.replace(old, new), severities=("blocking", "warning")).keys() == {"waiver.no-base-evidence"}


def test_one_heading_may_mean_two_sections(judged: Judge) -> None:
    """`What changes and why` is both; a heading of its own goes before."""
    start, end = PAGE.index("## WHY"), PAGE.index("## Upstream PRs")
    without = PAGE[:start] + PAGE[end:]
    assert "waiver.section-missing" in judged(without)
    assert judged(without.replace("## What Is Patched", "## What changes and why")) == {}


def test_a_scope_that_speaks_of_the_patch_says_what_is_patched(judged: Judge) -> None:
    start, end = PAGE.index("## config"), PAGE.index("## WHY")
    scope = "## Scope\n\n`fix_engine.sh` applies a {} to the installed engine, engine #41.\n\n"
    assert judged(PAGE[:start] + scope.format("patch") + PAGE[end:]) == {}
    assert "waiver.section-missing" in judged(PAGE[:start] + scope.format("setting") + PAGE[end:])


def test_a_chinese_page_in_other_words_passes(judged: Judge) -> None:
    text = CHINESE.replace("## 上游链接", "## 上游跟踪").replace("## 适用范围", "## 范围").replace("本豁免", "此豁免")
    assert judged(text.replace("## 补丁内容", "## 补丁与限制"), "310_zh.md") == {}


@pytest.mark.parametrize("end", ["-->", ""])
def test_what_nobody_sees_on_the_page_answers_nothing(judged: Judge, end: str) -> None:
    start = PAGE.index("## Removal Plan")
    assert "waiver.section-missing" in judged(f"{PAGE[:start]}<!--\n{PAGE[start:]}\n{end}\n")
    link = "- engine: https://github.com/engine-project/engine/pull/41\n"
    last = PAGE.index("## Removal Plan", PAGE.index(link))
    assert "waiver.section-empty" in judged(f"{PAGE.replace(PAGE[PAGE.index(link) : last], f'<!-- {link} {end}')}")


def test_a_comment_in_code_is_text_and_a_note_to_the_author_is_none(judged: Judge) -> None:
    todo = "TO" + "DO"
    assert judged(PAGE.replace("## Removal Plan\n", f"## Removal Plan\n<!-- {todo}: a day -->\n")) == {}
    assert judged(PAGE.replace("because the stride", "at `<!--` because the stride")) == {}
    assert judged(PAGE.replace("## Removal Plan", "```html\n<!--\n```\n\n## Removal Plan")) == {}


@pytest.mark.parametrize("name", ["PENDING-310.md", "stride-fix.md", "310-fix.md", "v310.md"])
def test_rule_1_the_name_is_a_number(judged: Judge, name: str) -> None:
    assert judged(PAGE, name).keys() == {"waiver.file-name"}


def test_rule_1_the_number_is_the_titles(judged: Judge) -> None:
    assert "310" in judged(PAGE, "311.md")["waiver.title-number"]
    assert judged(PAGE.replace(" - PR #310", ""))["waiver.title-number"]


@pytest.mark.parametrize("heading", ["## What Is Patched", "## WHY the stock", "## Upstream PRs", "## Removal Plan"])
def test_rule_2_each_mandatory_section_is_there_and_filled(judged: Judge, heading: str) -> None:
    start = PAGE.index(heading)
    body = PAGE.index("\n", start)
    end = PAGE.find("\n## ", body)
    end = len(PAGE) if end < 0 else end
    assert "waiver.section-missing" in judged(PAGE[:start] + PAGE[end:])
    assert "waiver.section-empty" in judged(PAGE[:body] + "\n\n---\n" + PAGE[end:])


@pytest.mark.parametrize("mark", ["TB" + "D", "FIX" + "ME", "<PR_NUMBER>", "<…>", "<your reason here>", "待补充"])
def test_rule_2_nothing_is_left_to_be_written(judged: Judge, mark: str) -> None:
    assert judged(PAGE.replace("because the stride overflows", mark)).keys() == {"waiver.placeholder"}


@pytest.mark.parametrize(
    "text", ["<https://github.com/engine-project/engine/pull/41>", "`</s>` and `<|im_end|>`", "a `Dict<str>`"]
)
def test_rule_2_addresses_and_code_are_no_placeholders(judged: Judge, text: str) -> None:
    assert judged(PAGE.replace("because the stride overflows", text)) == {}


def test_rule_4_a_row_without_a_link_blocks_and_a_pin_does_not(judged: Judge) -> None:
    found = judged(PAGE.replace("| engine #41 |", "| routing of small heads |"))
    assert found.keys() == {"waiver.no-upstream-link"}
    assert "routing of small heads" in found["waiver.no-upstream-link"]


def test_rule_4_a_row_whose_file_the_links_name_is_linked(judged: Judge) -> None:
    text = PAGE.replace("| engine #41 | stride of the cache |", "| stride | `engine/cache.py` |")
    assert judged(text.replace("- engine: http", "- `engine/cache.py`: http")) == {}


def test_rule_4_what_the_page_says_of_itself_blocks(judged: Judge) -> None:
    text = PAGE.replace("- engine:", "- Routing: a local edit on top of #41; no standalone upstream\n  PR.\n- engine:")
    assert "upstream PR" in judged(text)["waiver.no-upstream-link"]


def test_rule_4_links_that_no_row_names_are_a_warning(judged: Judge) -> None:
    text = PAGE.replace("engine #41", "stride").replace("helper #7 / #9", "kernels")
    assert judged(text) == {}
    assert "waiver.link-unassigned" in judged(text, severities=("warning",))


@pytest.mark.parametrize(
    "words",
    [
        "not strictly required (boots without it)",
        "perf lever, not a correctness patch",
        "the change is optional",
        "无需补丁",
    ],
)
def test_rule_5_a_patch_that_is_not_needed_by_its_own_words_blocks(judged: Judge, words: str) -> None:
    assert judged(PAGE.replace("offline diff", words)).keys() == {"waiver.patch-not-needed"}


@pytest.mark.parametrize(
    "words",
    [
        "The points can run with the variable off on the stock image.",
        "They can run with\nthe variable off, which needs no patch.",
        "The unmodified image runs, only slower.",
        "未修改的镜像也能运行。",
    ],
)
def test_rule_5_a_reason_that_denies_itself_blocks(judged: Judge, words: str) -> None:
    found = judged(PAGE.replace("The stock image stops", words + "\n\nThe stock image stops"))
    assert found.keys() == {"waiver.unmodified-image-runs"}


@pytest.mark.parametrize(
    "words",
    [
        "cannot run without the patch",
        "the kernels are native and no longer applied",
        "This is required to run the benchmark",
    ],
)
def test_rule_5_a_reason_is_not_taken_for_its_contrary(judged: Judge, words: str) -> None:
    assert judged(PAGE.replace("The stock image stops", f"{words}.\n\nThe stock image stops")) == {}


def test_rule_6_condition_files_and_the_waiver_itself(judged: Judge) -> None:
    start = PAGE.index("Retire")
    assert judged(PAGE[:start] + "We will clean up.\n").keys() == {
        "waiver.removal-condition",
        "waiver.removal-files",
        "waiver.removal-waiver",
    }


def test_strict_asks_for_more_and_only_then(judged: Judge) -> None:
    assert judged(PAGE, "310.md", "--strict").keys() == {
        "waiver.no-digest",
        "waiver.accuracy-missing",
        "waiver.no-chinese-page",
    }


def test_the_namespace_stands_apart_and_does_not_decide(judged: Judge, verb: Verb) -> None:
    assert judged(PAGE.replace("vllm/vllm-openai-rocm", "someone/engine")) == {}
    (report,) = verb("waiver", "check", "310.md", "--json").document["waivers"]
    assert [(f["code"], f["line"]) for f in report["not_cured"]] == [("image.namespace", 6)]
    assert not verb("waiver", "check", "310.md").out.splitlines()[-1].endswith("blocking)")


def test_findings_are_annotations_of_github_too(judged: Judge, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    judged(PAGE.replace("because the stride overflows", "TB" + "D"))
    err = verb("waiver", "check", "310.md").err
    assert "::error file=310.md,line=21,title=waiver.placeholder::" in err
    assert "::warning file=310.md,line=19,title=waiver.no-base-evidence::" in err


def test_a_file_that_is_no_page_is_exit_2(tmp_path: Path, verb: Verb) -> None:
    (tmp_path / "1.md").write_bytes(b"\xff\xfe\x00")
    for name in ("1.md", "2.md"):
        done = verb("waiver", "check", tmp_path / name, "--json")
        assert (done.code, done.document["code"]) == (2, "waiver.no-page")


@pytest.mark.parametrize("text", ["", "#", "|", "```\n# x", "---\n---", "| a |\n| - |", "\r\n", "# #\n## \n"])
def test_any_text_is_judged(judged: Judge, text: str) -> None:
    assert "waiver.section-missing" in judged(text)
