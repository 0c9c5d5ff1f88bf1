"""What the README tells people to type exists."""

from __future__ import annotations

import re

import pytest
from package_source import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def test_every_make_target_of_the_readme_exists() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", README, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= TARGETS


@pytest.mark.parametrize("command", ["make demo", "make test", "make test-all"])
def test_ci_runs_the_commands_of_the_readme(command: str) -> None:
    assert re.search(rf"^{command}$", CI, re.MULTILINE)


def test_every_file_that_a_document_links_to_exists() -> None:
    broken = []
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("mailto:") and not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)} -> {target}")
    assert broken == []
