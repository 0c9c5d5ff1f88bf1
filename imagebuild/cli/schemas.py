"""The kinds of files that people write, and the JSON Schema of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from imagebuild.overlay.document import overlay_schema
from imagebuild.target.document import target_schema
from imagebuild.target.policy import policy_schema
from imagebuild.target.site import site_schema
from imagebuild.target.workspace import workspace_schema
from imagebuild.waiver.document import waiver_schema

SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "target": target_schema,
    "overlay": overlay_schema,
    "waiver": waiver_schema,
    "policy": policy_schema,
    "site": site_schema,
    "workspace": workspace_schema,
}
