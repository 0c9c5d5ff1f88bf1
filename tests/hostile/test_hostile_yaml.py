"""Texts made to exhaust, to confuse or to hide: each is refused with a code, quickly and without deep recursion."""

from __future__ import annotations

import pytest

from imagebuild.content.strict_yaml import DEPTH_LIMIT, NODE_LIMIT, SIZE_LIMIT, parse_yaml, plain_value
from imagebuild.errors import ImagebuildError, SeveralErrors


def codes(data: bytes) -> list[str]:
    with pytest.raises(ImagebuildError) as caught:
        parse_yaml(data, "f")
    return [one.code for one in caught.value.errors] if isinstance(caught.value, SeveralErrors) else [caught.value.code]


def test_a_billion_laughs_are_counted_before_they_are_made() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert codes("\n".join(lines).encode()) == ["yaml.too-large"]


def test_many_uses_of_one_large_value_are_counted() -> None:
    big = "a: &a [" + "1," * 2000 + "]\n"
    assert codes((big + "b: [" + "*a," * (NODE_LIMIT // 2000) + "]\n").encode()) == ["yaml.too-large"]
    assert len(plain_value(parse_yaml((big + "b: [*a, *a]\n").encode(), "f"))["b"][1]) == 2000


@pytest.mark.parametrize("unit", ["[", "{a: ", "- ", "? ", "[{b: "])
def test_deep_nesting_ends_at_the_bound(unit: str) -> None:
    # libyaml looks ahead for the end of a key, and may find its own bound of 1,000 levels first
    assert codes((unit * 200_000)[:SIZE_LIMIT].encode())[0] in ("yaml.too-deep", "yaml.syntax")
    assert codes((unit * 200).encode()) == ["yaml.too-deep"]


def test_the_deepest_allowed_nesting_is_read() -> None:
    text = "[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT
    value = plain_value(parse_yaml(text.encode(), "f"))
    for _ in range(DEPTH_LIMIT - 1):
        value = value[0]
    assert value == []
    assert codes(("[" + text + "]").encode()) == ["yaml.too-deep"]


def test_a_file_of_more_than_the_bound_is_not_read() -> None:
    assert codes(b"a: " + b"x" * SIZE_LIMIT) == ["yaml.too-large"]
    assert plain_value(parse_yaml(b"a: " + b"x" * (SIZE_LIMIT - 3), "f"))["a"][:2] == "xx"


def test_too_many_values_are_refused() -> None:
    assert codes(b"[" + b"1," * (NODE_LIMIT + 1) + b"]") == ["yaml.too-large"]


@pytest.mark.parametrize(
    "data",
    [
        b"a: \xff\n", b"a: \xc0\xaf\n", b"a: \xed\xa0\x80\n", b"a: \xf4\x90\x80\x80\n", b"\xff\xfea\x00:\x00 \x001\x00", b"a: \xe2\x82",
        "a: é\n".encode("latin-1"), "a: 1\n".encode("utf-16"), "a: 1\n".encode("utf-32-le")[:3] + b"\x80",
    ],
)  # fmt: skip
def test_other_encodings_are_refused(data: bytes) -> None:
    assert codes(data) == ["yaml.bad-encoding"]


def test_bytes_that_are_not_utf_8_have_their_line_and_column() -> None:
    with pytest.raises(ImagebuildError) as caught:
        parse_yaml("a: 1\nbé: ".encode() + b"\xff", "f")
    assert (caught.value.details["line"], caught.value.details["column"]) == (2, 5)


@pytest.mark.parametrize(
    "char", ["\0", "\x01", "\x07", "\x0b", "\x0c", "\x1b", "\x7f", "\x80", "\x85", "\x9f", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff", "\ufffe", "\uffff"]
)  # fmt: skip
def test_characters_that_hide_or_break_lines_are_refused_everywhere(char: str) -> None:
    for text in (f"a: x{char}y\n", f'a: "x{char}y"\n', f"a: 1 # x{char}y\n", f"x{char}y: 1\n"):
        assert codes(text.encode()) == ["yaml.bad-character"]


def test_the_same_characters_may_be_written_as_escapes() -> None:
    assert plain_value(parse_yaml(b'a: "\\0\\e\\u202e\\N\\L"\n', "f")) == {"a": "\0\x1b\u202e\x85\u2028"}


def test_a_byte_order_mark_at_the_start_is_skipped_and_lines_count_on() -> None:
    tree = parse_yaml(b"\xef\xbb\xbfa: 1\nb: 2\n", "f")
    assert plain_value(tree) == {"a": 1, "b": 2}
    assert codes(b"\xef\xbb\xbf\xef\xbb\xbfa: 1\n") == ["yaml.bad-character"]


def test_crlf_counts_as_one_line_and_a_lone_cr_is_refused() -> None:
    tree = parse_yaml(b"a: |\r\n  x\r\n  y\r\nb: 2\r\n", "f")
    assert plain_value(tree) == {"a": "x\ny\n", "b": 2}
    with pytest.raises(ImagebuildError) as caught:
        parse_yaml(b"a: 1\r\nb: 1\r\na: 2\r\n", "f")
    assert caught.value.details["line"] == 3
    assert codes(b"a: 1\rb: 2\r") == ["yaml.bad-character"]


def test_words_in_other_scripts_are_text_like_any_other() -> None:
    assert plain_value(parse_yaml("标题: 按并发选择\nё: \U0001f600\n".encode(), "f")) == {
        "标题": "按并发选择",
        "ё": "\U0001f600",
    }


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('a: "' + "\t" * 900_000 + "\n\t" * 60_000 + '"', "yaml.tab"),
        ("'" * 1_000_000 + "x", "yaml.syntax"),
        ("!" * 1_000_000, "yaml.tag"),
        ("%" * 1_000_000, "yaml.directive"),
        ("a: 1\n" * 200_000, "yaml.duplicate-key"),
        (":" * 1_000_000, "yaml.syntax"),
        ("a: " + "9" * 1_000_000, "yaml.bad-number"),
        ("&a " * 300_000, "yaml.syntax"),
        ("\t" * 1_000_000, "yaml.tab"),
    ],
)
def test_a_megabyte_of_one_sign_is_refused(text: str, code: str) -> None:
    assert codes(text.encode())[0] == code
