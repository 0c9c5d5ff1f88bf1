"""Rules 1, 2 and 6, of the page alone: its name, its sections, its removal plan (waivers.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagebuild.waiver.findings import BLOCKING, WARNING, Finding
from imagebuild.waiver.headings import BY_KEY, CONFIG, MANDATORY, REMOVAL
from imagebuild.waiver.page import Page, code_spans

_WORDS = "|".join(("TB" + "D", "TB" + "C", "FIX" + "ME", "TO" + "DO", "XX" + "X", "WI" + "P"))
_UNWRITTEN = re.compile(rf"\b(?:{_WORDS})\b|待定|待补充|待填写")
_MARK = re.compile(
    r"<(?:…|\.\.\.|[A-Z][A-Z0-9]*(?:[ _-][A-Z0-9]+)+|[A-Z]{2,}|[^<>`\n:/]{0,60}[一-鿿][^<>`\n:/]{0,60}"
    r"|(?:your|insert|fill|what|why|when|the|describe|link|reason|pr|number|name)\b[^<>\n]{0,120})>"
)
_DIVISION = re.compile(r"^\s*[-*]?\s*(?:n/?a|none|无|-+)\.?\s*$", re.IGNORECASE)


def check_name(page: Page) -> Iterator[Finding]:
    """Rule 1: `N.md` (and `N_zh.md`), N the number of the title."""
    if page.number is None:
        kind = "a placeholder" if page.name.upper().startswith("PENDING") else "no number"
        yield Finding(
            "waiver.file-name",
            BLOCKING,
            f"{page.name} is named by {kind}: a waiver is N.md, N the pull request that introduces the patch",
            page.file,
        )
    elif page.title_number is None:
        yield Finding(
            "waiver.title-number",
            BLOCKING,
            f"the title does not name pull request #{page.number}",
            page.file,
            page.title_line,
        )
    elif page.title_number != page.number:
        yield Finding(
            "waiver.title-number",
            BLOCKING,
            f"the title says #{page.title_number}, the file's name {page.number}",
            page.file,
            page.title_line,
        )


def check_sections(page: Page) -> Iterator[Finding]:
    """Rule 2: the mandatory sections are there and filled."""
    for key in (*MANDATORY, CONFIG):
        heading, section = BY_KEY[key], page.section(key)
        name = heading.zh if page.chinese else heading.en
        severity = BLOCKING if key in MANDATORY else WARNING
        if section is None:
            yield Finding("waiver.section-missing", severity, f'there is no section "{name}"', page.file)
        elif not section.filled or _DIVISION.match(section.text.strip()):
            yield Finding(
                "waiver.section-empty", severity, f'"{section.heading}" says nothing', page.file, section.line
            )
    for line in page.lines():
        if line.fenced:
            continue
        found = _UNWRITTEN.search(line.text) or _MARK.search(line.text)
        if found:
            yield Finding(
                "waiver.placeholder",
                BLOCKING,
                f"{found[0]} still stands for something to be written",
                page.file,
                line.number,
            )


_CONDITION = re.compile(
    r"\b(?:when|once|after|until|as soon as|if|upon|condition)\b|\bonce\b|merged|ships|carries|contains|includes|lands|当|待|直到|一旦|之后|后|合并",
    re.IGNORECASE,
)
_SELF = re.compile(
    r"\b(?:this|the) waiver|waiver (?:file|page|goes|is deleted)|[本此该]豁免|豁免(?:文件|页面)|waiver/", re.IGNORECASE
)
_FILE = re.compile(
    r"(?<![\w.*/-])(?:[\w.*-]{1,200}/){1,40}[\w.*-]+|(?<![\w*-])[\w*-]{1,200}\.(?:py|sh|ya?ml|md|patch|diff|csv|json|Dockerfile|so|co|toml|cfg)\b"
)


def check_removal(page: Page) -> Iterator[Finding]:
    """Rule 6: a condition, the files and call sites that go, and the waiver with them."""
    section = page.section(REMOVAL)
    if section is None or not section.filled:
        return
    text = " ".join(section.text.split())
    if not _CONDITION.search(text):
        yield Finding(
            "waiver.removal-condition",
            BLOCKING,
            "the removal plan does not say what must happen first",
            page.file,
            section.line,
        )
    if not (_FILE.search(text) or code_spans(text)):
        yield Finding(
            "waiver.removal-files",
            BLOCKING,
            "the removal plan names no file and no call site to delete",
            page.file,
            section.line,
        )
    name = re.compile(rf"\b{page.number}(?:_zh)?\.(?:md|yaml)\b") if page.number is not None else None
    if not (_SELF.search(text) or (name and name.search(text))):
        yield Finding(
            "waiver.removal-waiver",
            BLOCKING,
            "the removal plan does not say that this waiver is deleted with the patch",
            page.file,
            section.line,
        )
