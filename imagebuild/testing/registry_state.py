"""What the scripted registry holds: repositories with blobs, manifests and tags, upload sessions, tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt


@dataclass(slots=True)
class Upload:
    """An upload session; `state` is the query that its next request has to carry where locations change."""

    repository: str
    data: bytearray = field(default_factory=bytearray)
    state: int = 0


@dataclass(slots=True)
class HeldRepository:
    """One repository: blobs and manifests by digest (manifests with their media type), tags."""

    blobs: dict[Digest, bytes] = field(default_factory=dict)
    manifests: dict[Digest, tuple[bytes, str]] = field(default_factory=dict)
    tags: dict[str, Digest] = field(default_factory=dict)

    def manifest(self, reference: str) -> tuple[Digest, bytes, str] | None:
        digest = Digest.parse(reference) if reference.startswith("sha256:") else self.tags.get(reference)
        if digest is None or digest not in self.manifests:
            return None
        raw, media_type = self.manifests[digest]
        return digest, raw, media_type

    def lacks(self, raw: bytes) -> list[str]:
        """The digests that a manifest or index names and that are not here, children's own included."""
        value = json.loads(raw)
        out = []
        for child in value.get("manifests", []):
            digest = Digest.parse(child["digest"])
            if digest not in self.manifests:
                out.append(str(digest))
            else:
                out += self.lacks(self.manifests[digest][0])
        for descriptor in [*value.get("layers", []), *([value["config"]] if "config" in value else [])]:
            digest = Digest.parse(descriptor["digest"])
            held = self.blobs.get(digest)
            if held is None or Digest.of(held) != digest:
                out.append(str(digest))
        return out

    def referrers(self, subject: str) -> list[dict[str, Any]]:
        """Descriptors of the manifests whose subject it is (distribution-spec, Listing Referrers)."""
        out = []
        for digest, (raw, media_type) in self.manifests.items():
            value = json.loads(raw)
            if value.get("subject", {}).get("digest") == subject:
                out.append(
                    {
                        "mediaType": media_type,
                        "digest": str(digest),
                        "size": len(raw),
                        "artifactType": value.get("artifactType") or value.get("config", {}).get("mediaType", ""),
                        "annotations": value.get("annotations", {}),
                    }
                )
        return out


def index_of(entries: list[dict[str, Any]]) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": mt.OCI_INDEX, "manifests": entries}).encode()


@dataclass(slots=True)
class Tokens:
    """A token server.

    `users` name and password of those who may have tokens, `identity` refresh tokens; without any of both everybody
    may.  A token lives `life` seconds of the double's clock and serves `uses` requests (None: any number).  `grants`
    cuts down what is asked for; a server that `refuses_foreign` answers 403 to a set of which it grants a part only.
    """

    users: Mapping[str, str] = field(default_factory=dict)
    identity: frozenset[str] = frozenset()
    life: float = 300.0
    uses: int | None = None
    grants: Callable[[str, str], bool] = lambda resource, action: True
    refuses_foreign: bool = False
    issued: dict[str, Issued] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)

    def issue(self, scopes: list[str], now: float) -> str | None:
        """A new token for `resource:name:actions` scopes; None where the whole request is refused."""
        self.asked.append(scopes)
        pairs = set()
        for scope in scopes:
            resource, _, actions = scope.rpartition(":")
            pairs |= {(resource, action) for action in actions.split(",")}
        granted = {pair for pair in pairs if self.grants(*pair)}
        if self.refuses_foreign and granted != pairs:
            return None
        value = f"token-{len(self.issued)}-of-the-double"
        self.issued[value] = Issued(frozenset(granted), now + self.life, self.uses)
        return value

    def admits(self, value: str, wanted: set[tuple[str, str]], now: float) -> bool:
        """Whether a token is good for a request, which then counts as one use."""
        token = self.issued.get(value)
        if token is None or now >= token.expires or token.uses == 0:
            return False
        if token.uses is not None:
            token.uses -= 1
        return wanted <= token.scopes

    def covers(self, value: str, wanted: tuple[str, str]) -> bool:
        token = self.issued.get(value)
        return token is not None and wanted in token.scopes


@dataclass(slots=True)
class Issued:
    """A token that was given out."""

    scopes: frozenset[tuple[str, str]]
    expires: float
    uses: int | None
