"""Environment edits: in place, in order, once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuild.errors import InputError
from imagebuild.overlay.environment import EnvironmentChange, edit_environment

BASE = ("PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HSA_NO_SCRATCH_RECLAIM=1", "EMPTY=")


def test_a_name_that_is_there_is_replaced_in_its_place() -> None:
    edited = edit_environment(BASE, [("PATH", "/opt/bin:/usr/bin:/bin")])
    assert edited.env == ("PATH=/opt/bin:/usr/bin:/bin", *BASE[1:])
    assert edited.changes == (EnvironmentChange("PATH", "/usr/bin:/bin", "/opt/bin:/usr/bin:/bin"),)


def test_a_new_name_goes_to_the_end_and_empty_is_not_unset() -> None:
    edited = edit_environment(BASE, [("NEW", ""), ("LANG", "")])
    assert edited.env == (BASE[0], "LANG=", *BASE[2:], "NEW=")
    assert [change.before for change in edited.changes] == [None, "C.UTF-8"]


def test_an_empty_value_of_the_base_is_a_value() -> None:
    (change,) = edit_environment(BASE, [("EMPTY", "x")]).changes
    assert change.before == ""


def test_a_name_is_compared_whole_and_by_case() -> None:
    assert edit_environment(["PATHS=1", "Path=2"], [("PATH", "3")]).env == ("PATHS=1", "Path=2", "PATH=3")


def test_the_effective_one_of_duplicates_is_replaced_and_the_others_go() -> None:
    edited = edit_environment(["A=1", "B=2", "A=3", "C=4"], [("A", "5")])
    assert edited.env == ("B=2", "A=5", "C=4")
    (change,) = edited.changes
    assert change.before == "3"
    assert "2 times" in change.notes[0]


def test_duplicates_that_are_not_edited_stay_and_are_named() -> None:
    edited = edit_environment(["A=1", "A=2"], [("B", "x")])
    assert edited.env == ("A=1", "A=2", "B=x")
    assert edited.duplicates == ("A",)


def test_a_word_without_a_value_is_replaced() -> None:
    edited = edit_environment(["A", "B=1"], [("A", "x")])
    assert edited.env == ("A=x", "B=1")
    assert edited.changes[0].before is None
    assert edited.changes[0].notes


def test_later_edits_win_and_the_base_stays_the_before() -> None:
    edited = edit_environment(["A=1"], [("A", "2"), ("A", "3")])
    assert edited.env == ("A=3",)
    assert edited.changes == (EnvironmentChange("A", "1", "3"),)


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0y")])
def test_impossible_names_and_values(name: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        edit_environment([], [(name, value)])
    assert caught.value.code == "overlay.bad-environment"


NAMES = st.sampled_from(["A", "B", "C", "AB"])
WORDS = st.builds(lambda name, value: f"{name}={value}", NAMES, st.sampled_from(["", "1", "x=y"]))


@given(st.lists(WORDS, max_size=8), st.lists(st.tuples(NAMES, st.sampled_from(["", "2", "=z"])), max_size=5))
def test_edited_names_are_there_once_with_their_value_and_others_untouched(
    env: list[str], edits: list[tuple[str, str]]
) -> None:
    edited = edit_environment(env, edits)
    wanted = dict(edits)
    for name, value in wanted.items():
        assert [word for word in edited.env if word.partition("=")[0] == name] == [f"{name}={value}"]
    others = [word for word in env if word.partition("=")[0] not in wanted]
    assert [word for word in edited.env if word.partition("=")[0] not in wanted] == others
    assert edit_environment(edited.env, edits).env == edited.env
