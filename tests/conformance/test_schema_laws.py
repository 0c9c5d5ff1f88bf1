"""Any document, however spoilt: our reader gives a value or a refusal, never another exception, and never takes what the
JSON Schema refuses; what it refuses for its shape alone the JSON Schema refuses too."""

from __future__ import annotations

import copy
import json
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_json_schemas import DECLARATIONS
from written_files import GOOD

from imagebuild.cli.schemas import SCHEMAS
from imagebuild.content.schema import validate
from imagebuild.content.strict_yaml import parse_yaml
from imagebuild.errors import ImagebuildError, SeveralErrors

PIN = "sha256:" + "a" * 64
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 5, 1.5, 1e300, 2**53, 2**62, "", "a", "A", "absent", "linux/amd64", "linux/arm64", PIN, "..", "a/b", "a/../b",
    "/a", "a/.wh.b", "x\ny", "x\t", "é", "no", "30m", "2026-11-30", "2026-02-30", "https://x.org", "https://a@x.org", "{arch}", "{base.tag}", [],
    {}, ["a"], ["a", "a"], {"a": "b"}, {"a/b": "c"}, {"preimage": "absent", "postimage": "absent"}, {"linux/amd64": {}}, ">=1", "a.b", "CVE-1-2",
    "-", "a b", "vllm/x", "1.0", "0644", [1], [[]], {"path": "a/b"}, {"glob": "a/*", "count": 1}, "a" * 5000, "\u2028", f"x.org/y@{PIN}",
]  # fmt: skip
KEYS = ["a", "linux/amd64", "vllm/x", "name", "path", "env", "file", "X_Y", "", "schema"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def spoilt(kind: str, random: Random) -> Any:
    document = copy.deepcopy(GOOD[kind])
    for _ in range(random.choice((1, 1, 2))):
        path = random.choice(places(document))
        parent = document
        for step in path[:-1]:
            parent = parent[step]
        act = random.choice(("set", "set", "remove", "add"))
        if act == "set":
            parent[path[-1]] = copy.deepcopy(random.choice(VALUES))
        elif act == "remove":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[random.choice(KEYS)] = copy.deepcopy(random.choice(VALUES))
        else:
            parent.append(copy.deepcopy(random.choice([*VALUES, *parent])))
    return document


@cache
def validator(kind: str) -> Any:
    return pytest.importorskip("jsonschema").Draft202012Validator(SCHEMAS[kind]())


def our_codes(kind: str, document: Any) -> list[str]:
    try:
        validate(parse_yaml(json.dumps(document).encode(), "f.yaml"), DECLARATIONS[kind])
    except SeveralErrors as several:
        return [error.code for error in several.errors]
    except ImagebuildError as error:
        return [error.code]
    return []


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(GOOD)), st.randoms(use_true_random=False))
def test_reader_and_json_schema_never_part(kind: str, random: Random) -> None:
    document = spoilt(kind, random)
    codes = our_codes(kind, document)
    taken = validator(kind).is_valid(document)
    if not taken:
        assert codes
    elif codes:
        assert not all(code.startswith("schema.") for code in codes)
