"""The plain signature of an image, as cosign 3 makes it: the statement names the digest, the predicate is empty."""

from __future__ import annotations

from imagebuild.attest.statement import Statement
from imagebuild.content.digest import Digest

TYPE = "https://sigstore.dev/cosign/sign/v1"


def image_signature(digest: Digest) -> Statement:
    """The statement that a signature of a manifest or index makes."""
    return Statement.about(digest, TYPE, {})
