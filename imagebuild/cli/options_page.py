"""The page of every option, what it means and its environment variable, made from the parsers themselves.

`python -m imagebuild.cli.options_page` prints it; a test keeps docs/reference/environment.md equal.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from imagebuild.cli.options import Parser, actions_of, add_common, variable_of
from imagebuild.cli.verbs import VERBS

_HEAD = """# Options and their variables

What each verb does is told [elsewhere](cli.md); here stand the options, first by their variables, then
verb by verb. `imagebuild release TARGET` is short for `imagebuild release run TARGET`.

Every option has a variable (`--key` has two: `IMAGEBUILD_SIGNING_KEY` names the private key of what signs, `IMAGEBUILD_KEY` the
public keys of `verify`). An option on the command line wins over its variable. Flags take `1`, `true`, `yes`, `on`
and `0`, `false`, `no`, `off`; options that may be repeated take words separated by spaces.

Besides these: `SOURCE_DATE_EPOCH` (seconds; read by `lock` only, becomes the image's time), `XDG_CACHE_HOME`,
`DOCKER_CONFIG`, `REGISTRY_AUTH_FILE`, `HTTPS_PROXY`, `NO_PROXY`, `CI` (no live bars), `NO_COLOR`, `GITHUB_ACTIONS`
(annotations). Runners read `DOCKER_HOST`, `IMAGEBUILD_OCI_RUNTIME` (the program that starts OCI bundles) and
`IMAGEBUILD_DRIVER_LIBRARIES` (folders of the NVIDIA driver's libraries, parted by `:`).

| variable | option | verbs |
| --- | --- | --- |
"""


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Each verb's parser (each action's, for verbs that have actions), without the common options."""
    out: dict[str, argparse.ArgumentParser] = {}
    for verb in VERBS:
        parser = Parser(prog=f"imagebuild {verb.name}")
        import_module(verb.module).configure(parser)
        subs = getattr(parser, "subparsers_of_verb", None)
        if subs is None:
            out[verb.name] = parser
        else:
            out.update({sub.prog.removeprefix("imagebuild "): sub for sub in subs})
    return out


def environment_page() -> str:
    """The page's Markdown."""
    common = Parser(prog="imagebuild")
    add_common(common)
    rows = {variable_of(action): (_names(action), "all") for action in actions_of(common)}
    users: dict[str, tuple[str, list[str]]] = {}
    for name, parser in parsers().items():
        for action in actions_of(parser):
            users.setdefault(variable_of(action), (_names(action), []))[1].append(name)
    rows.update({variable: (names, ", ".join(verbs)) for variable, (names, verbs) in users.items()})
    table = "".join(f"| `{name}` | `{rows[name][0]}` | {rows[name][1]} |\n" for name in sorted(rows))
    verbs = {"every verb": common, **parsers()}
    return _HEAD + table + "".join(_meanings(name, parser) for name, parser in verbs.items())


def _meanings(name: str, parser: argparse.ArgumentParser) -> str:
    """A verb's words and options, each with what its help says."""
    rows = [
        f"| `{_typed(action)}` | {_help(action)} |\n"
        for action in parser._actions
        if action.dest != "help" and action.help is not argparse.SUPPRESS
    ]
    return f"\n## {name}\n\n| word or option | meaning |\n| --- | --- |\n" + "".join(rows) if rows else ""


def _typed(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None:
        value = "|".join(map(str, action.choices))
    names = ", ".join(action.option_strings)
    shown = " ".join(part for part in (names, value if action.nargs != 0 else "") if part)
    return shown.replace("|", "\\|")


def _help(action: argparse.Action) -> str:
    return (action.help or _WORDS.get(_typed(action), "")).replace("|", "\\|").replace("%%", "%")


_WORDS = {"TARGET": "a target's name", "NAME": "an overlay's name"}


def _names(action: argparse.Action) -> str:
    return next(name for name in action.option_strings if name.startswith("--"))


if __name__ == "__main__":
    sys.stdout.write(environment_page())
