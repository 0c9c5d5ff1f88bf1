"""The check of one waiver: its rules in order, what no waiver cures apart, and what can be done.

Deterministic and offline: the same files and the same day give the same report.  Only where a code host is given are
upstream links looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from imagebuild.errors import InputError
from imagebuild.target.workspace import MAP_NAME, Workspace
from imagebuild.waiver.change import ChangeSet, run_time_patches
from imagebuild.waiver.changelog import check_changelog
from imagebuild.waiver.findings import BLOCKING, NOTE, WARNING, Finding, WaiverReport, sort_findings
from imagebuild.waiver.gather import gather
from imagebuild.waiver.headings import CONFIG, PATCHED, UPSTREAM, WHY
from imagebuild.waiver.not_cured import find_not_cured, ways_out
from imagebuild.waiver.online import CodeHost, look_up_links
from imagebuild.waiver.page import UPSTREAM_URL, Page, code_spans, load_page
from imagebuild.waiver.render import WaiverFacts, page_name
from imagebuild.waiver.repository import Repository, check_repository
from imagebuild.waiver.rules_page import check_name, check_removal, check_sections
from imagebuild.waiver.rules_patch import check_coverage, check_links, check_need
from imagebuild.waiver.rules_strict import check_accuracy, check_expiry, check_hand_made, check_images, check_pages

RULES = ("inferencex",)


@dataclass(frozen=True, slots=True)
class Asked:
    """How to check.  `today` decides about expiry; `change` is the diff of the pull request, `changelog` the file's name and
    bytes, `repository` the repository that the waiver goes to; `host` looks upstream links up (None: offline)."""

    today: date
    strict: bool = False
    change: ChangeSet | None = None
    changelog: tuple[str, bytes] | None = None
    repository: Repository | None = None
    host: CodeHost | None = None


def check_number(workspace: Workspace, number: int, asked: Asked) -> WaiverReport:
    """The waiver of a workspace, with its facts.  Raises what `gather` raises."""
    facts = gather(workspace, number)
    folder = workspace.shown(workspace.waivers)
    path = workspace.waivers / page_name(number)
    shown = workspace.shown(path)
    if not path.is_file():
        finding = Finding(
            "waiver.page-missing", BLOCKING, f"the page is not there; imagebuild waiver render {number}", shown
        )
        return WaiverReport(shown, number, facts.waiver.targets, (finding,))
    page = load_page(path, shown)
    chinese = workspace.waivers / page_name(number, chinese=True)
    texts = {False: _text(path), True: _text(chinese)}
    findings = list(check_pages(facts, texts, folder, strict=asked.strict))
    findings += check_expiry(facts, asked.today, f"{folder}/{number}.yaml", strict=asked.strict)
    if asked.strict:
        findings += check_accuracy(facts, page)
    return _report(page, facts, findings, asked)


def check_file(path: Path, shown: str, asked: Asked) -> WaiverReport:
    """A page on its own; where it lies in the waivers folder of a workspace with its `N.yaml`, the waiver with its facts.
    Raises InputError `waiver.no-page`, and what checking the waiver raises."""
    page = load_page(path, shown)
    workspace = _workspace_of(path, page.number)
    if workspace is not None and page.number is not None and not page.chinese:
        return check_number(workspace, page.number, asked)
    findings: list[Finding] = []
    if asked.strict:
        findings += check_hand_made(page)
        sibling = path.with_name(page_name(page.number or 0, chinese=True))
        if not page.chinese and not sibling.is_file():
            findings.append(
                Finding("waiver.no-chinese-page", BLOCKING, f"{sibling.name} is not beside the page", shown)
            )
    return _report(page, None, findings, asked)


def _workspace_of(path: Path, number: int | None) -> Workspace | None:
    """The workspace whose waivers folder holds the page and its N.yaml.  A broken map of a stranger's repository is not
    this check's business."""
    folder = path.resolve().parent
    if number is None or not (folder / f"{number}.yaml").is_file():
        return None
    for above in folder.parents:
        if (above / MAP_NAME).is_file() or ((above / "manifests").is_dir() and (above / "overlays").is_dir()):
            try:
                found = Workspace.find(above)
            except InputError:
                return None
            return found if found.waivers.resolve() == folder else None
    return None


def _text(path: Path) -> str | None:
    return path.read_bytes().decode("utf-8", "replace") if path.is_file() else None


