"""`artifact` written into a stage, every other byte kept."""

from __future__ import annotations

import pytest

from imagebuild.errors import InputError
from imagebuild.overlay.stage_text import set_artifact

REF = "host.example/a:x-1@sha256:" + "1" * 64
HEAD = "schema: 1\nname: x\nchanges:\n  - delete: {path: a/b}   # a remark\n"


@pytest.mark.parametrize(
    ("stage", "result"),
    [
        (
            "  - stage: {dockerfile: d/x, out: {/a: r/a}}  # compiled\n",
            f"  - stage: {{artifact: {REF}, dockerfile: d/x, out: {{/a: r/a}}}}  # compiled\n",
        ),
        (
            "  - stage:\n      # a remark\n      dockerfile: d/x\n      out: {/a: r/a}\n",
            f"  - stage:\n      # a remark\n      artifact: {REF}\n      dockerfile: d/x\n      out: {{/a: r/a}}\n",
        ),
        (
            "  - stage: {dockerfile: d/x, artifact: old@sha256:0, out: {/a: r/a}}\n",
            f"  - stage: {{dockerfile: d/x, artifact: {REF}, out: {{/a: r/a}}}}\n",
        ),
        (
            "  - stage:\n      dockerfile: d/x\n      artifact: 'old one'   # where\n      out: {/a: r/a}\n",
            f"  - stage:\n      dockerfile: d/x\n      artifact: {REF}   # where\n      out: {{/a: r/a}}\n",
        ),
        (
            "  - stage:\n      artifact: old@sha256:0\n      dockerfile: d/x\n",
            f"  - stage:\n      artifact: {REF}\n      dockerfile: d/x\n",
        ),
    ],
)
@pytest.mark.parametrize("tail", ["", "guards:\n  r/a: {preimage: absent, postimage: absent}\n"])
def test_in_place(stage: str, result: str, tail: str) -> None:
    assert set_artifact(HEAD + stage + tail, 1, REF) == HEAD + result + tail


def test_the_numbered_one_of_several() -> None:
    stage = "  - stage: {dockerfile: d/x, out: {/a: r/a}}\n"
    assert set_artifact(HEAD + stage + stage, 2, REF).startswith(HEAD + stage + "  - stage: {artifact")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (HEAD, 0),
        (HEAD + "  - stage: {dockerfile: d/x, artifact: >-\n      folded\n      text\n    }\n", 1),
        (HEAD + "  - stage:\n      artifact: |\n        block\n      dockerfile: d/x\n", 1),
        ("- just a list\n", 0),
    ],
)
def test_what_cannot_be_done_in_place_changes_nothing(text: str, number: int) -> None:
    with pytest.raises(InputError):
        set_artifact(text, number, REF)
