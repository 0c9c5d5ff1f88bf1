"""The strict YAML reader: what scalars mean, and each refusal with its line and column."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content import yaml_tree
from imagebuild.content.strict_yaml import (
    FAULT_LIMIT,
    ListNode,
    MapNode,
    ScalarNode,
    load_yaml,
    parse_yaml,
    plain_value,
    resolve_plain,
)
from imagebuild.errors import ImagebuildError, InputError, SeveralErrors


def faults(text: str | bytes) -> list[tuple[str, int, int]]:
    """(code, line, column) of every fault of a text."""
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ImagebuildError) as caught:
        parse_yaml(data, "x.yaml")
    error = caught.value
    every = error.errors if isinstance(error, SeveralErrors) else (error,)
    for one in every:
        assert isinstance(one, InputError)
        assert one.message.startswith(f"x.yaml:{one.details['line']}: ")
        assert one.details["file"] == "x.yaml"
    return [(one.code, one.details["line"], one.details["column"]) for one in every]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("12", 12), ("-3", -3), ("+7", 7), ("0", 0),
        ("0o17", 15), ("0x1F", 31), ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("-1.5E-2", -0.015),
        (".inf", float("inf")), ("-.INF", float("-inf")),
        # text in YAML 1.2, something else in 1.1
        ("yes", "yes"), ("on", "on"), ("off", "off"), ("n", "n"), ("1:30", "1:30"), ("2026-11-30", "2026-11-30"), ("1_000", "1_000"),
        ("0b11", "0b11"), ("=", "="),
        # octal to one reader, decimal to the next
        ("0777", "0777"), ("00", "00"), ("01.5", "01.5"), ("-07", "-07"),
        ("9223372036854775807", (1 << 63) - 1), ("-9223372036854775808", -(1 << 63)), ("tRUE", "tRUE"), ("0xG", "0xG"), ("+", "+"), (".", "."),
        ("1.6.1", "1.6.1"), ("sha256:12", "sha256:12"), ("0x", "0x"), ("064565cf1e", "064565cf1e"),
    ],
)  # fmt: skip
def test_plain_scalars_mean_what_the_core_schema_says(text: str, value: Any) -> None:
    read = resolve_plain(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "9223372036854775808",
        "-9223372036854775809",
        "9" * 5000,
        "0x" + "f" * 40,
        "0o" + "7" * 40,
        "1e999",
        "1e" + "9" * 5000,
    ],
)
def test_numbers_that_do_not_fit_are_refused(text: str) -> None:
    assert faults(f"\na: {text}\n") == [("yaml.bad-number", 2, 4)]


def test_quotes_make_text() -> None:
    assert plain_value(parse_yaml(b'{a: "1", b: \'true\', c: "\\x41\\n"}', "f")) == {"a": "1", "b": "true", "c": "A\n"}


def test_a_quoted_merge_sign_is_a_key_like_any_other() -> None:
    assert plain_value(parse_yaml(b'"<<": 1\n', "f")) == {"<<": 1}


def test_nodes_keep_order_place_and_the_text_as_written() -> None:
    tree = parse_yaml(b"z: 0x10\na:\n  - b: 1.50\n", "x.yaml")
    assert isinstance(tree, MapNode)
    assert list(tree.entries) == ["z", "a"]
    key, value = tree.entries["z"]
    assert (key.line, key.column) == (1, 1)
    assert value == ScalarNode(16, "0x10", True, "x.yaml", 1, 4)
    items = tree.entries["a"][1]
    assert isinstance(items, ListNode)
    assert (items.line, items.column) == (3, 3)
    inner = items.items[0]
    assert isinstance(inner, MapNode)
    number = inner.entries["b"][1]
    assert isinstance(number, ScalarNode)
    assert (number.text, number.value, number.line, number.column) == ("1.50", 1.5, 3, 8)


def test_an_alias_gives_the_node_that_it_names() -> None:
    tree = parse_yaml(b"a: &x [1, 2]\nb: *x\nc: &y text\nd: [*y, *y]\n", "f")
    assert plain_value(tree) == {"a": [1, 2], "b": [1, 2], "c": "text", "d": ["text", "text"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", [("yaml.duplicate-key", 3, 1)]),
        ('a: 1\n"a": 3\n', [("yaml.duplicate-key", 2, 1)]),
        ("a: {b: 1, b: 2}\n", [("yaml.duplicate-key", 1, 11)]),
        ("a: 1\n1: b\n", [("yaml.key-not-text", 2, 1)]),
        ("true: b\n", [("yaml.key-not-text", 1, 1)]),
        ("? [a]\n: b\n", [("yaml.key-not-text", 1, 3)]),
        ("b: &m {}\na:\n  <<: *m\n", [("yaml.merge-key", 3, 3)]),
        ("a:\n\tb: 1\n", [("yaml.tab", 2, 1)]),
        ("a:\tb\n", [("yaml.tab", 1, 3)]),
        ("a: b\tc\n", [("yaml.tab", 1, 5)]),
        ("a: 'b\n\tc'\n", [("yaml.tab", 2, 1)]),
        ("a: |\n  \tb\n", [("yaml.tab", 2, 3)]),
        ("a: b\t# c\n", [("yaml.tab", 1, 5)]),
        ("a: &x \t'b'\n", [("yaml.tab", 1, 7)]),
        ("a: !!str 5\n", [("yaml.tag", 1, 4)]),
        ("a: !x {}\n", [("yaml.tag", 1, 4)]),
        ("a: ! 5\n", [("yaml.tag", 1, 4)]),
        ("%TAG ! tag:x,2000:\n--- a\n", [("yaml.directive", 1, 1)]),
        ("# c\n%YAML 1.1\n--- a\n", [("yaml.directive", 2, 1)]),
        ("%NEW x\n--- a\n", [("yaml.directive", 1, 1)]),
        ("--- a\n--- b\n", [("yaml.several-documents", 2, 1)]),
        ("", [("yaml.empty", 1, 1)]),
        ("# nothing\n\n", [("yaml.empty", 1, 1)]),
        ("a: &x [1, *x]\n", [("yaml.alias", 1, 11)]),
        ("a: *x\n", [("yaml.alias", 1, 4)]),
        ("a: &x 1\nb: &x 2\n", [("yaml.alias", 2, 4)]),
        ("a: [1, 2\nb: 3\n", [("yaml.syntax", 2, 2)]),
        ("a: {u: x?y}\n", [("yaml.syntax", 1, 8)]),
        ("a: 'x\n", [("yaml.syntax", 2, 1)]),
        ('a: "\\ud800"\n', [("yaml.syntax", 1, 7)]),
    ],
)  # fmt: skip
def test_each_refusal_has_its_line_and_column(text: str, expected: list[tuple[str, int, int]]) -> None:
    assert faults(text) == expected


def test_every_fault_of_a_text_is_told_at_once_in_its_order() -> None:
    text = "a: 1\nb: !t 2\na: 3\n7: x\nc: &q 1\nd: *r\ne: 99999999999999999999\n"
    assert [(code, line) for code, line, _ in faults(text)] == [
        ("yaml.tag", 2),
        ("yaml.duplicate-key", 3),
        ("yaml.key-not-text", 4),
        ("yaml.alias", 6),
        ("yaml.bad-number", 7),
    ]


def test_no_more_than_a_page_of_faults_is_told() -> None:
    assert len(faults("a: 1\n" * 500)) == FAULT_LIMIT


def test_a_duplicate_says_where_the_first_one_stands() -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(b"\nname: a\n\nname: b\n", "t.yaml")
    assert caught.value.hint is not None
    assert "line 2" in caught.value.hint
    assert caught.value.details["key"] == "name"


@pytest.mark.parametrize(
    "text",
    [
        'a: "b\tc"\n', "a: 'b\tc'\n", "a: |\n  b\n  \tc\n  d\te\n", "a: 1 # b\tc\n", "# a\tb\na: 1\n", "a: | #\tc\n  b\n", "a:\n  - 'x\ty'\n",
        "a: 'b # c\td'\n", 'a: "b\n  c\td"\n',
    ],
)  # fmt: skip
def test_tabs_may_stand_in_quotes_comments_and_block_text(text: str) -> None:
    assert isinstance(parse_yaml(text.encode(), "f"), MapNode)


def test_the_version_directive_of_1_2_is_read() -> None:
    assert plain_value(parse_yaml(b"%YAML 1.2\n---\na: on\n...\n", "f")) == {"a": "on"}


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    for path in (tmp_path / "no.yaml", tmp_path / "file" / "x.yaml", tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(ImagebuildError) as caught:
            load_yaml(path)
        assert caught.value.code in ("yaml.missing", "content.io")


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.yaml")
    with pytest.raises(InputError) as caught:
        load_yaml(tmp_path / "t.yaml")
    assert caught.value.code == "yaml.missing"


def test_a_loaded_file_is_named_as_it_is_shown(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(InputError) as caught:
        load_yaml(tmp_path / "t.yaml", "manifests/x/target.yaml")
    assert caught.value.message.startswith("manifests/x/target.yaml:2: ")


def test_without_libyaml_the_python_scanner_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_tree.yaml, "__with_libyaml__", False)
    assert isinstance(yaml_tree.event_source("a: 1"), yaml_tree.PythonEvents)
    assert plain_value(parse_yaml(b"a: [1, on, {b: 'c'}]\n", "f")) == {"a": [1, "on", {"b": "c"}]}
    assert faults("a: 1\n\tb: 2\n") == [("yaml.tab", 2, 1)]
    # what libyaml refuses by itself is refused here too
    assert faults("a: |\n  \tb\n") == [("yaml.tab", 1, 4)]
    assert faults("a: [b:]\n") == [("yaml.syntax", 1, 5)]
    assert faults('a: "\\U00110000"\n') == [("yaml.syntax", 1, 1)]
    assert faults('a: "\\ud800"\n') == [("yaml.bad-character", 1, 4)]
