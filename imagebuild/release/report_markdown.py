"""The pull request's text, in English and Chinese: one structure, every fact the same and in the same order.

What is a fact stands as code or as an address; what is prose is translated.  Reasons are the tools' own words and stay as
they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from imagebuild.check.verdicts import Verdict
from imagebuild.errors import clean
from imagebuild.release.report_facts import ReportFacts
from imagebuild.release.report_words import (
    COLUMNS,
    COMMANDS,
    FIELDS,
    HEADINGS,
    KINDS,
    PHRASES,
    UNPROVEN,
    VERDICTS,
    Both,
)
from imagebuild.waiver.facts import PatchedItem, upstream_of
from imagebuild.waiver.findings import Finding
from imagebuild.waiver.render import cell, code

LANGUAGES = ("en", "zh")


def render_markdown(report: ReportFacts, languages: Sequence[str] = LANGUAGES) -> str:
    """The text in each language asked for, one after the other, ending in a newline."""
    parts = ["\n\n".join(_text(report, LANGUAGES.index(one))) for one in languages]
    return "\n\n---\n\n".join(parts) + "\n"


def _text(report: ReportFacts, at: int) -> Iterator[str]:
    def say(words: Both) -> str:
        return words[at]

    facts = report.facts
    yield f"# {say(HEADINGS['title'])}: {code(facts.name)}"
    if facts.target.description:
        yield prose(facts.target.description)
    yield f"## {say(HEADINGS['image'])}"
    yield _fields(report, at)
    yield f"## {say(HEADINGS['changes'])}"
    rows = [_changed(item, at) for item in facts.items]
    yield _table([say(one) for one in COLUMNS["changes"]], rows) if rows else say(PHRASES["nothing"])
    if facts.derived:
        yield f"{say(PHRASES['also'])}: " + ", ".join(code(one.path) for one in facts.derived)
    settled = sum(row.state != "not-proven" for row in report.guards)
    if report.guards:
        yield f"{say(PHRASES['guards'])} {code(f'{settled}/{len(report.guards)}')}"
    yield f"## {say(HEADINGS['upstream'])}"
    yield _upstream(report, at)
    yield f"## {say(HEADINGS['checks'])}"
    yield _table([say(one) for one in COLUMNS["checks"]], list(_checks(report, at)))
    yield f"## {say(HEADINGS['waiver'])}"
    yield from _waivers(report, at)
    yield f"## {say(HEADINGS['verify'])}"
    for key, command in report.commands:
        yield f"{say(COMMANDS[key])}\n\n```sh\n{command}\n```"
    yield f"## {say(HEADINGS['unproven'])}"
    yield "\n".join(f"- {say(UNPROVEN[one.kind])}: {code(one.what)}" for one in report.unproven)


def prose(text: str) -> str:
    """Somebody's text as one paragraph that makes no heading, list, table or HTML of its own."""
    line = " ".join(clean(text, 2000).split())
    for char, shown in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(char, shown)
    return "\\" + line if line[:1] in "#-*+|=`~_[" and line else line


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell(one) for one in line) + " |" for line in lines)


def _fields(report: ReportFacts, at: int) -> str:
    facts = report.facts
    inputs = facts.lock.inputs
    pairs = [
        ("image", report.reference),
        ("base", f"{inputs.base}@{inputs.base_digest}"),
        ("content", str(facts.lock.result.content_id)),
        ("lock", str(facts.lock_digest)),
        *(("platforms", f"{one.platform} {one.manifest}") for one in facts.lock.result.platforms),
        *([("sku", facts.target.sku)] if facts.target.sku else []),
    ]
    return "\n".join(f"- {FIELDS[key][at]}: {code(value)}" for key, value in pairs)


def _changed(item: PatchedItem, at: int) -> list[str]:
    where = f" ({', '.join(code(str(one)) for one in item.platforms)})" if item.platforms else ""
    absent = PHRASES["absent"][at]
    sides = [absent if side == "absent" else code(side) for side in (item.before, item.after) if side is not None]
    states = " → ".join(sides) if len(sides) == 2 else f"→ {sides[0]}" if sides else "-"
    return [code(item.name) + where, KINDS[item.kind][at], states, ", ".join(code(one) for one in item.overlays)]


def _upstream(report: ReportFacts, at: int) -> str:
    rows = []
    for overlay in report.facts.overlays:
        links = ", ".join(f"<{url}>" for url in upstream_of(overlay)) or PHRASES["none"][at]
        status = code(overlay.upstream_status) if overlay.upstream_status else PHRASES["not-stated"][at]
        goes = prose(overlay.remove_when) if overlay.remove_when else PHRASES["not-stated"][at]
        rows.append([code(overlay.name), status, links, goes])
    return _table([one[at] for one in COLUMNS["upstream"]], rows) if rows else PHRASES["nothing"][at]


def _checks(report: ReportFacts, at: int) -> Iterator[list[str]]:
    for one in report.smoke:
        if not one.counts:
            continue
        if not one.source:
            yield [f"smoke {code(one.platform)}", VERDICTS[Verdict.NOT_RUN][at], PHRASES["no-smoke"][at]]
            continue
        for step in one.steps:
            name = f"smoke {code(one.platform)} {code(step.name)}"
            yield [name, VERDICTS[step.verdict][at], prose(step.reason) or "-"]
    counted = [one for one in report.accuracy if one.counts]
    if not counted:
        yield ["GSM8K", VERDICTS[Verdict.NOT_RUN][at], PHRASES["no-accuracy"][at]]
    for judged in counted:
        yield ["GSM8K", VERDICTS[judged.verdict][at], f"{prose(judged.reason)} ({code(judged.source)})"]


def _waivers(report: ReportFacts, at: int) -> Iterator[str]:
    if not report.waivers:
        yield PHRASES["no-waiver"][at]
    for one in report.waivers:
        verdict = PHRASES["passed" if one.passed else "refused"][at]
        yield f"{code(one.subject)}: **{verdict}**"
        if one.findings:
            yield _findings(one.findings, at)
        if one.not_cured:
            yield f"{PHRASES['not-cured'][at]}:"
            yield _findings(one.not_cured, at)
        if one.ways_out:
            ways = "\n".join(f"{number}. {prose(way)}" for number, way in enumerate(one.ways_out, 1))
            yield f"{PHRASES['ways-out'][at]}:\n\n{ways}"


def _findings(findings: Sequence[Finding], at: int) -> str:
    rows = [[code(one.code), PHRASES[one.severity][at], prose(one.message)] for one in findings]
    return _table([one[at] for one in COLUMNS["waiver"]], rows)
