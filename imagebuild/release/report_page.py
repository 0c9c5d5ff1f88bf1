"""The page for reviewers: one HTML file that needs nothing else, works from disk, and asks nobody anything."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from importlib import resources

from imagebuild import __version__
from imagebuild.check.verdicts import Verdict
from imagebuild.host.clock import rfc3339
from imagebuild.release.report_checks import AccuracyResult, SmokeResult
from imagebuild.release.report_diff import file_part
from imagebuild.release.report_facts import ReportFacts
from imagebuild.release.report_graph import graph_figure
from imagebuild.release.report_markup import Child, Markup, code, element, joined, link, section, table
from imagebuild.release.report_plot import plots
from imagebuild.release.report_words import COMMANDS, UNPROVEN
from imagebuild.waiver.facts import upstream_of
from imagebuild.waiver.findings import Finding, WaiverReport

SECTIONS = (
    ("glance", "At a glance"),
    ("changes", "What was changed"),
    ("guards", "Guards"),
    ("origin", "Where the image comes from"),
    ("upstream", "Upstream status"),
    ("smoke", "Smoke checks"),
    ("accuracy", "Accuracy (GSM8K)"),
    ("waiver", "Waiver"),
    ("verify", "How to verify"),
    ("unproven", "What is not proven"),
)
"""Anchors and headings, in the page's order."""


def render_html(report: ReportFacts) -> bytes:
    """The page, UTF-8.  The same facts give the same bytes.

    The policy in its head lets a browser load nothing at all, and apply the page's own style sheet only, by its digest.
    """
    style = resources.files("imagebuild.release").joinpath("report_style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    name = report.facts.name
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{name}: what was changed, and how it was checked"),
        # an icon of no bytes: a browser asks for none then
        Markup('<link rel="icon" href="data:,">'),
        Markup(f"<style>{style}</style>"),
    )
    bodies = dict(_sections(report))
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        _header(report),
        element("main", *[section(key, title, *bodies[key]) for key, title in SECTIONS], id="content", tabindex=-1),
        element(
            "footer",
            element(
                "p", f"Rendered by imagebuild {__version__} from the lock ", code(str(report.facts.lock_digest)), "."
            ),
        ),
    )
    page = element("html", head, body, lang="en")
    return f"<!DOCTYPE html>\n{page.text}\n".encode()


def _header(report: ReportFacts) -> Markup:
    facts = report.facts
    links = [element("li", element("a", title, href=f"#{key}")) for key, title in SECTIONS]
    return element(
        "header",
        element("h1", f"{facts.name}: what was changed, and how it was checked"),
        element("p", facts.target.description or "") if facts.target.description else None,
        element("nav", element("ul", *links), aria_label="Parts of this page"),
    )


def _sections(report: ReportFacts) -> Iterator[tuple[str, list[Child]]]:
    yield "glance", list(_glance(report))
    yield "changes", list(_changes(report))
    yield "guards", list(_guards(report))
    yield "origin", [graph_figure(report)]
    yield "upstream", list(_upstream(report))
    yield "smoke", list(_smoke(report))
    yield "accuracy", list(_accuracy(report))
    yield "waiver", list(_waivers(report))
    yield "verify", list(_verify(report))
    yield "unproven", list(_unproven(report))


def verdict_mark(verdict: Verdict) -> Markup:
    """A verdict by a sign and its word, never by colour alone."""
    kind, sign = ("good", "✓") if verdict.good else ("bad", "✗") if verdict.exit_code == 1 else ("open", "–")
    return element("span", f"{sign} {verdict}", class_=f"verdict {kind}")


def _listed(pairs: Iterable[tuple[str, Child]]) -> Markup:
    return element("dl", *[one for name, value in pairs for one in (element("dt", name), element("dd", value))])


