"""Rules 3 to 5, of what is patched: coverage, upstream links, and proof that the unmodified image cannot run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from imagebuild.waiver.evidence import Evidence, TestRecord
from imagebuild.waiver.facts import PatchedItem, TargetFacts
from imagebuild.waiver.findings import BLOCKING, NOTE, WARNING, Finding
from imagebuild.waiver.headings import PATCHED, UPSTREAM, WHY
from imagebuild.waiver.page import DIGEST, Page, Row, code_spans, names_upstream
from imagebuild.waiver.render import WaiverFacts

_NO_LINK = re.compile(
    r"\bno\b[^.|]{0,40}\bupstream\b[^.|]{0,20}\b(?:prs?|pull requests?|issues?|links?)\b"
    r"|\bnot (?:yet )?(?:been )?(?:submitted|sent|proposed|filed|opened) (?:upstream|to)|\bnot upstream(?:ed)? yet"
    r"|(?:没有|尚无|暂无|未有)上游",
    re.IGNORECASE,
)
_LOCAL = re.compile(r"\blocal (?:edit|change|patch)(?:e?s)?\b|本地修改", re.IGNORECASE)
_NOT_NEEDED = re.compile(
    r"\b(?:needs?|requires?) no (?:patch|change|waiver)|\bno patch (?:is )?(?:needed|required)|\bnot a correctness (?:patch|fix)"
    r"|\bnot strictly (?:needed|required|necessary)\b|\b(?:boots|runs|works|serves) without (?:it|this|the patch)\b"
    r"|\bperf(?:ormance)?[ -](?:lever|only|tuning|optimi[sz]ation)\b|\b(?:patch|change|it|this|which) is (?:not "
    r"(?:needed|required|necessary)|optional|unnecessary)|\bnot (?:strictly )?(?:needed|required) (?:to|for) run"
    r"|\b(?:can|could|does|do|will) (?:also |still |already )?(?:run|serve|work)s?\b[^.|]{0,60}\b(?:without (?:it|the patch|this"
    r"|the change)|with the (?:variable|switch|flag) (?:off|unset)|on the (?:unmodified|unpatched|stock|base) image)"
    r"|\b(?:unmodified|unpatched|stock|base) image (?:itself )?(?:runs|can run|works|can serve|serves)\b"
    r"|无需补丁|不需要补丁|无须补丁|(?:未修改|原始|上游)的?镜像(?:也|上)?[^。]{0,20}(?:也能|即可|可以)运行|仅(?:为|是)性能",
    re.IGNORECASE,
)
_PIN = re.compile(r"(?:^|[\s`])[A-Za-z0-9][\w.-]*==[\w.+!-]+")
_PACKAGE_FOLDERS = ("dist-packages", "site-packages")


def check_coverage(page: Page, facts: WaiverFacts) -> Iterator[Finding]:
    """Rule 3 with a lock: the table holds every change of it, with its digests, and nothing else."""
    section = page.section(PATCHED)
    if section is None:
        return
    rows = list(section.rows())
    used: set[int] = set()
    for target in facts.targets:
        for item in target.items:
            mine = [row for row in rows if _names_item(row, item)]
            used |= {row.line for row in mine}
            if not mine:
                what = f"{item.kind} {item.name}"
                yield Finding(
                    "waiver.not-covered",
                    BLOCKING,
                    f"the lock of {target.name} has {what}, the table has not",
                    page.file,
                    section.line,
                )
            elif not any(_agrees(row, item) for row in mine):
                yield Finding(
                    "waiver.digest-differs",
                    BLOCKING,
                    f"{item.name}: the lock of {target.name} says {item.before or ''} → {item.after or ''}",
                    page.file,
                    mine[0].line,
                )
    for row in rows:
        if row.line not in used:
            yield Finding(
                "waiver.covers-too-much",
                BLOCKING,
                f"no lock has what this row names: {row.cells[0][:200]}",
                page.file,
                row.line,
            )


def _names_item(row: Row, item: PatchedItem) -> bool:
    """Whether a row is about a change: by its name, or by its path in the image."""
    spans = code_spans(row.cells[0]) or code_spans(row.text) or (row.cells[0],)
    names = {item.name, item.path, item.name.partition("==")[0] if item.kind == "pin" else item.name} - {""}
    tails = {f"{folder}/{item.name}" for folder in _PACKAGE_FOLDERS}
    for span in spans:
        word = span.split("=")[0] if item.kind == "environment" else span
        if word in names or any(word.endswith(tail) for tail in tails):
            return True
    return False


def _agrees(row: Row, item: PatchedItem) -> bool:
    """Digests in the row are those of the lock, the right way round; a row without digests claims none."""
    said = DIGEST.findall(row.text)
    if not said:
        return item.kind != "environment" or item.after is None or item.after in row.text
    known = [text for text in (item.before, item.after) if text and DIGEST.fullmatch(text)]
    return said == known


def check_links(page: Page, facts: WaiverFacts | None) -> Iterator[Finding]:
    """Rule 4: each patch names a pull request or an issue upstream."""
    if facts is not None:
        yield from _links_of_facts(page, facts)
        return
    patched, upstream = page.section(PATCHED), page.section(UPSTREAM)
    if patched is None or upstream is None:
        return
    rows = list(patched.rows())
    linked = [line for line in upstream.paragraphs() if names_upstream(line.text)]
    patches = [row for row in rows if not _PIN.search(row.text)]
    bare = [row for row in patches if not names_upstream(row.text)]
    if (
        patches
        and len(bare) == len(patches)
        and linked
        and not any(_denial(line.text) for line in upstream.paragraphs())
    ):
        yield Finding(
            "waiver.link-unassigned",
            WARNING,
            "no row of the table says which upstream link is its own",
            page.file,
            patched.line,
        )
        return
    for row in bare:
        if any(_shares_name(row, line.text) for line in linked):
            continue
        yield Finding(
            "waiver.no-upstream-link",
            BLOCKING,
            f"a change without an upstream pull request or issue: {row.cells[0][:200]}",
            page.file,
            row.line,
        )
    for line in upstream.paragraphs():
        found = _denial(line.text)
        if found:
            yield Finding(
                "waiver.no-upstream-link",
                BLOCKING,
                f'the page itself says "{found}": {line.text}',
                page.file,
                line.number,
            )
    if not rows and not linked:
        yield Finding(
            "waiver.no-upstream-link", BLOCKING, "no upstream pull request or issue is named", page.file, upstream.line
        )


def _denial(text: str) -> str:
    """The words by which a paragraph says that upstream has not been told; "" where it does not.  A local edit beside a link may be
    the link's."""
    found = _NO_LINK.search(text) or (None if names_upstream(text) else _LOCAL.search(text))
    return found[0] if found else ""


