"""The page of environment variables is what the parsers say."""

from pathlib import Path

from imagebuild.cli.options import actions_of
from imagebuild.cli.options_page import environment_page, parsers
from imagebuild.cli.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_lists_exactly_the_options_that_there_are() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text("utf-8")
    assert page == environment_page(), "run: python -m imagebuild.cli.options_page > docs/reference/environment.md"


def test_the_page_tells_what_each_option_of_each_verb_means() -> None:
    page = environment_page()
    for name, parser in parsers().items():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for option in actions_of(parser):
            assert f"{option.option_strings[-1]} " in section or f"{option.option_strings[-1]}`" in section, (
                name,
                option,
            )
        assert "|  |" not in section, f"{name}: a word without a meaning"


def test_every_verb_has_an_example_in_its_help() -> None:
    from importlib import import_module

    for verb in VERBS:
        text = import_module(verb.module).__doc__ or ""
        assert "Example" in text, verb.name
        assert f"imagebuild {verb.name}" in text, verb.name


def test_every_option_says_what_it_does() -> None:
    for name, parser in parsers().items():
        for action in parser._actions:
            assert action.help or action.metavar or action.dest == "targets", f"{name}: {action.dest}"
