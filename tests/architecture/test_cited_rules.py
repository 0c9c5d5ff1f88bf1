"""The code cites the rules that it implements as `images.md, Reading 4`: those rules stand in docs."""

from __future__ import annotations

import re

from package_source import ROOT, modules

OURS = "architecture|cli|evidence|formats|images|registry"
"""Other names that end so (descriptor.md, layer.md) are image-spec's."""
CITED = re.compile(rf"\b({OURS})\.md\b(?:, (Reading|Writing) (\d+))?")


def test_every_cited_document_and_rule_exists() -> None:
    documents = {path.stem: path for path in (ROOT / "docs").rglob("*.md")}
    text = documents["images"].read_text(encoding="utf-8")
    reading, _, writing = text.partition("## Writing the layers")
    rules = {
        "Reading": set(re.findall(r"^(\d+)\. ", reading, re.MULTILINE)),
        "Writing": set(re.findall(r"^(\d+)\. ", writing, re.MULTILINE)),
    }
    assert len(rules["Reading"]) == 8
    assert len(rules["Writing"]) == 11
    wrong = []
    for module in modules():
        for name, part, number in CITED.findall(module.path.read_text(encoding="utf-8")):
            if name not in documents or (part and number not in rules[part]):
                wrong.append(f"{module.where}: {name}.md {part} {number}".rstrip())
    assert not wrong, "\n".join(wrong)
