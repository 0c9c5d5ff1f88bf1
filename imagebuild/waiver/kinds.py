"""Every kind of file that people write, by the word that `imagebuild schema` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from imagebuild.overlay.document import overlay_schema
from imagebuild.target.document import target_schema
from imagebuild.target.policy import policy_schema
from imagebuild.target.site import site_schema
from imagebuild.target.workspace import workspace_schema
from imagebuild.waiver.document import waiver_schema

SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = MappingProxyType(
    {
        "target": target_schema,
        "overlay": overlay_schema,
        "waiver": waiver_schema,
        "policy": policy_schema,
        "site": site_schema,
        "workspace": workspace_schema,
    }
)


def schema_document(kind: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one kind; KeyError for a word that is none of SCHEMAS."""
    return SCHEMAS[kind]()


def schema_text(kind: str) -> str:
    """The same as text: the form that is committed under docs/reference/schemas and printed."""
    import json

    return json.dumps(schema_document(kind), indent=2, ensure_ascii=False) + "\n"
