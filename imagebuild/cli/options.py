"""Options that every verb has, and the rule by which each option has an environment variable."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from difflib import get_close_matches

from imagebuild.errors import InputError
from imagebuild.host.environment import variable

TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off")


class PrivateKey(argparse._StoreAction):
    """`--key` of what signs.  `--key` of `verify` names public keys, so one variable cannot serve both."""

    variable = "IMAGEBUILD_SIGNING_KEY"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help whose paragraphs are broken for the terminal; in a pipe they are as they were written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        import sys

        if not sys.stdout.isatty():
            return super()._fill_text(text, width, indent)
        from imagebuild.cli.wrapping import reflow

        return super()._fill_text(reflow(text.strip("\n"), width), width, indent)


class Parser(argparse.ArgumentParser):
    """argparse with our error type instead of a message and an exit."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise InputError("cli.usage", message, hint=self._nearest(message) or f"see {self.prog} --help")

    def _nearest(self, message: str) -> str | None:
        """The option that a misspelt one was meant to be."""
        if not message.startswith("unrecognized arguments: "):
            return None
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for word in message.partition(": ")[2].split():
            near = get_close_matches(word.partition("=")[0], known, 1) if word.startswith("--") else ()
            if near:
                return f"did you mean {near[0]}? see {self.prog} --help"
        return None

    def _print_message(self, message: str, file: object = None) -> None:
        """The help: an answer as every other."""
        from imagebuild.cli.output import print_answer

        print_answer(message)


class _FromVariable(list[object]):
    """Values of a variable.  argparse copies a default and appends what the command line says; that one wins."""

    def __copy__(self) -> list[object]:
        return []


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options of every verb (cli.md, Common)."""
    group = parser.add_argument_group("common options")
    group.add_argument(
        "-C", "--workspace", metavar="DIR", help="the folder with manifests/ and overlays/ (default: the nearest above)"
    )
    group.add_argument("--cache", metavar="DIR", help="the cache folder (default: $XDG_CACHE_HOME/imagebuild)")
    group.add_argument("--json", action="store_true", help="print exactly one JSON document")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    group.add_argument("-v", "--verbose", action="store_true", help="more on stderr; tracebacks of our own bugs")
    group.add_argument("--events", metavar="FILE", help="append events as JSON lines")
    group.add_argument(
        "--plain-http", metavar="HOST", action="append", default=[], help="speak HTTP to this registry host"
    )
    group.add_argument(
        "--insecure",
        metavar="HOST",
        action="append",
        default=[],
        help="do not verify this host's certificate (said in the evidence)",
    )
    group.add_argument("--ca-bundle", metavar="FILE", help="certificates to trust for registries")


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options of a parser that a variable can set: every one with a long name, except --help."""
    for action in parser._actions:
        if any(name.startswith("--") for name in action.option_strings) and action.dest != "help":
            yield action


def variable_of(action: argparse.Action) -> str:
    """`--plain-http` is IMAGEBUILD_PLAIN_HTTP; an action may have a `variable` of its own."""
    own = getattr(action, "variable", None)
    if isinstance(own, str):
        return own
    long = next(name for name in action.option_strings if name.startswith("--"))
    return "IMAGEBUILD_" + long[2:].upper().replace("-", "_")


def apply_environment(parser: argparse.ArgumentParser) -> None:
    """Makes each set variable the default of its option.

    Flags take 1/true/yes/on and 0/false/no/off; options that may be repeated take words separated by spaces.  Raises InputError `cli.usage`.
    """
    for action in actions_of(parser):
        name = variable_of(action)
        text = variable(name)
        if text is None:
            continue
        if isinstance(action, (argparse._StoreTrueAction, argparse._StoreFalseAction)):
            if text.lower() not in TRUE + FALSE:
                raise InputError(
                    "cli.usage", f"{name}={text!r}", expected="one of " + ", ".join(TRUE + FALSE), found=text
                )
            action.default = text.lower() in TRUE
        elif isinstance(action, argparse._AppendAction):
            # argparse converts no default that is a list
            convert = action.type if callable(action.type) else str
            action.default = _FromVariable(convert(word) for word in text.split())
        else:
            # argparse converts defaults that are text with the option's own type, and checks nothing else of them
            if action.choices is not None and text not in action.choices:
                raise InputError(
                    "cli.usage",
                    f"{name}={text!r}",
                    expected="one of " + ", ".join(map(str, action.choices)),
                    found=text,
                )
            action.default = text
            action.required = False