def _report(page: Page, facts: WaiverFacts | None, findings: list[Finding], asked: Asked) -> WaiverReport:
    findings += check_name(page)
    findings += check_sections(page)
    if facts is not None:
        findings += check_coverage(page, facts)
    findings += check_links(page, facts)
    findings += check_need(page, facts)
    why = page.section(WHY)
    if facts is None and why is not None:
        findings.append(
            Finding(
                "waiver.no-base-evidence",
                WARNING,
                "none on record: the page is checked alone, without runs on the unmodified image",
                page.file,
                why.line,
            )
        )
    findings += check_removal(page)
    if asked.strict:
        findings += check_images(page, facts)
    if asked.change is not None:
        findings += _check_change(page, facts, asked.change)
    keys = frozenset(facts.waiver.configs if facts is not None else _config_keys(page))
    if asked.changelog is not None and asked.change is not None:
        findings += check_changelog(*asked.changelog, asked.change, page.number, keys)
    if asked.repository is not None:
        findings += check_repository(asked.repository, page, facts, keys, asked.change)
    unknown: tuple[str, ...] = ()
    if asked.host is not None:
        section = page.section(UPSTREAM)
        looked_up = look_up_links(
            asked.host, _links(page, facts), page.file, section.line if section else 0, strict=asked.strict
        )
        findings += looked_up.findings
        unknown = looked_up.unknown
    ordered = sort_findings(findings)
    return WaiverReport(
        page.file,
        page.number,
        facts.waiver.targets if facts is not None else (),
        ordered,
        sort_findings(list(find_not_cured(page, facts))),
        ways_out(ordered, facts),
        unknown,
    )


def _links(page: Page, facts: WaiverFacts | None) -> Iterator[tuple[str, str | None]]:
    """The pull requests and issues that stand for the patch, with the state that the waiver claims."""
    if facts is not None:
        yield from ((link.url, link.state) for link in facts.waiver.upstream)
        yield from ((url, None) for target in facts.targets for item in target.items for url in item.upstream)
        return
    for key in (PATCHED, UPSTREAM):
        section = page.section(key)
        yield from ((url, None) for url in UPSTREAM_URL.findall(section.text if section is not None else ""))


def _config_keys(page: Page) -> tuple[str, ...]:
    """Configuration keys that a hand-made page names: words with hyphens alone, in code, where it says what it covers."""
    section = page.section(CONFIG)
    spans = code_spans(section.text) if section is not None else ()
    return tuple(
        s for s in dict.fromkeys(spans) if s.count("-") >= 2 and s.replace("-", "").replace(".", "").replace("_", "").isalnum()
        and not s.startswith("-") and s == s.lower()
    )  # fmt: skip


def _check_change(page: Page, facts: WaiverFacts | None, change: ChangeSet) -> Iterator[Finding]:
    """Rules 1 and 3 with a diff: the page is in it or stands on the base branch; scripts that patch at run time are
    named."""
    # a page may be checked where it was downloaded to: its name is a number, so that the name is enough
    own = change.find(page.file) or next((f for f in change.files if f.path.rpartition("/")[2] == page.name), None)
    if own is not None and own.new is None:
        yield Finding("waiver.page-removed", BLOCKING, "this change deletes the page", page.file)
    elif own is None:
        yield Finding(
            "waiver.page-not-in-change",
            NOTE,
            "the change does not touch the page: it must stand on the base branch",
            page.file,
        )
    sections = [page.section(key) for key in (CONFIG, PATCHED)]
    told = "\n".join(section.text for section in sections if section is not None)
    for patch in run_time_patches(change):
        name = patch.path.rpartition("/")[2]
        if name in told or (facts is not None and _is_member(patch.path, facts)):
            continue
        yield Finding(
            "waiver.run-time-patch",
            BLOCKING,
            f"it changes the installed engine when it runs ({patch.how}) and the waiver does not name it",
            patch.path,
            patch.line,
        )


def _is_member(path: str, facts: WaiverFacts) -> bool:
    """Whether a file of the change belongs to an overlay of the waiver's targets: its effect stands in the lock, which the
    table has to cover, and nothing applies it when the engine runs."""
    for target in facts.targets:
        for overlay in target.overlays:
            before, found, rest = path.partition(f"{overlay.folder.name}/")
            if not found or (before and not before.endswith("/")):
                continue
            member = overlay.folder / rest
            if str(member).endswith(f"/{path}") and member.is_file():
                return True
    return False
