"""The JSON Schemas that editors use say what our own reader says, and the committed files are what the program prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from written_files import BEYOND, GOOD, REMOVE, SPOILT, VARIED, altered

from imagebuild.cli.schemas import SCHEMAS
from imagebuild.content.schema import Object, validate
from imagebuild.content.strict_yaml import parse_yaml, plain_value
from imagebuild.errors import ImagebuildError, SeveralErrors
from imagebuild.overlay.document import OVERLAY
from imagebuild.target.document import TARGET
from imagebuild.target.policy import POLICY
from imagebuild.target.site import SITES
from imagebuild.target.workspace import WORKSPACE
from imagebuild.waiver.document import WAIVER

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "reference" / "schemas"
DECLARATIONS: dict[str, Object] = {
    "target": TARGET,
    "overlay": OVERLAY,
    "waiver": WAIVER,
    "policy": POLICY,
    "site": SITES,
    "workspace": WORKSPACE,
}


def shown(value: Any) -> str:
    return "removed" if value is REMOVE else repr(value)[:40]


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(kind, *row, id=f"{kind}-{row[0]}-{shown(row[1])}") for kind, rows in table.items() for row in rows
    ]


def our_codes(kind: str, document: Any) -> list[str]:
    """Codes that our reader gives; the document goes through JSON text, which is YAML."""
    node = parse_yaml(json.dumps(document, ensure_ascii=True).encode(), "f.yaml")
    assert plain_value(node) == document
    try:
        validate(node, DECLARATIONS[kind])
    except SeveralErrors as several:
        return [error.code for error in several.errors]
    except ImagebuildError as error:
        return [error.code]
    return []


def theirs(kind: str, document: Any) -> bool:
    jsonschema = pytest.importorskip("jsonschema")
    return bool(jsonschema.Draft202012Validator(SCHEMAS[kind]()).is_valid(document))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_committed_schema_is_what_the_program_prints(kind: str) -> None:
    text = json.dumps(SCHEMAS[kind](), indent=2, ensure_ascii=False) + "\n"
    assert (COMMITTED / f"{kind}.json").read_text("utf-8") == text, (
        f"run: imagebuild schema {kind} > docs/reference/schemas/{kind}.json"
    )


def test_every_committed_schema_has_its_kind() -> None:
    assert set(SCHEMAS) == set(DECLARATIONS)
    assert {path.stem for path in COMMITTED.glob("*.json")} == set(SCHEMAS)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_schema_is_valid_json_schema_2020_12_and_refuses_unknown_keys(kind: str) -> None:
    schema = SCHEMAS[kind]()
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_whole_document_is_taken_by_both(kind: str) -> None:
    assert our_codes(kind, GOOD[kind]) == []
    assert theirs(kind, GOOD[kind])


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_whole_document_uses_every_key(kind: str) -> None:
    assert set(GOOD[kind]) == set(DECLARATIONS[kind].fields)


@pytest.mark.parametrize(("kind", "path", "value"), cases(VARIED))
def test_a_varied_document_is_taken_by_both(kind: str, path: str, value: Any) -> None:
    document = altered(kind, path, value)
    assert document != GOOD[kind]
    assert our_codes(kind, document) == []
    assert theirs(kind, document)


@pytest.mark.parametrize(("kind", "path", "value"), cases(SPOILT))
def test_a_spoilt_document_is_refused_by_both(kind: str, path: str, value: Any) -> None:
    document = altered(kind, path, value)
    assert document != GOOD[kind]
    assert our_codes(kind, document) != []
    assert not theirs(kind, document)


@pytest.mark.parametrize(("kind", "path", "value", "code"), cases(BEYOND))
def test_what_json_schema_cannot_say_is_refused_by_our_reader(kind: str, path: str, value: Any, code: str) -> None:
    document = altered(kind, path, value)
    assert our_codes(kind, document) == [code]
    assert theirs(kind, document)
