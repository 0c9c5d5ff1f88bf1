"""waivers/NUMBER.yaml as a value."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from imagebuild.errors import ImagebuildError, SeveralErrors
from imagebuild.waiver.document import Chinese, RemovalPlan, UpstreamLink, Waiver, Why, load_waiver

WAIVER = """\
schema: 1
number: 4878
title: TEP shared expert
targets: [b300-vllm]
configs: [kimik3.1-fp4-b300-vllm-agentic-dspark]
patched: auto
why_unmodified_cannot_run: {text: it crashes, evidence: [https://x.org/log]}
upstream: [{url: https://github.com/vllm-project/vllm/pull/1, state: open}]
removal_plan: {condition: merged, delete: [docs/waiver/4878.md], expires: 2027-03-01}
zh: {title: 标题, why: 为何, removal_plan: 计划}
"""


def load(folder: Path, text: str, name: str = "4878.yaml") -> Waiver:
    (folder / name).write_text(text, encoding="utf-8")
    return load_waiver(folder / name)


def test_a_waiver_becomes_a_value(tmp_path: Path) -> None:
    assert load(tmp_path, WAIVER) == Waiver(
        4878,
        "TEP shared expert",
        ("b300-vllm",),
        Why("it crashes", ("https://x.org/log",)),
        RemovalPlan("merged", ("docs/waiver/4878.md",), date(2027, 3, 1)),
        ("kimik3.1-fp4-b300-vllm-agentic-dspark",),
        (UpstreamLink("https://github.com/vllm-project/vllm/pull/1", "open"),),
        zh=Chinese("标题", "为何", "计划"),
    )


def test_a_waiver_without_an_upstream_link_is_well_formed(tmp_path: Path) -> None:
    text = "".join(line + "\n" for line in WAIVER.splitlines() if not line.startswith(("upstream", "zh", "patched")))
    assert load(tmp_path, text).upstream == ()


def test_the_file_is_named_by_its_number_and_other_faults_are_told_too(tmp_path: Path) -> None:
    with pytest.raises(SeveralErrors) as caught:
        load(tmp_path, WAIVER + "removal: x\n", "tep.yaml")
    assert [(e.code, e.details["line"]) for e in caught.value.errors] == [
        ("waiver.name-mismatch", 2),
        ("schema.unknown-key", 11),
    ]


def test_what_is_patched_cannot_be_retyped(tmp_path: Path) -> None:
    with pytest.raises(ImagebuildError) as caught:
        load(tmp_path, WAIVER.replace("patched: auto", "patched: [vllm/envs.py]"))
    assert (caught.value.code, caught.value.details["line"]) == ("schema.wrong-type", 6)