def _glance(report: ReportFacts) -> Iterator[Child]:
    facts = report.facts
    inputs, result = facts.lock.inputs, facts.lock.result
    yield _listed(
        [
            ("Image", code(report.reference)),
            ("Base", code(f"{inputs.base}@{inputs.base_digest}")),
            ("Platforms", ", ".join(str(p.platform) for p in inputs.platforms)),
            ("Accelerator", facts.target.sku or "none named"),
            ("Content id", code(str(result.content_id))),
            ("Image's time", f"{rfc3339(inputs.created)} (the lock's, no build's clock)"),
        ]
    )
    rows: list[list[Child]] = [
        [
            "Lock",
            verdict_mark(Verdict.PASSED),
            "it is the one of these files: targets and overlays have not changed since",
        ],
        ["Guards", *_guard_words(report)],
        ["Smoke", verdict_mark(report.smoke_verdict), element("a", "steps and reasons", href="#smoke")],
        ["GSM8K", verdict_mark(report.accuracy_verdict), element("a", "intervals and runs", href="#accuracy")],
    ]
    for one in report.waivers:
        verdict = Verdict.PASSED if one.passed else Verdict.FAILED
        rows.append([f"Waiver {one.number}", verdict_mark(verdict), element("a", "findings", href="#waiver")])
    rows.append(["Signature", verdict_mark(Verdict.NOT_RUN), _signature(report)])
    yield table("What is settled and what is not", ["Check", "Verdict", "What it says"], rows)


def _guard_words(report: ReportFacts) -> tuple[Child, Child]:
    """Verdict and words; what has no guard has none, and is not passed for that."""
    if not report.guards:
        return "none", "no overlay guards a path"
    held = sum(row.state != "not-proven" for row in report.guards)
    verdict = Verdict.PASSED if held == len(report.guards) else Verdict.NOT_PROVEN
    return verdict_mark(verdict), f"{held} of {len(report.guards)} preimages settled in the base"


def _signature(report: ReportFacts) -> Child:
    if not report.release:
        return "no release file is beside the lock, and this page looks nothing up; see how to verify it below"
    return joined([code(report.release), " is beside the lock; this page has no key to verify it with, see below"])


def _changes(report: ReportFacts) -> Iterator[Child]:
    facts = report.facts
    rows: list[list[Child]] = []
    anchors = {file.name: f"file-{number}" for number, file in enumerate(report.files, 1)}
    for item in facts.items:
        name: Child = code(item.name)
        if item.name in anchors:
            name = element("a", code(item.name), href=f"#{anchors[item.name]}")
        where = f" ({', '.join(map(str, item.platforms))})" if item.platforms else ""
        before = "" if item.before is None else item.before
        rows.append(
            [joined([name, where]), item.kind, _side(before), _side(item.after or ""), ", ".join(item.overlays)]
        )
    if not rows:
        yield element("p", "Nothing: the image is its base.")
        return
    yield table("Every change of the lock", ["Path", "Kind", "Before", "After", "Overlay"], rows)
    if facts.derived:
        items = [element("li", code(one.path), f" ({one.origin})") for one in facts.derived]
        yield element("p", "These follow from the changes, and are written or removed with them:")
        yield element("ul", *items)
    for number, file in enumerate(report.files, 1):
        yield file_part(file, f"file-{number}")


def _side(text: str) -> Child:
    return code(text) if text and text != "absent" else text or "-"


def _guards(report: ReportFacts) -> Iterator[Child]:
    yield element(
        "p",
        "An overlay applies to these bytes and to no others: a base whose file has another digest is refused, with no fuzz. ",
        "“matches” says that the lock read the file in the base.",
    )
    rows: list[list[Child]] = [
        [joined([code(row.path), f" ({row.platform})" if row.platform else ""]), row.overlay, row.state, _side(row.before),
         _side(row.after), code(row.git)]
        for row in report.guards
    ]  # fmt: skip
    if rows:
        header = ["Path", "Overlay", "In the base", "Preimage", "Postimage", "git blobs"]
        yield table("Guards and what the base holds", header, rows)
    else:
        yield element("p", "No overlay of this target guards a path.")


def _upstream(report: ReportFacts) -> Iterator[Child]:
    rows: list[list[Child]] = []
    for overlay in report.facts.overlays:
        links = upstream_of(overlay)
        rows.append(
            [
                overlay.name,
                overlay.upstream_status or "not stated",
                joined([part for url in links for part in (link(url), " ")]) if links else "none named",
                overlay.forwarded or "not stated",
                overlay.remove_when or "not stated",
            ]
        )
    header = ["Overlay", "Status", "Pull requests and issues", "Forwarded", "It goes when"]
    yield table("What upstream knows of each overlay", header, rows) if rows else element("p", "There is no overlay.")
    yield element("p", "As the overlays say; nothing was looked up at the code host.")


def _smoke(report: ReportFacts) -> Iterator[Child]:
    for one in report.smoke:
        if not one.steps and one.counts:
            yield element("p", verdict_mark(Verdict.NOT_RUN), f": {one.platform}: the target asks for no smoke check.")
            continue
        yield _smoke_table(one)
    yield element("p", EVIDENCE)


