"""From an answer that is not the wanted one to an error that names the request, the status and the registry's codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError, clean
from imagebuild.registry.retry import RETRYABLE
from imagebuild.registry.secret import SecretRegister

ERROR_BODY_LIMIT = 64 << 10


@dataclass(frozen=True, slots=True)
class Response:
    """An answer whose body was read whole.  `headers` are looked up without regard to case; `url` is where the answer
    came from, after redirects."""

    method: str
    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)

    @property
    def codes(self) -> list[str]:
        """The registry's own error codes (distribution-spec, Error Codes), [] where the body is none of that."""
        return [code for code, _ in parse_errors(self.body)]


class DroppedConnection(UnavailableError):
    """The connection ended or stood still before the answer was whole."""


def show_url(url: str) -> str:
    """A URL for messages: no user information, no query (both may hold credentials), bounded."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return clean(f"{parts.scheme}://{host}{parts.path}", 400)


def parse_errors(body: bytes) -> list[tuple[str, str]]:
    """Code and message of each entry of `{"errors": […]}`, at most five."""
    try:
        value = json.loads(body[:ERROR_BODY_LIMIT].decode("utf-8"))
        errors = value["errors"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    out = []
    for item in errors[:5] if isinstance(errors, list) else []:
        if isinstance(item, dict) and isinstance(item.get("code"), str):
            message = item.get("message")
            out.append((item["code"], message if isinstance(message, str) else ""))
    return out


def describe_errors(response: Response, secrets: SecretRegister) -> str:
    """The registry's own words, bounded and cleaned; withheld where they repeat a credential."""
    found = parse_errors(response.body)
    if not found:
        return ""
    text = "; ".join(f"{code}: {message}" if message else code for code, message in found)
    if secrets.repeated_in(text):
        return "(withheld: the registry's words repeat a credential)"
    return clean(text, 500).replace("\n", " ")


def status_failure(
    response: Response, secrets: SecretRegister, doing: str = "", sent: str | None = None
) -> ImagebuildError:
    """The error for a status that was not hoped for.  `doing` says what for, e.g. `reading the tag v1`; `sent` whether a
    credential was found (Authenticator.sent)."""
    status = response.status
    words = describe_errors(response, secrets)
    url = show_url(response.url)
    if secrets.repeated_in(url):
        url = "(an address that repeats a credential)"
    request = f"{response.method} {url}"
    message = f"{doing + ': ' if doing else ''}{request} was answered {status}" + (f" ({words})" if words else "")
    details: dict[str, object] = {"request": request, "status": status}
    if words:
        details["registry_errors"] = words
    host = urlsplit(response.url).netloc.rpartition("@")[2]
    if status in (401, 403):
        return RefusedError(
            "registry.denied",
            message,
            found=sent,
            hint=f"log in to {host} (docker login, podman login), or ask for the right to this repository",
            details=details,
        )
    if status == 404:
        return RefusedError("registry.not-found", message, hint="check host, repository and tag", details=details)
    if status == 429:
        return UnavailableError(
            "registry.rate-limited",
            message,
            hint="wait and run the same command again, or log in: limits are often higher then",
            details=details,
        )
    if status in RETRYABLE or status >= 500 or status < 400:
        return UnavailableError(
            "registry.unexpected-status", message, hint="run the same command again", details=details
        )
    return RefusedError("registry.refused", message, details=details)
