"""The door: parsing, exit codes, signals.  `imagebuild --version` answers before anything else is imported."""

from __future__ import annotations

import sys


def entry() -> None:
    """The console script.  Ends the process with the exit code of cli.md."""
    from imagebuild.cli.streams import settle_streams

    settle_streams()
    if sys.argv[1:] == ["--version"]:
        from imagebuild import __version__

        sys.stdout.write(f"imagebuild {__version__}\n")
        raise SystemExit(0)
    import gc

    # A run is short and makes few cycles: a seventh of a build without change went into looking for them, while modules
    # load and once more when the interpreter ends.
    gc.set_threshold(100_000)
    try:
        code = main(sys.argv[1:])
    finally:
        gc.freeze()
    raise SystemExit(code)


def main(argv: list[str]) -> int:
    """Runs one verb; returns its exit code and never raises but for SystemExit of `--help`."""
    import contextlib
    import signal

    from imagebuild.cli.output import Output, Unread
    from imagebuild.errors import ImagebuildError

    output = Output(json="--json" in argv)
    previous = None
    # outside the main thread somebody else decides about signals
    with contextlib.suppress(ValueError):
        previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        return _dispatch(argv, output)
    except _Terminated:
        return 143
    except KeyboardInterrupt:
        output.note("interrupted")
        return 130
    except Unread:
        return 0
    except ImagebuildError as error:
        output.error(error)
        return error.exit_code
    except OSError as error:
        known = _of_the_machine(error)
        if known is None:
            output.bug(error, verbose="-v" in argv or "--verbose" in argv)
            return 4
        output.error(known)
        return int(known.exit_code)
    except Exception as error:
        output.bug(error, verbose="-v" in argv or "--verbose" in argv)
        return 4
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _of_the_machine(error: OSError) -> "ImagebuildError | None":  # type: ignore[name-defined]  # noqa: F821, UP037
    """What is no fault of ours although nobody caught it where it came up: rights, room, a current folder that is gone."""
    import os

    from imagebuild.content.files import MACHINES, io_error
    from imagebuild.errors import InputError

    if error.errno in MACHINES:
        return io_error(error, f"using {error.filename}" if error.filename else "using a file")
    try:
        os.getcwd()
    except OSError:
        return InputError("cli.no-folder", "the current folder is gone", hint="cd to one that is there")
    return None


class _Terminated(BaseException):
    pass


def _terminate(signum: int, frame: object) -> None:
    raise _Terminated


def _dispatch(argv: list[str], output: "Output") -> int:  # type: ignore[name-defined]  # noqa: F821, UP037
    from importlib import import_module

    from imagebuild.cli.options import HelpFormatter, Parser, add_common, apply_environment
    from imagebuild.cli.verbs import find_verb

    name, before, after = _split(argv)
    if name is None:
        asked = bool({"-h", "--help"} & set(argv))
        if "--version" in argv and not asked:
            from imagebuild import __version__
            from imagebuild.cli.output import print_answer

            print_answer(f"imagebuild {__version__}\n")
            return 0
        if argv and not asked:
            from imagebuild.errors import InputError

            raise InputError(
                "cli.usage", f"{' '.join(argv)}: there is no verb", hint="imagebuild --help lists the verbs"
            )
        output.usage(asked)
        return 0 if asked else 2
    verb = find_verb(name)
    if verb is None:
        from difflib import get_close_matches

        from imagebuild.cli.verbs import VERBS
        from imagebuild.errors import InputError

        near = get_close_matches(name, [v.name for v in VERBS], 1)
        raise InputError(
            "cli.unknown-verb",
            f"there is no verb {name!r}",
            hint=_HABITS.get(name) or (f"did you mean: imagebuild {near[0]}" if near else "see imagebuild --help"),
        )
    module = import_module(verb.module)
    after = module.arrange(after) if hasattr(module, "arrange") else after
    parser = Parser(
        prog=f"imagebuild {name}",
        description=module.__doc__,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    for sub in getattr(parser, "subparsers_of_verb", [parser]):
        add_common(sub)
        apply_environment(sub)
    arguments = parser.parse_args(
        after[:1] + before + after[1:] if hasattr(parser, "subparsers_of_verb") else before + after
    )
    from imagebuild.cli.session import Session

    output.json = arguments.json
    output.quiet = arguments.quiet
    with Session(arguments, output) as session:
        code: int = module.run(arguments, session)
    return code


_HABITS = {"help": "imagebuild --help, or imagebuild VERB --help", "version": "imagebuild --version"}
"""What other programs have as verbs."""
_WITH_VALUE = ("-C", "--workspace", "--cache", "--events", "--plain-http", "--insecure", "--ca-bundle")


def _split(argv: list[str]) -> tuple[str | None, list[str], list[str]]:
    """Verb, common options before it, the rest: `imagebuild -C DIR build x` is `imagebuild build -C DIR x`."""
    before: list[str] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        if not word.startswith("-"):
            return word, before, argv[position + 1 :]
        before.append(word)
        if word in _WITH_VALUE and position + 1 < len(argv):
            position += 1
            before.append(argv[position])
        position += 1
    return None, before, []
