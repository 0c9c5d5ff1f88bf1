"""Small documents by GET from services that are no registry (a code host's API), through the same door: its proxies,
certificates, limits and secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagebuild.errors import InputError
from imagebuild.registry.failure import Response, show_url
from imagebuild.registry.proxies import is_loopback
from imagebuild.registry.secret import Secret
from imagebuild.registry.transport import Request, Transport, origin

LIMIT = 4 << 20
"""Bytes of an answer."""


@dataclass(frozen=True, slots=True)
class WebReader:
    """Asks once and repeats nothing: whoever asks decides what an answer that is none means.

    `token` is sent to the host `origin_of` alone (never along a redirect to another), and only over TLS or loopback.
    """

    transport: Transport
    origin_of: str
    token: Secret | None = None

    def __post_init__(self) -> None:
        scheme, host, _ = origin(self.origin_of)
        if scheme not in ("http", "https") or not host:
            raise InputError("registry.bad-address", f"{show_url(self.origin_of)} is no web address")
        if self.token and scheme == "http" and not is_loopback(host):
            raise InputError(
                "registry.bad-address",
                f"the token would go to {host} over plain HTTP",
                expected="an https address, or no token",
            )

    def get(self, url: str, headers: Mapping[str, str]) -> Response:
        """The answer, whatever its status.  Raises UnavailableError `registry.unreachable`, `.tls`, `.answer-too-large`,
        `.bad-redirect`, and DroppedConnection."""
        sent = dict(headers)
        if self.token and origin(url) == origin(self.origin_of):
            sent["Authorization"] = f"Bearer {self.transport.secrets.add(self.token).reveal()}"
        return self.transport.request(Request("GET", url, None, headers=sent, limit=LIMIT, retry=False))
