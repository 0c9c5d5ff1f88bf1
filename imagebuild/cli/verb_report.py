"""Write one page for reviewers, or the text of the pull request.

The page is one HTML file that works from disk and loads nothing: what was changed, line by line, guards, where the image comes
from, upstream status, smoke and GSM8K, the waiver's findings, how to verify, what is not proven.  What never ran is shown
as not-run.  The same files give the same bytes; --today DATE judges expiries as well.

Examples:
  imagebuild report b300-vllm                              build/report/b300-vllm.html
  imagebuild report b300-vllm --html report.html
  imagebuild report b300-vllm --markdown                   the pull request's text, English and Chinese
  imagebuild report b300-vllm --markdown --lang en >> "$GITHUB_STEP_SUMMARY"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from imagebuild.cli.session import Session, shown_here
from imagebuild.errors import InputError


def languages(text: str) -> tuple[str, ...]:
    """`en`, `zh` or both with a comma between them."""
    found = tuple(part.strip() for part in text.split(","))
    if not found or set(found) - {"en", "zh"} or len(set(found)) != len(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not en, zh, or en,zh")
    return found


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a target with a current lock")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", help="where the page goes (default: build/report/TARGET.html)")
    form.add_argument("--markdown", action="store_true", help="print the pull request's text instead")
    parser.add_argument(
        "--lang", type=languages, metavar="LANG", help="with --markdown: en, zh or en,zh (default: en,zh)"
    )
    parser.add_argument("--today", metavar="DATE", help="the day on which expiries are judged (default: they are not)")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from imagebuild.cli.targets import contents_of
    from imagebuild.content.digest import Digest
    from imagebuild.content.files import atomic_write
    from imagebuild.overlay.vocabulary import parse_date
    from imagebuild.release.report_facts import gather_report

    if arguments.lang and not arguments.markdown:
        raise InputError("cli.usage", "--lang goes with --markdown: the page is in English")
    today = parse_date(arguments.today) if arguments.today else None
    name: str = arguments.target
    workspace = session.workspace
    report = gather_report(workspace, name, contents_of(session, name), today)
    document = {
        "kind": "report",
        "schemaVersion": 1,
        "target": name,
        "reference": report.reference,
        "content_id": str(report.facts.lock.result.content_id),
        "smoke": str(report.smoke_verdict),
        "gsm8k": str(report.accuracy_verdict),
        "waivers": [{"number": one.number, "passed": one.passed} for one in report.waivers],
        "unproven": [{"kind": one.kind, "what": one.what} for one in report.unproven],
    }
    if arguments.markdown:
        from imagebuild.release.report_markdown import LANGUAGES, render_markdown

        text = render_markdown(report, arguments.lang or LANGUAGES)
        session.output.answer({**document, "text": text}, text.rstrip("\n"), whole=True)
        return 0
    from imagebuild.release.report_page import render_html

    data = render_html(report)
    path = Path(arguments.html) if arguments.html else workspace.root / "build" / "report" / f"{name}.html"
    atomic_write(path, data)
    session.output.answer({**document, "file": str(path), "sha256": str(Digest.of(data))}, shown_here(path))
    return 0
