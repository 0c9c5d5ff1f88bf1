"""What a registry answers to its front door (distribution-spec, Determining Support)."""

from __future__ import annotations

from typing import Any

from imagebuild.registry.open import open_client
from imagebuild.registry.settings import RegistryOptions
from imagebuild.registry.transport import Request


def probe_host(host: str, options: RegistryOptions) -> dict[str, Any]:
    """Asks `GET /v2/` and tells the address, the status, and the API version that was named.

    A 401 that stays one means that the registry is there and wants credentials that this machine does not have.
    Raises UnavailableError where nothing answers.
    """
    client = open_client(options)
    url = f"{client.transport.base_url(host)}/v2/"
    response = client.transport.request(
        Request("GET", url, host, accept=(200, 401, 403), doing="asking whether it is a registry")
    )
    return {
        "url": url,
        "status": response.status,
        "api": response.headers.get("docker-distribution-api-version", "not said"),
        "access": "granted" if response.status == 200 else "credentials wanted",
    }
