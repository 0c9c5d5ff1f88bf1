"""What the README tells people to type exists."""

from __future__ import annotations

import ast
import re

import pytest
from package_source import ROOT, modules

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def test_every_make_target_of_the_readme_exists() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", README, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= TARGETS


@pytest.mark.parametrize("command", ["make demo", "make test", "make lint", "make test-integration"])
def test_ci_runs_the_commands_of_the_readme(command: str) -> None:
    assert re.search(rf"^{command}$", CI, re.MULTILINE)


def test_what_ci_runs_is_test_all() -> None:
    assert re.search(r"^test-all: lint test test-integration$", MAKEFILE, re.MULTILINE)


def test_every_file_that_a_document_links_to_exists() -> None:
    broken = []
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("mailto:") and not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)} -> {target}")
    assert not broken, "\n".join(broken)


def test_every_page_can_be_found_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if target.endswith(".md") and "://" not in target:
                left.append((page.parent / target).resolve())
    lost = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if page not in reached)
    assert not lost, "no link leads to " + ", ".join(lost)


def test_the_options_that_pages_name_exist() -> None:
    """An option in a page's prose or commands, after a verb of ours."""
    from imagebuild.cli.options import Parser, actions_of, add_common
    from imagebuild.cli.options_page import parsers

    common = Parser()
    add_common(common)
    known = {name for action in actions_of(common) for name in action.option_strings} | {"--help", "--version"}
    by_verb: dict[str, set[str]] = {}
    for name, parser in parsers().items():
        by_verb.setdefault(name.split()[0], set(known)).update(
            option for action in actions_of(parser) for option in action.option_strings
        )
    wrong = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for verb, rest in re.findall(r"imagebuild ([a-z0-9]+)\b([^\n`|#]*)", text):
            for option in re.findall(r"(?<=\s)--?[a-zA-Z][a-z-]*", rest):
                if verb in by_verb and option not in by_verb[verb]:
                    wrong.append(f"{page.relative_to(ROOT)}: imagebuild {verb} {option}")
    assert not wrong, "\n".join(wrong)


def test_the_page_of_verbs_names_the_programs_verbs() -> None:
    from imagebuild.cli.verbs import VERBS

    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8").partition("## Verbs")[2]
    assert re.findall(r"^\| `([a-z0-9]+)` \|", page, re.MULTILINE) == [verb.name for verb in VERBS]


def test_hints_name_verbs_that_exist() -> None:
    """A hint that cannot be followed is worse than none."""
    from imagebuild.cli.verbs import VERBS

    known = {verb.name for verb in VERBS}
    wrong = []
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        words = re.findall(r"(?:^|[`:;(] ?|\brun )imagebuild ([a-z][a-z0-9-]*)", part.value)
                        wrong += [f"{module.where}:{node.value.lineno}: {w}" for w in words if w not in known]
    assert not wrong, "\n".join(wrong)
