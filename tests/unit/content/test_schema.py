"""The schema engine: values, faults with their place, nearest words, all faults at once."""

from __future__ import annotations

from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from imagebuild.content.schema import (
    Boolean,
    ByKey,
    Field,
    Integer,
    List,
    Map,
    Number,
    Object,
    PerKey,
    Schema,
    Shape,
    Text,
    build_each,
    json_schema,
    locate,
    nearest,
    validate,
)
from imagebuild.content.strict_yaml import ScalarNode, parse_yaml
from imagebuild.errors import ImagebuildError, InputError, SeveralErrors


def read(text: str, schema: Schema) -> Any:
    return validate(parse_yaml(text.encode(), "f.yaml"), schema)


def faults(text: str, schema: Schema) -> list[InputError]:
    with pytest.raises(ImagebuildError) as caught:
        read(text, schema)
    every = caught.value.errors if isinstance(caught.value, SeveralErrors) else (caught.value,)
    return [error for error in every if isinstance(error, InputError)]


def fault(text: str, schema: Schema) -> InputError:
    (only,) = faults(text, schema)
    return only


SERVER = Object(
    {
        "host": Field(Text(), "where", required=True),
        "port": Field(Integer(minimum=1, maximum=65535)),
        "tags": Field(List(Text(), unique=True)),
        "ratio": Field(Number()),
        "on": Field(Boolean()),
    },
    "a server",
)


def test_a_good_document_gives_its_values() -> None:
    value = read("host: h\nport: 80\ntags: [a, b]\nratio: 0.90\n'on': true\n", SERVER)
    assert value == {"host": "h", "port": 80, "tags": ("a", "b"), "ratio": Decimal("0.90"), "on": True}
    assert str(value["ratio"]) == "0.90"


def test_every_fault_is_told_with_file_line_column_and_key() -> None:
    found = faults("port: no\ntags:\n  - a\n  - 5\n  - a\nhots: x\nratio: 2\n", SERVER)
    assert [(e.code, e.details["line"], e.details["column"], e.details["key"]) for e in found] == [
        ("schema.missing-key", 1, 1, ""),
        ("schema.wrong-type", 1, 7, "port"),
        ("schema.wrong-type", 4, 5, "tags[1]"),
        ("schema.duplicate", 5, 5, "tags[2]"),
        ("schema.unknown-key", 6, 1, "hots"),
        ("schema.bad-value", 7, 8, "ratio"),
    ]
    assert all(e.message.startswith(f"f.yaml:{e.details['line']}: ") for e in found)


def test_an_unknown_key_names_the_nearest_that_is_not_there_yet() -> None:
    assert fault("host: h\nprot: 1\n", SERVER).hint == "did you mean port?"
    assert fault("host: h\nhots: 1\n", SERVER).hint == "did you mean host?"
    assert fault("host: h\nzzzzzzzz: 1\n", SERVER).hint is None


def test_a_number_in_the_place_of_text_says_how_to_write_it() -> None:
    assert fault("host: 1.10\n", SERVER).hint == 'quote it: "1.10"'
    assert fault("host: true\n", SERVER).hint == 'quote it: "true"'
    assert fault("host:\n", SERVER).found == "nothing"
    assert fault("host: [a]\n", SERVER).found == "a list"


def test_another_format_number_hides_what_else_is_unknown() -> None:
    schema = Object({"schema": Field(Integer(only=1), required=True), "a": Field(Text())}, "x")
    assert fault("schema: 2\nnew: 1\n", schema).code == "schema.unknown-version"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('"a\\nb"', "schema.bad-value"),
        ('"a\\0b"', "schema.bad-value"),
        ('"a\\x7fb"', "schema.bad-value"),
        ('"\\N"', "schema.bad-value"),
        ('""', "schema.bad-value"),
        ("x" * 4097, "schema.bad-value"),
    ],
)
def test_text_is_one_line_without_control_characters(text: str, code: str) -> None:
    assert fault(text, Text()).code == code


def test_text_may_be_allowed_lines_or_nothing_or_a_pattern_only() -> None:
    assert read('"a\\n\\tb"', Text(lines=True)) == "a\n\tb"
    assert read('""', Text(empty=True)) == ""
    assert read("abc", Text(pattern="[a-c]+")) == "abc"
    # fullmatch: neither a prefix nor a trailing line break will do
    assert fault("abcd", Text(pattern="[a-c]+")).code == "schema.bad-value"
    assert fault('"abc\\n"', Text(pattern="[a-c]+")).code == "schema.bad-value"


