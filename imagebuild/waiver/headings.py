"""The words of the two pages: headings as we write them, and the wordings in which others write the same."""

from __future__ import annotations

import re
from dataclasses import dataclass

CONFIG = "config"
PATCHED = "patched"
WHY = "why"
UPSTREAM = "upstream"
ACCURACY = "accuracy"
REMOVAL = "removal"
MANDATORY = (PATCHED, WHY, UPSTREAM, REMOVAL)
"""What the checklist of the receiving repository asks of every waiver."""


@dataclass(frozen=True, slots=True)
class Heading:
    """One section: its heading in English and Chinese, and a pattern over headings (lower case) that mean it."""

    key: str
    en: str
    zh: str
    pattern: str


HEADINGS = (
    Heading(WHY, "Why the unmodified upstream image cannot run this benchmark", "为何未修改的上游镜像无法运行此基准测试", r"\bwhy\b|cannot run|can't run|justification|reason|rationale|necessity|为何|为什么|原因|理由|无法运行|必要性|^原(?:始)?镜像"),
    Heading(REMOVAL, "Removal plan", "移除计划", r"remov|retire|sunset|exit plan|移除|删除|退出|下线"),
    Heading(UPSTREAM, "Upstream PR / issue links", "上游 PR / issue 链接", r"^upstream\b(?! images?\b)|upstream.*(pr\b|pull|issue|link|status)|(pr|pull request|issue)s?\b.*link|^上游(?!镜像)|上游.*(链接|pr|issue|状态)|链接"),
    Heading(ACCURACY, "Accuracy", "精度", r"accura|gsm8k|\beval|精度|准确"),
    Heading(PATCHED, "What is patched", "修改内容", r"what.*(patch|chang|modif)|\bpatch|\bchanges?\b|modified|修改|补丁|改动|变更"),
    Heading(CONFIG, "Config covered", "涵盖的配置", r"config|\bscope\b|配置|范围"),
)  # fmt: skip
"""In the order in which a heading is matched: the narrow before the wide."""

ORDER = (CONFIG, PATCHED, WHY, UPSTREAM, ACCURACY, REMOVAL)
"""In the order in which a page holds them (waivers.md)."""
BY_KEY = {heading.key: heading for heading in HEADINGS}


def section_of(heading: str) -> str | None:
    """The section that a heading means, None for another."""
    text = re.sub(r"\s+", " ", heading.strip().lower())
    for one in HEADINGS:
        if text in (one.en.lower(), one.zh):
            return one.key
    for one in HEADINGS:
        if re.search(one.pattern, text):
            return one.key
    return None


_AND = re.compile(r"\s+(?:and|&)\s+|\s*(?:与|和|及)\s*")
_SCOPE = re.compile(r"scope|(?:适用)?范围")


def also_means(heading: str, text: str) -> frozenset[str]:
    """What a heading means beside `section_of`: each side of an "and" alone (`What changes and why`), and what is patched
    where `Scope` is all it says and the text below speaks of a patch."""
    words = re.sub(r"\s+", " ", heading.strip().lower())
    parts = _AND.split(words)
    found = {section_of(part) for part in parts} if len(parts) > 1 else set()
    if _SCOPE.fullmatch(words) and re.search(r"patch|补丁", text, re.IGNORECASE):
        found.add(PATCHED)
    return frozenset(key for key in found if key is not None)