EVIDENCE = "Evidence is shown as it lies there; whose signature counts is for verify with a key or a policy."


def _smoke_table(one: SmokeResult) -> Markup:
    rows: list[list[Child]] = []
    for step in one.steps:
        seconds = "" if step.seconds is None else f"{step.seconds:.1f}"
        rows.append([step.name, verdict_mark(step.verdict), step.reason, seconds])
        rows += [[f"{step.name}: {part.name}", verdict_mark(part.verdict), part.reason, ""] for part in step.parts]
    where = f"{one.platform}, {one.of}" if one.platform else one.of
    caption: list[Child] = [f"Smoke steps on {where}"]
    if not one.counts:
        caption.append("; it does not count for this image")
    made = table(joined(caption), ["Step", "Verdict", "Reason", "Seconds"], rows)
    more: list[tuple[str, Child]] = [("Evidence", code(one.source) if one.source else "none")]
    more += [("Hardware", one.hardware)] if one.hardware else []
    return joined([made, _listed(more)])


def _accuracy(report: ReportFacts) -> Iterator[Child]:
    asked = report.facts.target.checks.gsm8k if report.facts.target.checks else None
    if asked is not None:
        arms = ", ".join(asked.arms)
        yield element(
            "p", f"Asked for: at least {asked.threshold} under both filters, within {asked.margin} points; arms {arms}."
        )
    if not any(one.counts for one in report.accuracy):
        name = report.facts.name
        why = f"no judged run of this image is in build/gsm8k/{name}/ or manifests/{name}/evidence/"
        if asked is None:
            why = "the target asks for no accuracy check, and none is on record"
        yield element("p", verdict_mark(Verdict.NOT_RUN), f": {why}.")
    for number, one in enumerate(report.accuracy, 1):
        yield _judgement(one, number)


def _judgement(one: AccuracyResult, number: int) -> Markup:
    parts: list[Child] = [
        element(
            "h3", f"Judgement {number}" + ("" if one.counts else ", which does not count"), id=f"judgement-{number}"
        ),
        element("p", verdict_mark(one.verdict), ": ", one.reason),
        element("p", "Evidence: ", code(one.source)),
    ]
    if not one.counts:
        parts.append(element("p", f"It does not count for this image: {one.why}.", class_="state"))
    parts.append(plots(one, number))
    checks = one.value.get("checks")
    if isinstance(checks, list):
        rows = [
            [str(check.get("name", "")), str(check.get("verdict", "")), str(check.get("reason", ""))]
            for check in checks
            if isinstance(check, dict)
        ]
        parts.append(table("The lines of the gate", ["Check", "Verdict", "Reason"], rows))
    return joined(parts)


def _waivers(report: ReportFacts) -> Iterator[Child]:
    if not report.waivers:
        yield element("p", "No waiver speaks of this target. A release needs one only where its policy asks for it.")
    for one in report.waivers:
        yield _waiver(one)


def _waiver(one: WaiverReport) -> Markup:
    verdict = Verdict.PASSED if one.passed else Verdict.FAILED
    words = "passed" if one.passed else f"refused, {sum(f.severity == 'blocking' for f in one.findings)} blocking"
    parts: list[Child] = [
        element("h3", f"Waiver {one.number}", id=f"waiver-{one.number}"),
        element("p", verdict_mark(verdict), f": {words} (", code(one.subject), ")"),
    ]
    if one.findings:
        parts.append(_findings("Findings", one.findings))
    if one.not_cured:
        parts.append(_findings("Not cured by any waiver", one.not_cured))
    if one.ways_out:
        parts.append(element("p", "What can be done:"))
        parts.append(element("ol", *[element("li", way) for way in one.ways_out]))
    return joined(parts)


def _findings(caption: str, findings: tuple[Finding, ...]) -> Markup:
    rows: list[list[Child]] = [[code(one.code), one.severity, one.message, code(one.place)] for one in findings]
    return table(caption, ["Code", "Severity", "What was found", "Place"], rows)


def _verify(report: ReportFacts) -> Iterator[Child]:
    yield element("p", "In a checkout of this workspace:")
    for key, command in report.commands:
        yield element("p", COMMANDS[key][0])
        yield element("pre", code(command))


def _unproven(report: ReportFacts) -> Iterator[Child]:
    items = [element("li", UNPROVEN[one.kind][0], ": ", code(one.what)) for one in report.unproven]
    yield element("p", "Nobody has shown these; what could not be checked is never counted as passed.")
    yield element("ul", *items)
