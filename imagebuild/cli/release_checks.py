"""The checks that this machine can run for a release: the verbs themselves, their answer heard instead of printed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from imagebuild.cli.output import Output
from imagebuild.cli.session import Session

if TYPE_CHECKING:
    from imagebuild.release.request import ReleaseRequest, RunCheck


class _Heard(Output):
    """Keeps the answer of a verb that another one runs."""

    document: Mapping[str, Any] | None = None

    def answer(self, document: Mapping[str, Any], text: str, *, whole: bool = False) -> None:
        self.document = document


def checks_here(request: ReleaseRequest, arguments: argparse.Namespace, session: Session) -> dict[str, RunCheck]:
    """Smoke and GSM8K, run for every platform of the image with the runner and the site of the call.  Whether that works
    on this machine shows when it is tried."""
    where = [word for name in ("runner", "site") if (text := getattr(arguments, name)) for word in (f"--{name}", text)]
    return {
        "smoke": partial(_smoke, request, where, session),
        "gsm8k": partial(_gsm8k, request, where, arguments.data, session),
    }


def _smoke(request: ReleaseRequest, where: Sequence[str], session: Session) -> str:
    platforms = [word for name in request.images for word in ("--platform", name)]
    return _told(_heard("verb_smoke", [request.name, *platforms, *where], session))


def _gsm8k(request: ReleaseRequest, where: Sequence[str], data: str | None, session: Session) -> str:
    if data is None:
        return "--data names no folder with GSM8K's questions"
    found = []
    for name in request.images:
        _heard("gsm8k_run", [request.name, "--platform", name, "--data", data, *where], session)
        found.append({**_heard("gsm8k_gate", [request.name, "--platform", name], session), "platform": name})
    return _told({"results": found})


def _heard(module_name: str, words: Sequence[str], session: Session) -> Mapping[str, Any]:
    """Runs a verb (or an action) with these words and this session's own settings; its document.  Raises what it
    raises."""
    from imagebuild.cli.options import Parser, add_common, apply_environment

    module = import_module(f"imagebuild.cli.{module_name}")
    parser = Parser(prog=f"imagebuild {module_name}", allow_abbrev=False)
    module.configure(parser)
    add_common(parser)
    apply_environment(parser)
    inner_arguments = parser.parse_args(list(words))
    common = ("workspace", "cache", "quiet", "verbose", "plain_http", "insecure", "ca_bundle")
    for name in common:
        setattr(inner_arguments, name, getattr(session.arguments, name))
    output = _Heard(quiet=session.output.quiet)
    inner = Session(inner_arguments, output)
    inner.progress, inner.emitter = session.progress, session.emitter
    module.run(inner_arguments, inner)
    return output.document or {}


def _told(document: Mapping[str, Any]) -> str:
    """The verdict of a check's document, or of several, in words."""
    each = document.get("results") or [document]
    return "; ".join(
        f"{item.get('platform') or item.get('target') or 'it'}: {item.get('verdict')}"
        + (f", {item['reason']}" if item.get("reason") else "")
        for item in each
    )
