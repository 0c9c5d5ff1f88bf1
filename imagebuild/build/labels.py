"""Labels and annotations of an image that we made (images.md, Writing 11; image-spec annotations.md)."""

from __future__ import annotations

from imagebuild import LABEL_PREFIX
from imagebuild.content.digest import Digest
from imagebuild.host.clock import rfc3339
from imagebuild.target.lock_types import Inputs

BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"
CREATED = "org.opencontainers.image.created"
TARGET = LABEL_PREFIX + "target"
CONTENT_ID = LABEL_PREFIX + "content-id"
OVERLAYS = LABEL_PREFIX + "overlays"
PARENT = LABEL_PREFIX + "parent"


def labels_for(inputs: Inputs, base_digest: Digest, base_labels: dict[str, str]) -> dict[str, str]:
    """What an image says of itself; `base_digest` is the platform manifest's on a manifest and the index's on an index.

    PARENT is the content id of a base that was built by us; a base's own value never stays, it would speak of another image.
    """
    out = {
        BASE_NAME: inputs.base,
        BASE_DIGEST: str(base_digest),
        CREATED: rfc3339(inputs.created),
        TARGET: inputs.target,
        CONTENT_ID: str(inputs.content_id),
        OVERLAYS: ",".join(item["name"] for item in inputs.wanted["overlays"]),
    }
    parent = base_labels.get(CONTENT_ID)
    if parent is not None:
        out[PARENT] = parent
    return out