def _shares_name(row: Row, text: str) -> bool:
    """Whether a paragraph with links is about the row: it repeats a name that stands in the row as code."""
    names = {part for span in code_spans(row.text) for part in (span, span.rpartition("/")[2]) if len(part) > 3}
    return any(name in text for name in names)


def _links_of_facts(page: Page, facts: WaiverFacts) -> Iterator[Finding]:
    section = page.section(UPSTREAM)
    for target in facts.targets:
        without = [item for item in target.items if item.kind != "pin" and not facts.links_of(item)]
        by: dict[str, list[str]] = {}
        for item in without:
            by.setdefault(", ".join(item.overlays) or target.name, []).append(item.name)
        for owner, names in by.items():
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            yield Finding(
                "waiver.no-upstream-link",
                BLOCKING,
                f"{owner}: no upstream pull request or issue for {shown}",
                page.file,
                section.line if section else 0,
            )


def check_need(page: Page, facts: WaiverFacts | None) -> Iterator[Finding]:
    """Rule 5: proof that the unmodified image cannot run, and nothing that says the contrary."""
    why = page.section(WHY)
    for line in why.paragraphs() if why is not None else ():
        found = _NOT_NEEDED.search(line.text)
        if found:
            yield Finding(
                "waiver.unmodified-image-runs",
                BLOCKING,
                f'the page itself says that the unmodified image runs: "{found[0]}"',
                page.file,
                line.number,
            )
    patched = page.section(PATCHED)
    for row in patched.rows() if patched is not None else ():
        found = _NOT_NEEDED.search(row.text)
        if found:
            yield Finding(
                "waiver.patch-not-needed",
                BLOCKING,
                f'by its own words not needed ("{found[0]}"): {row.cells[0][:200]}',
                page.file,
                row.line,
            )
    for target in facts.targets if facts is not None else ():
        yield from _need_of_target(page, target, facts.evidence.get(target.name, Evidence()) if facts else Evidence())


def _need_of_target(page: Page, target: TargetFacts, evidence: Evidence) -> Iterator[Finding]:
    why = page.section(WHY)
    line = why.line if why else 0
    runs = evidence.about(target.base_digests, "smoke", "gsm8k")
    passed = [run for run in runs if run.result in ("PASSED", "WARNED")]
    failed = [run for run in runs if run.result == "FAILED"]
    if failed and passed:
        # one of them fails where the patch is needed, the other shows what works without it: people decide
        yield Finding(
            "waiver.base-evidence-mixed",
            WARNING,
            f"on the unmodified image of {target.name} {_files(failed)} failed and {_files(passed)} passed",
            page.file,
            line,
        )
    elif passed:
        yield Finding(
            "waiver.unmodified-image-runs",
            BLOCKING,
            f"the unmodified image of {target.name} passed: {_files(passed)}",
            page.file,
            line,
        )
    elif failed:
        yield Finding(
            "waiver.base-fails",
            NOTE,
            f"the unmodified image of {target.name} failed: {_files(failed)}",
            page.file,
            line,
        )
    else:
        yield Finding(
            "waiver.no-base-evidence",
            WARNING,
            f"none on record: no run of {target.name} on its unmodified image, so nothing but words says that it cannot run",
            page.file,
            line,
        )
    for overlay in target.overlays:
        if overlay.switch is not None:
            yield Finding(
                "waiver.switch-off-by-default",
                WARNING,
                f"{overlay.name} does nothing unless {overlay.switch.env}={overlay.switch.on}: with the variable removed the"
                " unmodified image does the same",
                page.file,
                line,
            )


def _files(runs: Sequence[TestRecord]) -> str:
    return ", ".join(run.file for run in runs)
