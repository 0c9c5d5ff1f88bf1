"""Rewriting overlay.yaml: one block changes, every other byte stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuild.content.digest import Digest
from imagebuild.content.strict_yaml import parse_yaml, plain_value
from imagebuild.errors import InputError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import DeleteChange, FileChange, Guard, PatchChange
from imagebuild.overlay.overlay_text import append_change, format_guards, remove_change, rewrite_guards

ONE, TWO, THREE = (Digest.of(text) for text in (b"1", b"2", b"3"))
TEXT = """\
# At the top.
schema: 1   # format
name: tep
description: >-
  Folded,
  with # no comment.

changes:   # in this order
  # first
  - patch: patches/0001-envs.patch
  # second
  - file: files/new.py   # whole
    to: vllm/new.py

# reviewed on Monday
guards:  # written by import
  # inside
  vllm/envs.py: {preimage: absent, postimage: "sha256:HEX"}

# About the rest.
license: Apache-2.0  # SPDX
""".replace("HEX", ONE.hex)


def test_only_the_guards_change() -> None:
    out = rewrite_guards(TEXT, {"vllm/b.py": Guard((ONE,), TWO, "1234567890", "12e4567890", 0o644)})
    head, tail = TEXT.split("guards:")[0], TEXT[TEXT.index("\n# About the rest.") :]
    assert out.startswith(head)
    assert out.endswith(tail)
    assert out[len(head) : -len(tail)] == (
        "guards:  # written by import\n  vllm/b.py:\n"
        f'    preimage: {ONE}\n    preimage_git: "1234567890"\n    postimage: {TWO}\n    postimage_git: "12e4567890"\n'
        '    mode: "0644"\n'
    )


def test_guards_are_added_where_there_are_none() -> None:
    text = "schema: 1\nname: tep # no newline"
    out = rewrite_guards(text, {"vllm/b.py": Guard((None,), TWO)})
    assert out == f"{text}\nguards:\n  vllm/b.py:\n    preimage: absent\n    postimage: {TWO}\n"


def test_several_preimages_and_platforms() -> None:
    text = format_guards(
        {"vllm/b.py": {Platform("linux", "arm64"): Guard((ONE, TWO), THREE)}, "vllm/a b.py": Guard((ONE,), None)}
    )
    assert plain_value(parse_yaml(text.encode(), "x")) == {
        "guards": {
            "vllm/a b.py": {"preimage": str(ONE), "postimage": "absent"},
            "vllm/b.py": {"linux/arm64": {"preimage": [str(ONE), str(TWO)], "postimage": str(THREE)}},
        }
    }
    assert format_guards({}) == "guards: {}\n"


def test_a_change_is_added_behind_the_last() -> None:
    out = append_change(TEXT, PatchChange("patches/0002-more.patch"))
    assert out == TEXT.replace("    to: vllm/new.py\n", "    to: vllm/new.py\n  - patch: patches/0002-more.patch\n")
    out = append_change("changes:\n- patch: a", FileChange("files/x", "vllm/x"))
    assert out == "changes:\n- patch: a\n- file: files/x\n  to: vllm/x\n"
    assert append_change("changes:\n- patch: a\n", DeleteChange(path="vllm/x")).endswith("- delete: {path: vllm/x}\n")


def test_a_change_is_taken_out_with_nothing_else() -> None:
    assert remove_change(TEXT, 0) == TEXT.replace("  - patch: patches/0001-envs.patch\n", "")
    assert remove_change(TEXT, 1) == TEXT.replace("  - file: files/new.py   # whole\n    to: vllm/new.py\n", "")


@pytest.mark.parametrize(
    "text", ["{schema: 1, changes: [{patch: a}], guards: {}}\n", "  schema: 1\n  guards: {}\n", "- a\n"]
)
def test_a_file_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        rewrite_guards(text, {})
    assert caught.value.code == "overlay.cannot-rewrite"


def test_changes_in_one_line_are_refused() -> None:
    for text in ("changes: [{patch: a}]\n", "changes: []\n", "name: x\n"):
        with pytest.raises(InputError) as caught:
            append_change(text, PatchChange("b"))
        assert caught.value.code == "overlay.cannot-rewrite"


REMARKS = st.sampled_from(["", "# remark\n", "\n", "\n# a: b\n\n", "  # indented\n"])


@given(st.lists(REMARKS, min_size=4, max_size=4), st.booleans(), st.sampled_from(["first", "last", "none"]))
def test_whatever_stands_around_the_guards_stays(remarks: list[str], comment: bool, where: str) -> None:
    block = f"guards:{' # why' if comment else ''}\n  vllm/a.py: {{preimage: absent, postimage: {ONE}}}\n"
    parts = ["name: tep\n", "license: MIT\n"]
    parts.insert({"first": 0, "last": 2, "none": 0}[where], "" if where == "none" else block)
    text = "".join(remark + part for remark, part in zip(remarks, [*parts, ""], strict=True))
    out = rewrite_guards(text, {"vllm/b.py": Guard((TWO,), THREE)})
    for line in ("name: tep\n", "license: MIT\n"):
        assert line in out
    kept = [remark for remark in remarks if remark.strip()]
    assert out.count("# remark") + out.count("# a: b") >= sum("indented" not in remark for remark in kept)
    assert rewrite_guards(out, {"vllm/b.py": Guard((TWO,), THREE)}) == out
