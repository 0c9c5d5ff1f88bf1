"""stdout is the answer, stderr is everything else (cli.md, Common)."""

from __future__ import annotations

import contextlib
import json as json_module
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

from imagebuild.cli.streams import silence
from imagebuild.content.files import io_faults
from imagebuild.errors import ImagebuildError, SeveralErrors, UnavailableError, clean
from imagebuild.host.environment import variable

NARROWEST = 40
"""Columns below which a terminal is left to break lines itself; some say 0."""


class Output:
    """Where a verb's answer goes.  With `json` the answer is exactly one document."""

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self._answered = False

    def answer(self, document: Mapping[str, Any], text: str, *, whole: bool = False) -> None:
        """The answer: the document with --json, the text without.  Once a run.  A terminal gets lines of its width, but for
        text that is a file's (`whole`)."""
        if self._answered:
            raise AssertionError("a verb answers once")
        self._answered = True
        if self.json:
            print_answer(_json_text(document))
        elif text:
            shown = clean(text, len(text) + 1)
            print_answer((shown if whole else _fitted(shown, sys.stdout)) + "\n")

    def note(self, text: str) -> None:
        """A line for people on stderr."""
        if not self.quiet:
            sys.stderr.write(_fitted(clean(text), sys.stderr) + "\n")

    def warn(self, text: str) -> None:
        sys.stderr.write(_fitted(f"warning: {clean(text)}", sys.stderr) + "\n")

    def error(self, error: ImagebuildError) -> None:
        """An error: on stderr always, as the document on stdout with --json when no answer was given."""
        self.error_lines(error)
        if self.json and not self._answered:
            self._answered = True
            _print_error(error.document())

    def error_lines(self, error: ImagebuildError) -> None:
        """An error on stderr only: its place in the answer is the caller's matter."""
        for one in error.errors if isinstance(error, SeveralErrors) else (error,):
            sys.stderr.write(_fitted(f"imagebuild: {one}", sys.stderr) + "\n")
            self._annotate(one)

    def bug(self, error: BaseException, *, verbose: bool) -> None:
        """An exception that nobody expected: our fault, exit 4."""
        lines = traceback.format_exception(error)
        shown = "".join(lines) if verbose else lines[-1]
        sys.stderr.write(
            f"imagebuild: this is a bug in imagebuild: {clean(shown, 20000)}"
            + ("" if verbose else "  (-v shows the whole trace)\n")
        )
        if self.json and not self._answered:
            document = {
                "kind": "error",
                "schemaVersion": 1,
                "code": "internal.bug",
                "message": clean(lines[-1].strip()),
                "hint": None,
                "details": {},
            }
            _print_error(document)

    def _annotate(self, error: ImagebuildError) -> None:
        file, line = error.details.get("file"), error.details.get("line")
        self.annotate(
            "blocking",
            error.code,
            error.message,
            file if isinstance(file, str) else "",
            line if isinstance(line, int) else 0,
        )

    def annotate(self, severity: str, code: str, message: str, file: str = "", line: int = 0) -> None:
        """GitHub's workflow command beside a finding (the runner reads them on stderr as well): `::error`, `::warning` or
        `::notice` for blocking, warning and note."""
        if variable("GITHUB_ACTIONS") != "true":
            return
        place = [f"file={_property(file)}"] if file else []
        if file and line:
            place.append(f"line={line}")
        place.append(f"title={_property(code)}")
        text = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        level = {"blocking": "error", "warning": "warning"}.get(severity, "notice")
        sys.stderr.write(f"::{level} {','.join(place)}::{text}\n")

    def usage(self, asked: bool) -> None:
        from imagebuild.cli.verbs import VERBS

        width = max(len(verb.name) for verb in VERBS)
        lines = [
            "usage: imagebuild VERB …",
            "",
            "A reproducible builder of patched LLM-engine images with patch provenance.",
            "",
        ]
        lines += [f"  {verb.name:<{width}}  {verb.summary}" for verb in VERBS]
        lines += [
            "",
            "imagebuild VERB --help tells more; imagebuild --version tells the version.",
            "first steps: imagebuild init my-images && cd my-images && imagebuild demo --small build/base",
        ]
        text = "\n".join(lines) + "\n"
        if asked:
            print_answer(text)
        else:
            sys.stderr.write(text)


class Unread(Exception):
    """Whoever read stdout has seen enough."""


def print_answer(text: str) -> None:
    """Writes to stdout, down to the file or pipe.

    Raises Unread where nobody reads any more, UnavailableError `content.disk-full` or `content.io`.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # the interpreter must not try once more, and complain, while it ends
        silence(sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise Unread from None
        with io_faults("stdout", "writing"):
            raise


def _print_error(document: Mapping[str, Any]) -> None:
    """The error decides the exit code, whether or not its document can be written."""
    with contextlib.suppress(Unread, UnavailableError):
        print_answer(_json_text(document))


def _json_text(document: Mapping[str, Any]) -> str:
    """Escaped where the stream's encoding could not hold every character: the escapes of JSON, not the stream's."""
    unicode = (sys.stdout.encoding or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")
    return json_module.dumps(document, indent=2, ensure_ascii=not unicode) + "\n"


def _fitted(text: str, stream: TextIO) -> str:
    """The text within the width of the terminal that the stream is; unchanged for a pipe or a file."""
    if not stream.isatty():
        return text
    import os

    from imagebuild.cli.wrapping import fit

    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return text
    return fit(text, width) if width >= NARROWEST else text


def _property(text: str) -> str:
    for char, escaped in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(char, escaped)
    return text
