"""`WWW-Authenticate` (RFC 9110, 11.6.1; RFC 6750, 3; distribution token specification) and scopes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SPACE = re.compile(r"[ \t,]*")

Scopes = frozenset[tuple[str, str]]
"""Pairs of resource (`repository:library/debian`) and action (`pull`)."""


def repository_scopes(path: str, *actions: str) -> Scopes:
    return frozenset((f"repository:{path}", action) for action in actions)


def format_scopes(scopes: Scopes) -> list[str]:
    """One `type:name:action,action` a resource, sorted, so that equal sets make equal requests."""
    by_resource: dict[str, list[str]] = {}
    for resource, action in sorted(scopes):
        by_resource.setdefault(resource, []).append(action)
    return [f"{resource}:{','.join(actions)}" for resource, actions in by_resource.items()]


def parse_scopes(text: str) -> Scopes:
    """The scopes of a challenge; words that are no scope are left out."""
    out: set[tuple[str, str]] = set()
    for word in text.split()[:100]:
        resource, colon, actions = word.rpartition(":")
        if colon and ":" in resource:
            out.update((resource, action) for action in actions.split(",") if action)
    return frozenset(out)


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge: `scheme` in lower case, parameters under lower-case names."""

    scheme: str
    parameters: Mapping[str, str]

    @property
    def realm(self) -> str:
        return self.parameters.get("realm", "")


def parse_challenges(values: Iterable[str]) -> list[Challenge]:
    """All challenges of all header lines, in order; what cannot be read ends the line it stands in."""
    out: list[Challenge] = []
    for value in values:
        out.extend(_line(value[:8192]))
    return out


def _line(text: str) -> list[Challenge]:
    out: list[Challenge] = []
    scheme: str | None = None
    parameters: dict[str, str] = {}
    at = 0
    while True:
        at = _end(_SPACE, text, at)
        word = _TOKEN.match(text, at)
        if word is None:
            break
        after = _end(_SPACE, text, word.end()) if text[word.end() : word.end() + 1] in (" ", "\t") else word.end()
        if text[after : after + 1] == "=" and scheme is not None:
            value, at = _value(text, after + 1)
            if value is None:
                break
            parameters.setdefault(word.group().lower(), value)
            continue
        if scheme is not None:
            out.append(Challenge(scheme, MappingProxyType(parameters)))
        scheme, parameters, at = word.group().lower(), {}, word.end()
    if scheme is not None:
        out.append(Challenge(scheme, MappingProxyType(parameters)))
    return out


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int) -> tuple[str | None, int]:
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    if text[at : at + 1] != '"':
        word = _TOKEN.match(text, at)
        return (word.group(), word.end()) if word else (None, at)
    out: list[str] = []
    at += 1
    while at < len(text):
        char = text[at]
        if char == '"':
            return "".join(out), at + 1
        if char == "\\" and at + 1 < len(text):
            at += 1
            char = text[at]
        out.append(char)
        at += 1
    return None, at
