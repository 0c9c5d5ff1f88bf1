"""JSON that is edited without disturbing what one does not know."""

import pytest

from imagebuild.errors import InputError
from imagebuild.oci.json_text import DEPTH_LIMIT, NUMBER_LIMIT, NumberText, dump, parse, plain

KEPT = [
    b'{"b":1,"a":2}',
    b'{"n":[1e3,1E+2,-0,0.10,12345678901234567890123,1.0]}',
    '{"ä":"\u2028","e":"\\u0001\\n"}'.encode(),
    b'{"a":null,"b":true,"c":false,"d":{},"e":[]}',
]


@pytest.mark.parametrize("text", KEPT)
def test_order_and_spelling_survive(text: bytes) -> None:
    assert dump(parse(text, "t")) == text


def test_space_goes_and_values_stay() -> None:
    assert dump(parse(b' { "a" : [ 1 , 2.50 ] }\n', "t")) == b'{"a":[1,2.50]}'


def test_plain_gives_ordinary_numbers() -> None:
    assert plain(parse(b'{"a":[1,2.5,{"b":1e2}]}', "t")) == {"a": [1, 2.5, {"b": 100.0}]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a":1,"a":2}', "duplicate key"),
        (b'{"a":{"b":1,"b":1}}', "duplicate key"),
        (b'{"a":1,"\\u0061":2}', "duplicate key"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'{"a":-Infinity}', "not JSON"),
        (b'{"a":"\\ud800"}', "surrogates not allowed"),
        (b'{"\\udfff":1}', "surrogates not allowed"),
        (b'{"a":"\xff"}', "utf-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"{} {}", "Extra data"),
        (b"", "Expecting value"),
        (b"{'a':1}", "Expecting"),
        (b'{"a":01}', "Expecting"),
        (b'{"a":1,}', ""),
        (b'{"a":"\x00"}', "control character"),
    ],
)
def test_refused(text: bytes, why: str) -> None:
    with pytest.raises(InputError, match="the thing is not valid JSON") as caught:
        parse(text, "the thing")
    assert caught.value.code == "oci.bad-json"
    assert why in caught.value.message


def test_nesting_is_bounded_and_never_ends_the_process() -> None:
    assert parse(b"[" * DEPTH_LIMIT + b"]" * DEPTH_LIMIT, "t")
    for depth in (DEPTH_LIMIT + 2, 1_000_000):
        with pytest.raises(InputError) as caught:
            parse(b"[" * depth + b"]" * depth, "t")
        assert caught.value.code == "oci.bad-json"


def test_numbers_are_bounded() -> None:
    assert plain(parse(b"9" * NUMBER_LIMIT, "t")) == int("9" * NUMBER_LIMIT)
    with pytest.raises(InputError, match="a number of"):
        parse(b"9" * (NUMBER_LIMIT + 1), "t")


def test_a_float_has_no_text_of_ours() -> None:
    with pytest.raises(TypeError, match="float"):
        dump({"a": 1.5})


def test_numbers_compare_by_spelling() -> None:
    assert NumberText("1") == NumberText("1")
    assert NumberText("1") != NumberText("1.0")
    assert NumberText("1") != 1
    assert len({NumberText("1"), NumberText("1")}) == 1
    assert repr(NumberText("1")) == "NumberText('1')"
