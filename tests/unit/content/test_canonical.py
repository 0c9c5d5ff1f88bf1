"""Canonical JSON: one text for one value."""

import pytest

from imagebuild.content.canonical import canonical_json, document_json, load_json
from imagebuild.errors import InputError


def test_order_and_space_do_not_matter() -> None:
    assert canonical_json({"b": 1, "a": [True, None, "ü"]}) == '{"a":[true,null,"ü"],"b":1}'.encode()


def test_a_document_puts_one_fact_on_a_line_and_ends_in_a_newline() -> None:
    text = document_json({"a": {"x": 1, "y": 2}, "b": [1, 2]})
    assert text.endswith(b"}\n")
    assert b' "x": 1,\n' in text
    assert load_json(text, "t") == {"a": {"x": 1, "y": 2}, "b": [1, 2]}


@pytest.mark.parametrize("value", [1.0, float("nan"), {1: 2}, b"x", object()])
def test_what_has_no_single_text_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical_json({"k": value})


@pytest.mark.parametrize("text", [b'{"a":1,"a":2}', b"{", b"NaN", b'"\xff"', b"[" * 100000])
def test_ambiguous_or_broken_json_is_refused(text: bytes) -> None:
    with pytest.raises(InputError) as caught:
        load_json(text, "the file")
    assert caught.value.code == "content.bad-json"
    assert "the file" in caught.value.message
