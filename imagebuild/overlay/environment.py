"""Editing the `Env` list of an image config (image-spec config.md, Env; images.md Writing 9)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from imagebuild.errors import InputError, clean

_NAME = re.compile(r"[^=\0]+\Z")


@dataclass(frozen=True, slots=True)
class EnvironmentChange:
    """What became of one variable; `before` is None where the base did not set it.  `notes` are remarks for people."""

    name: str
    before: str | None
    after: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EditedEnvironment:
    """The new list, one change for each edited name, and the names that the base itself has more than once."""

    env: tuple[str, ...]
    changes: tuple[EnvironmentChange, ...]
    duplicates: tuple[str, ...] = ()


def edit_environment(env: Sequence[str], edits: Sequence[tuple[str, str]]) -> EditedEnvironment:
    """Sets each (name, value) of `edits` in the list `env` of `NAME=value` words.

    A name that is there is replaced in its place, one that is not goes to the end; everything else stays as it is and
    where it is.  An empty value is a value (`NAME=`), never an unset.  Where the base has a name several times, runtimes
    use the last: that one is replaced and the others go, since a program that reads the first would see the old value.
    Duplicates of names that are not edited stay, and are named in `duplicates`.  Later edits of one name win.
    Raises InputError `overlay.bad-environment` for a name that is empty or holds `=` or NUL, and for a value with NUL.
    """
    out = list(env)
    changes: dict[str, EnvironmentChange] = {}
    for name, value in edits:
        _validate(name, value)
        places = [number for number, word in enumerate(out) if _name(word) == name]
        notes: tuple[str, ...] = ()
        before: str | None = None
        if places:
            effective = out[places[-1]]
            if "=" in effective:
                before = effective.partition("=")[2]
            else:
                notes = (f"the base lists {name} without a value",)
            if len(places) > 1:
                notes = (*notes, f"the base sets {name} {len(places)} times; the last counts, the others are removed")
            out[places[-1]] = f"{name}={value}"
            for place in reversed(places[:-1]):
                del out[place]
        else:
            out.append(f"{name}={value}")
        first = changes.get(name)
        changes[name] = EnvironmentChange(
            name, before if first is None else first.before, value, notes if first is None else first.notes
        )
    return EditedEnvironment(tuple(out), tuple(changes.values()), _duplicates(out))


def _name(word: str) -> str:
    return word.partition("=")[0]


def _duplicates(env: Sequence[str]) -> tuple[str, ...]:
    names = [_name(word) for word in env]
    return tuple(dict.fromkeys(name for name in names if names.count(name) > 1))


def _validate(name: str, value: str) -> None:
    if _NAME.match(name) is None or "\0" in value:
        raise InputError(
            "overlay.bad-environment",
            f"cannot set the environment variable {clean(name, 100)!r}",
            expected="a name without = and NUL, a value without NUL",
            found=clean(f"{name}={value}", 200),
        )
