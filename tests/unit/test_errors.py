"""The exception tree: exit codes, documents, and text from outside made safe."""

import pytest

from imagebuild.errors import (
    ImagebuildError,
    InputError,
    RefusedError,
    SeveralErrors,
    UnavailableError,
    clean,
    worst_exit_code,
)


@pytest.mark.parametrize(
    ("codes", "worst"), [([], 0), ([0, 3], 3), ([3, 1], 1), ([1, 2], 2), ([2, 4], 4), ([0, 0], 0), ([1, 3, 0], 1)]
)
def test_several_targets_give_the_worst(codes: list[int], worst: int) -> None:
    assert worst_exit_code(codes) == worst


def test_family_fixes_the_exit_code() -> None:
    assert [e.exit_code for e in (ImagebuildError, RefusedError, InputError, UnavailableError)] == [4, 1, 2, 3]
    assert SeveralErrors([UnavailableError("a.b", "x"), RefusedError("a.c", "y")]).exit_code == 1


def test_control_characters_and_direction_marks_never_reach_a_terminal() -> None:
    assert clean("a\x1b[31mb\x9b\u202ec\td\n") == "a\ufffd[31mb\ufffd\ufffdc\td\n"
    assert clean("x" * 5000).startswith("x" * 2000)
    assert "3000 more characters" in clean("x" * 5000)


def test_the_document_holds_every_field() -> None:
    error = RefusedError("a.b", "what", expected="e", found="f\x1b", hint="do", details={"file": "t.yaml", "line": 3})
    assert error.document() == {
        "kind": "error",
        "schemaVersion": 1,
        "code": "a.b",
        "message": "what",
        "hint": "do",
        "details": {"file": "t.yaml", "line": 3, "expected": "e", "found": "f\ufffd"},
    }
    text = str(error)
    assert "[a.b]" in text
    assert "expected: e" in text
    assert "hint:     do" in text


def test_one_error_in_several_is_itself() -> None:
    one = InputError("a.b", "m", hint="h")
    several = SeveralErrors([one])
    assert (several.code, several.message, several.hint, several.exit_code) == ("a.b", "m", "h", 2)
    two = SeveralErrors([one, RefusedError("c.d", "n")])
    assert [e["code"] for e in two.document()["details"]["errors"]] == ["a.b", "c.d"]
