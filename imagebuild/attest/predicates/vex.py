"""OpenVEX (0.2.0): which vulnerabilities the overlays' backported fixes remove from an image."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from imagebuild import PROJECT_URL
from imagebuild.content.canonical import canonical_json
from imagebuild.content.digest import Digest
from imagebuild.host.clock import rfc3339
from imagebuild.overlay.document import Overlay
from imagebuild.target.lock_types import Inputs

CONTEXT = "https://openvex.dev/ns/v0.2.0"
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, PROJECT_URL)


def name_uuid(value: Any) -> uuid.UUID:
    """A UUID (version 5) that equal documents share."""
    return uuid.uuid5(NAMESPACE, str(Digest.of(canonical_json(value))))


def openvex(inputs: Inputs, overlays: Sequence[Overlay], image: Digest, author: str) -> dict[str, Any] | None:
    """The document about one manifest, with status `fixed` for each entry of an overlay's `fixes`; None where no
    overlay fixes anything.  Its time is the lock's, so the same lock gives the same document."""
    fixes: dict[str, list[Overlay]] = {}
    for overlay in overlays:
        for name in overlay.fixes:
            fixes.setdefault(name, []).append(overlay)
    if not fixes:
        return None
    product = f"pkg:oci/{inputs.target}@sha256%3A{image.hex}"
    body: dict[str, Any] = {
        "@context": CONTEXT,
        "author": author,
        "timestamp": rfc3339(inputs.created),
        "version": 1,
        "tooling": "imagebuild",
        "statements": [
            {
                "vulnerability": {"name": name},
                "products": [{"@id": product, "hashes": {"sha-256": image.hex}}],
                "status": "fixed",
                "status_notes": "; ".join(_note(overlay) for overlay in by),
            }
            for name, by in sorted(fixes.items())
        ],
    }
    return {"@context": CONTEXT, "@id": f"{PROJECT_URL}/vex/{name_uuid(body)}", **body}


def _note(overlay: Overlay) -> str:
    where = f" ({overlay.origin.url})" if overlay.origin is not None and overlay.origin.url else ""
    return f"overlay {overlay.name}{where}"