def test_the_own_error_of_a_value_gets_its_place() -> None:
    def parse(text: str) -> str:
        if text != "good":
            raise InputError("x.bad", "not good", expected="good", found=text, hint="be good")
        return "GOOD"

    schema = Object({"a": Field(List(Text(parse=parse)))}, "x")
    assert read("a: [good]\n", schema) == {"a": ("GOOD",)}
    error = fault("a:\n - good\n - evil\n", schema)
    assert (error.code, error.details["line"], error.details["key"]) == ("x.bad", 3, "a[1]")
    assert (error.expected, error.found, error.hint) == ("good", "evil", "be good")
    # a pattern that does not fit asks the constructor first, since it knows better
    assert fault("bad", Text(pattern="good", parse=parse)).code == "x.bad"


def build_pair(values: dict[str, Any]) -> tuple[Any, Any]:
    low, high = values.get("low", 0), values.get("high", 9)
    if low > high:
        raise InputError("x.order", "low is above high", details={"key": "low", "with": ["high"]})
    return (low, high)


PAIR = Object({"low": Field(Integer()), "high": Field(Integer()), "note": Field(Text())}, "a pair", build_pair)


def test_what_a_constructor_refuses_is_placed_at_its_key() -> None:
    assert read("low: 1\n", PAIR) == (1, 9)
    error = fault("high: 1\nlow: 5\n", PAIR)
    assert (error.code, error.details["line"], error.details["key"]) == ("x.order", 2, "low")
    nested = fault("p:\n  low: 10\n", Object({"p": Field(PAIR)}, "x"))
    assert (nested.details["line"], nested.details["key"]) == (2, "p.low")


def test_contradictions_are_told_together_with_other_faults() -> None:
    assert [e.code for e in faults("high: 1\nlow: 5\nnote: 7\n", PAIR)] == ["x.order", "schema.wrong-type"]


def test_no_contradiction_is_invented_from_a_doubtful_key() -> None:
    assert [e.code for e in faults("low: 10\nhigh: many\n", PAIR)] == ["schema.wrong-type"]
    assert [e.code for e in faults("low: 10\nhihg: 20\n", PAIR)] == ["schema.unknown-key"]


def test_several_refusals_of_one_constructor_are_placed_each() -> None:
    def build(values: dict[str, Any]) -> None:
        raise SeveralErrors([InputError(f"x.{key}", key, details={"key": key}) for key in values])

    schema = Object({"a": Field(Text()), "b": Field(Text())}, "x", build)
    assert [(e.code, e.details["line"]) for e in faults("a: x\nb: y\n", schema)] == [("x.a", 1), ("x.b", 2)]


KINDS = ByKey(
    {"file": Object({"file": Field(Text(), required=True), "to": Field(Text(), required=True)}, "a file"), "env": Object({"env": Field(Text())}, "env")},
    "a change",
)  # fmt: skip


def test_the_kind_of_a_mapping_is_told_by_its_key() -> None:
    assert read("{file: a, to: b}", KINDS) == {"file": "a", "to": "b"}
    assert read("{env: a}", KINDS) == {"env": "a"}
    assert fault("{file: a}", KINDS).code == "schema.missing-key"
    assert fault("{file: a, to: b, x: 1}", KINDS).code == "schema.unknown-key"
    assert fault("{file: a, env: b}", KINDS).code == "schema.several-kinds"
    missing = fault("{fiel: a}", KINDS)
    assert (missing.code, missing.hint) == ("schema.no-kind", "did you mean file?")
    assert fault("{}", KINDS).found == "no key"
    assert fault("text", KINDS).code == "schema.wrong-type"


def test_shapes_are_told_apart_by_what_stands_there() -> None:
    schema = Shape("a or b", scalar=Text(), items=List(Text()))
    assert read("x", schema) == "x"
    assert read("[x]", schema) == ("x",)
    assert fault("{}", schema).code == "schema.wrong-type"


