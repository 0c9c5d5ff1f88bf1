"""Judge waivers: those of the workspace, or a page that somebody wrote by hand.

Works offline (but for --online) and, for a page, without a workspace.  What blocks is what the receiving repository's checklist demands;
--strict adds digests, accuracy evidence, expiry and pages that are what `waiver render` writes.

Examples:
  imagebuild waiver check 4878
  imagebuild waiver check docs/waiver/2508.md
  git diff main...HEAD > pr.diff
  imagebuild waiver check 4878 --online
  imagebuild waiver check 4878 --diff pr.diff --repo . --changelog perf-changelog.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.cli.session import Session
from imagebuild.errors import InputError, worst_exit_code

if TYPE_CHECKING:
    from imagebuild.waiver.online import CodeHost


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", nargs="?", metavar="N|FILE", help="a waiver or a page (default: every waiver here)")
    parser.add_argument("--rules", choices=("inferencex",), default="inferencex", help="whose checklist blocks")
    parser.add_argument("--strict", action="store_true", help="block on what imagebuild asks beyond that, too")
    parser.add_argument("--diff", metavar="FILE", help="the pull request as git diff prints it")
    parser.add_argument("--changelog", metavar="FILE", help="prove that --diff only appends to this changelog")
    parser.add_argument("--repo", metavar="DIR", help="the repository that the waiver goes to")
    parser.add_argument("--online", action="store_true", help="look upstream links up at the code host")
    parser.add_argument("--github-api", metavar="URL", help="where GitHub's API is (default: https://api.github.com)")
    parser.add_argument("--today", metavar="DATE", help="the day on which an expiry is judged (default: the clock's)")


def run(arguments: argparse.Namespace, session: Session) -> int:
    from datetime import UTC, date, datetime

    from imagebuild.cli.named_file import read_named
    from imagebuild.host.clock import now
    from imagebuild.overlay.vocabulary import parse_date
    from imagebuild.waiver.change import load_change
    from imagebuild.waiver.check import Asked, check_file, check_number
    from imagebuild.waiver.findings import WaiverReport
    from imagebuild.waiver.gather import waiver_numbers
    from imagebuild.waiver.repository import load_repository

    if arguments.changelog and not arguments.diff:
        raise InputError("cli.usage", "--changelog needs --diff: without it nobody knows what stood there before")
    today: date = parse_date(arguments.today) if arguments.today else datetime.fromtimestamp(now(), UTC).date()
    changelog = None
    if arguments.changelog:
        changelog = (arguments.changelog, read_named(arguments.changelog, "--changelog"))
    asked = Asked(
        today,
        arguments.strict,
        load_change(Path(arguments.diff)) if arguments.diff else None,
        changelog,
        load_repository(Path(arguments.repo)) if arguments.repo else None,
        _host(arguments.github_api, session) if arguments.online else None,
    )
    subject: str | None = arguments.subject
    reports: list[WaiverReport]
    if subject is None:
        workspace = session.workspace
        reports = [check_number(workspace, number, asked) for number in waiver_numbers(workspace)]
        known = {f"{report.number}.md" for report in reports} | {f"{report.number}_zh.md" for report in reports}
        pages = sorted(p for p in workspace.waivers.glob("*.md") if p.name not in known | {"README.md"})
        reports += [check_file(path, workspace.shown(path), asked) for path in pages]
    elif subject.removeprefix("#").isdecimal():
        reports = [check_number(session.workspace, int(subject.removeprefix("#")), asked)]
    else:
        reports = [check_file(Path(subject), subject, asked)]
    for report in reports:
        for finding in (*report.findings, *report.not_cured):
            session.output.annotate(finding.severity, finding.code, finding.message, finding.file, finding.line)
    passed = all(report.passed for report in reports)
    document = {
        "kind": "waiver-check",
        "schemaVersion": 1,
        "rules": arguments.rules,
        "strict": arguments.strict,
        "passed": passed,
        "waivers": [report.to_json() for report in reports],
    }
    text = "\n\n".join(report.to_text() for report in reports) or "no waiver is here"
    session.output.answer(document, text)
    return worst_exit_code([report.exit_code for report in reports])


def _host(api: str | None, session: Session) -> CodeHost:
    """GitHub, asked with the token of GITHUB_TOKEN where there is one."""
    from imagebuild.host.environment import variable
    from imagebuild.registry.open import open_client
    from imagebuild.registry.secret import Secret
    from imagebuild.registry.web import WebReader
    from imagebuild.waiver.online import GITHUB_API, CodeHost

    base = api or GITHUB_API
    token = variable("GITHUB_TOKEN")
    transport = open_client(session.opener().registry_options()).transport
    return CodeHost(WebReader(transport, base, None if token is None else Secret(token)), base)
