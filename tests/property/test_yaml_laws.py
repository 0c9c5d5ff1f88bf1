"""Laws of the strict YAML reader: what PyYAML writes of core-schema values comes back equal, from either scanner; and the
two scanners agree on any text, accepted or refused."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from imagebuild.content.strict_yaml import parse_yaml, plain_value, quoted
from imagebuild.content.yaml_tree import PythonEvents, compose
from imagebuild.errors import ImagebuildError

CHARACTERS = st.characters(
    exclude_categories=("Cs", "Cc"),
    exclude_characters="\u2028\u2029\ufeff\ufffe\uffff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
)
TEXTS = st.text(CHARACTERS, max_size=12) | st.sampled_from(
    [
        "",
        "on",
        "yes",
        "0777",
        "1:30",
        "~",
        "null",
        "<<",
        "- a",
        "a: b",
        "#x",
        "1e3",
        "0o7",
        "2026-11-30",
        "a\n b\n",
        "\tx",
        "=",
        "!x",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS.filter(lambda key: key != "<<"), inner, max_size=4)
    ),
    max_leaves=12,
)


class CoreDumper(yaml.SafeDumper):
    """Writes text in double quotes, so that only the values' own form decides their type in any version of YAML."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


CoreDumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def _float(dumper: CoreDumper, value: float) -> yaml.Node:
    """With a point, without which PyYAML takes `1e-09` for text and writes a tag."""
    text = repr(value)
    return dumper.represent_scalar("tag:yaml.org,2002:float", text if "." in text else text.replace("e", ".0e", 1))


CoreDumper.add_representer(float, _float)


def outcome(text: str, python: bool) -> Any:
    try:
        tree = compose(text, "f", PythonEvents(text) if python else None)
    except ImagebuildError:
        return "refused"
    return tree


@given(TREES, st.booleans())
@example({"a": [1.5, {"b": None}], "0777": True}, False)
@example([1e-09, 1e20], False)
def test_what_pyyaml_writes_comes_back_equal_from_both_scanners(value: Any, flow: bool) -> None:
    text = yaml.dump(value, Dumper=CoreDumper, allow_unicode=True, sort_keys=False, default_flow_style=flow, width=60)
    read = plain_value(parse_yaml(text.encode(), "f"))
    assert read == value
    assert _types(read) == _types(value)
    assert plain_value(compose(text, "f", PythonEvents(text))) == value
    assert list(read) == list(value) if isinstance(value, dict) else True


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _types(item) for key, item in value.items()}
    return [_types(item) for item in value] if isinstance(value, list) else type(value)


FRAGMENTS = st.lists(
    st.sampled_from(
        ["a", "b:", ": ", "- ", "\n", "\n  ", "  ", " ", "[", "]", "{", "}", ", ", '"', "'", "#", " # c", "|\n  ", ">-\n ", "&x ", "*x",
         "? ", "!t ", "%", "---", "...", "~", "1", "0777", "\\n", "é", "<<: ", "\t", "\r\n", "true", "key: value\n", "- item\n"]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@settings(max_examples=400)
@given(FRAGMENTS)
def test_libyaml_and_the_python_scanner_give_the_same_tree_or_both_refuse(text: str) -> None:
    fast, slow = outcome(text, python=False), outcome(text, python=True)
    if fast == "refused" or slow == "refused":
        assert fast == slow
    else:
        assert plain_value(fast) == plain_value(slow)


@given(st.text(max_size=20))
@example("no")
@example("a: b")
@example("1e3")
@example("\ud800")
def test_quoted_text_reads_back_as_the_same_text(text: str) -> None:
    written = quoted(text)
    if any("\ud800" <= char <= "\udfff" for char in text):
        return
    assert "\n" not in written
    assert plain_value(parse_yaml(f"k: {written}\n".encode(), "f")) == {"k": text}
    assert yaml.safe_load(f"k: {written}\n") == {"k": text}
