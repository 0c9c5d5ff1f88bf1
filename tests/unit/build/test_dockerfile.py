"""Reading Dockerfiles: instructions and lines as BuildKit sees them."""

from __future__ import annotations

import pytest

from imagebuild.build.dockerfile import expand, parse_dockerfile, with_argument
from imagebuild.errors import InputError


def parsed(text: str) -> list[tuple[int, int, str, str]]:
    found = parse_dockerfile(text.encode(), "x.Dockerfile")
    return [(one.line, one.end, one.keyword, one.rest) for one in found.instructions]


def test_instructions_with_their_lines() -> None:
    text = "# a remark\n\nfrom scratch AS one\n  RUN a \\\n    b\nCOPY --from=one /x /y\n"
    assert parsed(text) == [
        (3, 3, "FROM", "scratch AS one"),
        (4, 5, "RUN", "a     b"),
        (6, 6, "COPY", "/x /y"),
    ]


def test_remarks_and_empty_lines_within_an_instruction_are_left_out() -> None:
    assert parsed("FROM scratch\nRUN a \\\n# FROM evil\n\n  && b\nRUN c") == [
        (1, 1, "FROM", "scratch"),
        (2, 5, "RUN", "a   && b"),
        (6, 6, "RUN", "c"),
    ]


def test_a_continuation_with_blanks_behind_it_goes_on() -> None:
    assert parsed("FROM scratch\nRUN a \\ \t\n b")[1] == (2, 3, "RUN", "a  b")


def test_the_escape_directive() -> None:
    assert parsed("# escape=`\nFROM scratch\nRUN a `\n b\\\nRUN c") == [
        (2, 2, "FROM", "scratch"),
        (3, 4, "RUN", "a  b\\"),
        (5, 5, "RUN", "c"),
    ]


def test_directives_end_with_the_first_other_line() -> None:
    found = parse_dockerfile(b"# Syntax = docker/dockerfile:1\n# just words\n# escape=`\nFROM scratch\n", "x")
    assert dict(found.directives) == {"syntax": (1, "docker/dockerfile:1")}


def test_here_documents_are_no_instructions() -> None:
    text = 'FROM scratch\nRUN <<EOF cat <<-"END"\nFROM evil\nEOF\nCOPY evil /\n\tEND\nCOPY a b\n'
    assert [(line, keyword) for line, _, keyword, _ in parsed(text)] == [(1, "FROM"), (2, "RUN"), (7, "COPY")]


def test_a_here_string_or_shift_is_no_here_document() -> None:
    assert [keyword for _, _, keyword, _ in parsed("FROM scratch\nRUN x=$((1<<3)); cat <<< word\nRUN b\n")] == [
        "FROM",
        "RUN",
        "RUN",
    ]


def test_windows_line_ends_and_a_byte_order_mark() -> None:
    assert parsed("\ufeffFROM scratch\r\nRUN a \\\r\n b\r\n") == [(1, 1, "FROM", "scratch"), (2, 3, "RUN", "a  b")]


def test_flags() -> None:
    found = parse_dockerfile(
        b"FROM --platform=$BUILDPLATFORM scratch\nRUN --mount=type=bind,from=a --network=none x\n", "x"
    )
    assert found.instructions[0].flag("platform") == "$BUILDPLATFORM"
    assert found.instructions[1].flags == (("mount", "type=bind,from=a"), ("network", "none"))
    assert found.instructions[1].rest == "x"
    assert found.instructions[1].flag("security") is None


def test_words_of_an_array() -> None:
    found = parse_dockerfile(b'FROM scratch\nCOPY ["a b", "/c"]\nCOPY [a b\n', "x")
    assert found.instructions[1].words == ["a b", "/c"]
    assert found.instructions[2].words == ["[a", "b"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", 1),
        (b"RUN x\n", 1),
        (b"FROM scratch\n\xff\n", 2),
        (b"FROM scratch\nRUN <<EOF\nx\n", 2),
        (b"FROM scratch\n<html>\n", 2),
        (b"# escape=x\nFROM scratch\n", 1),
        (b"#" * (1 << 20) + b"\nFROM scratch", 1),
    ],
)
def test_what_is_no_dockerfile_is_refused_with_its_line(text: bytes, line: int) -> None:
    with pytest.raises(InputError) as caught:
        parse_dockerfile(text, "d/x.Dockerfile")
    assert caught.value.code == "stage.bad-dockerfile"
    assert caught.value.message.startswith(f"d/x.Dockerfile:{line}: ")


VALUES = {"A": "one", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("$A/x", "one/x"),
        ("${A}x", "onex"),
        ("$NONE", ""),
        ("${NONE:-w}", "w"),
        ("${EMPTY:-w}", "w"),
        ("${EMPTY-w}", ""),
        ("${A:-w}", "one"),
        ("${A:+w}", "w"),
        ("${EMPTY:+w}", ""),
        ("${EMPTY+w}", "w"),
        ("${NONE+w}", ""),
        (r"\$A", "$A"),
    ],
)
def test_variables(text: str, result: str) -> None:
    assert expand(text, VALUES, "x:1") == result


@pytest.mark.parametrize("text", ["${A", "$", "$1", "${A#x}", "${A%x}", "${}", "${A:?x}", "${A/x/y}"])
def test_what_cannot_be_read_is_never_guessed(text: str) -> None:
    with pytest.raises(InputError):
        expand(text, VALUES, "x:1")


def test_an_argument_is_declared_in_every_stage() -> None:
    text = b"ARG B=x\nFROM a \\\n  AS b\nRUN c\nFROM scratch\nCOPY d e\n"
    assert with_argument(parse_dockerfile(text, "x"), "T") == (
        b"ARG B=x\nFROM a \\\n  AS b\nARG T\nRUN c\nFROM scratch\nARG T\nCOPY d e\n"
    )