def test_one_mapping_or_one_for_each_key_with_a_mark() -> None:
    one = Object({"a": Field(Integer(), required=True)}, "x")
    schema = PerKey(one, Map(Text(choices=("l/x", "l/y")), one))
    assert read("{a: 1}", schema) == {"a": 1}
    assert read("{l/x: {a: 1}, l/y: {a: 2}}", schema) == {"l/x": {"a": 1}, "l/y": {"a": 2}}
    assert [e.code for e in faults("{l/z: {a: 1}}", schema)] == ["schema.bad-value"]


def test_maps_check_keys_and_values_and_keep_order() -> None:
    schema = Map(Text(pattern="[a-z]+"), Integer(), minimum=1)
    assert list(read("{b: 1, a: 2}", schema).items()) == [("b", 1), ("a", 2)]
    assert isinstance(read("{b: 1}", schema), MappingProxyType)
    assert [e.details["key"] for e in faults("{B: 1, c: x}", schema)] == ["B", "c"]
    assert fault("{}", schema).code == "schema.bad-value"
    assert fault("[]", schema).code == "schema.wrong-type"


@pytest.mark.parametrize("text", ["1.5", "'1'", "true", "-1", "70000", "[]", "~"])
def test_whole_numbers_are_whole_numbers_within_bounds(text: str) -> None:
    assert fault(text, Integer(maximum=65535)).code in ("schema.wrong-type", "schema.bad-value")


@pytest.mark.parametrize("text", [".nan", ".inf", "-.inf", "true", "'0.5'", "1.01", "-0.1"])
def test_numbers_are_finite_and_within_bounds(text: str) -> None:
    assert fault(text, Number()).code in ("schema.wrong-type", "schema.bad-value")


@pytest.mark.parametrize("text", ["yes", "on", "1", "'true'", "~"])
def test_truth_values_are_true_and_false(text: str) -> None:
    assert fault(text, Boolean()).code == "schema.wrong-type"
    assert read("false", Boolean()) is False
    assert fault("false", Boolean(only=True)).code == "schema.wrong-type"


@pytest.mark.parametrize(
    ("word", "known", "best"),
    [
        ("platfroms", ["platforms", "publish"], "platforms"),
        ("overlay", ["overlays", "overlay_x"], "overlays"),
        ("NAME", ["name"], "name"),
        ("x", ["y"], "y"),
        ("abc", ["xyz"], None),
        ("", ["a"], "a"),
        ("linux/amd65", ["linux/arm64", "linux/amd64"], "linux/amd64"),
        ("x" * 100_000, ["name"], None),
    ],
)
def test_the_nearest_word_is_near(word: str, known: list[str], best: str | None) -> None:
    assert nearest(word, known) == best


def test_locate_follows_keys_with_dots_and_list_places() -> None:
    tree = parse_yaml(b"a:\n  x/y.py:\n    - k: 1\n    - k: 2\n", "f")
    node = locate(tree, "a.x/y.py[1].k")
    assert isinstance(node, ScalarNode)
    assert (node.value, node.line) == (2, 4)
    assert locate(tree, "a.x/y.py[7].k").line == 3
    assert locate(tree, "a.nothing").line == 2
    assert locate(tree, "") is tree
    dotted = parse_yaml(b"a: {b: 1}\na.b:\n  c: 2\n", "f")
    assert locate(dotted, "a.b.c").line == 3
    assert locate(dotted, "a.x").line == 1


def test_each_of_a_mapping_is_built_and_every_error_keeps_its_place() -> None:
    def make(name: str, value: int) -> int:
        if value < 0:
            raise InputError("x.negative", name, details={"key": "v"} if value == -1 else None)
        return value * 2

    assert dict(build_each({"a": 1, "b": 2}, make, "m")) == {"a": 2, "b": 4}
    with pytest.raises(SeveralErrors) as caught:
        build_each({"a": -1, "b": -2, "c": 1}, make, "m")
    assert [error.details["key"] for error in caught.value.errors] == ["m.a.v", "m.b"]


def test_the_json_schema_says_the_same() -> None:
    document = json_schema(SERVER, name="server.json", title="server")
    assert document["required"] == ["host"]
    assert document["properties"]["port"] == {"type": "integer", "minimum": 1, "maximum": 65535}
    assert document["properties"]["host"]["description"] == "where"
    assert document["additionalProperties"] is False
    assert Text(pattern="a|b").json()["pattern"] == "^(?:a|b)$"
