"""The hashes in a RECORD (packaging.python.org, Recording installed projects): `sha256=`, urlsafe base64 without
padding."""

from __future__ import annotations

import base64
import binascii

from imagebuild.content.digest import Digest


def parse_hash(text: str) -> Digest | None:
    """The digest of `sha256=BASE64`, None for other algorithms and for what is none."""
    algorithm, equals, value = text.partition("=")
    if algorithm != "sha256" or not equals or len(value.rstrip("=")) != 43:
        return None
    try:
        raw = base64.urlsafe_b64decode(value.rstrip("=") + "=")
    except (binascii.Error, ValueError):
        return None
    return Digest(raw.hex()) if len(raw) == 32 else None


def format_hash(digest: Digest) -> str:
    """The inverse of parse_hash."""
    return "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(digest.hex)).rstrip(b"=").decode("ascii")
