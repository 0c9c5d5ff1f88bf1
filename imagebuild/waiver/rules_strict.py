"""What is asked beyond the receiving repository's checklist: digests, evidence, expiry, pages that are what `render` writes.

With `--strict` these block; without it only a page that is out of date and an expired waiver are told, as warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date

from imagebuild.waiver.evidence import Evidence
from imagebuild.waiver.facts import TargetFacts
from imagebuild.waiver.findings import BLOCKING, WARNING, Finding
from imagebuild.waiver.headings import ACCURACY, BY_KEY
from imagebuild.waiver.not_cured import images_of
from imagebuild.waiver.page import DIGEST, Page
from imagebuild.waiver.render import WaiverFacts, page_name, render_page


def check_pages(
    facts: WaiverFacts, texts: Mapping[bool, str | None], folder: str, *, strict: bool
) -> Iterator[Finding]:
    """The pages are byte for byte what `render` writes now; `texts` by whether it is the Chinese page."""
    severity = BLOCKING if strict else WARNING
    for chinese, text in texts.items():
        name = f"{folder}/{page_name(facts.waiver.number, chinese=chinese)}"
        if chinese and facts.waiver.zh is None:
            if strict:
                yield Finding(
                    "waiver.no-chinese-page", BLOCKING, "the waiver has no `zh`, so there is no Chinese page", name
                )
            continue
        wanted = render_page(facts, chinese=chinese)
        if text is None:
            if chinese and strict:
                yield Finding(
                    "waiver.no-chinese-page", BLOCKING, f"imagebuild waiver render {facts.waiver.number}", name
                )
        elif text != wanted:
            line = next(
                (n for n, (a, b) in enumerate(zip(text.split("\n"), wanted.split("\n"), strict=False), 1) if a != b),
                min(text.count("\n"), wanted.count("\n")) + 1,
            )
            yield Finding(
                "waiver.page-stale",
                severity,
                f"the page is not what the facts of today give; imagebuild waiver render {facts.waiver.number}",
                name,
                line,
            )


def check_expiry(facts: WaiverFacts, today: date, file: str, *, strict: bool) -> Iterator[Finding]:
    expires = facts.waiver.removal_plan.expires
    if expires is None:
        if strict:
            yield Finding("waiver.no-expiry", BLOCKING, "`removal_plan.expires` is not set", file)
    elif expires < today:
        yield Finding(
            "waiver.expired", BLOCKING if strict else WARNING, f"the waiver was good until {expires.isoformat()}", file
        )


def check_accuracy(facts: WaiverFacts, page: Page) -> Iterator[Finding]:
    """Accuracy evidence is of this very content."""
    section = page.section(ACCURACY)
    line = section.line if section else 0
    for target in facts.targets:
        evidence = facts.evidence.get(target.name, Evidence())
        yield from _accuracy_of(target, evidence, page.file, line)


def _accuracy_of(target: TargetFacts, evidence: Evidence, file: str, line: int) -> Iterator[Finding]:
    content = target.lock.result.content_id
    runs = [record for record in evidence.records if record.check == "gsm8k"]
    ours = [record for record in runs if record.of({*target.image_digests, content})]
    others = [record for record in runs if record not in ours and not record.of(target.base_digests)]
    failed = [record for record in ours if record.result == "FAILED"]
    if failed:
        yield Finding("waiver.accuracy-failed", BLOCKING, f"{failed[0].file}: the accuracy check failed", file, line)
    elif not ours and others:
        yield Finding(
            "waiver.accuracy-of-other-content", BLOCKING, f"{others[0].file} is not of content id {content}", file, line
        )
    elif not ours:
        yield Finding("waiver.accuracy-missing", BLOCKING, f"no accuracy run of {target.name} is on record", file, line)


def check_images(page: Page, facts: WaiverFacts | None) -> Iterator[Finding]:
    """The image is named by digest, in a registry."""
    if facts is not None:
        for target in facts.targets:
            if target.image is None:
                yield Finding(
                    "waiver.local-image",
                    BLOCKING,
                    f"{target.name} has no `publish`: its image is a local path",
                    page.file,
                )
        return
    for line, name in images_of(page):
        if name.startswith("/") or name.endswith((".sqsh", ".squashfs", ".tar")):
            yield Finding("waiver.local-image", BLOCKING, f"{name} is a local file", page.file, line)
        elif not DIGEST.search(name):
            yield Finding("waiver.no-digest", BLOCKING, f"{name} is a movable name: no digest pins it", page.file, line)


def check_hand_made(page: Page) -> Iterator[Finding]:
    """What can be asked of a page without its facts."""
    if page.section(ACCURACY) is None:
        yield Finding("waiver.accuracy-missing", BLOCKING, f'there is no section "{BY_KEY[ACCURACY].en}"', page.file)
