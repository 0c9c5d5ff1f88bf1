"""Answers to challenges: Basic, and bearer tokens fetched for a set of scopes and kept until they expire.

Distribution token specification (GET with Basic) and its OAuth2 form (POST with a refresh token).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from imagebuild.errors import ImagebuildError, RefusedError, UnavailableError
from imagebuild.registry.challenge import Challenge, Scopes, format_scopes, parse_challenges, parse_scopes
from imagebuild.registry.credentials import Credential
from imagebuild.registry.failure import Response, show_url
from imagebuild.registry.proxies import is_loopback
from imagebuild.registry.secret import Secret, SecretRegister, basic_value

CLIENT_ID = "imagebuild"
DEFAULT_LIFE = 60.0
"""Seconds that a token lives where the server does not say (token specification)."""
MARGIN = 5.0
_VISIBLE = re.compile(r"[\x21-\x7e]{1,65536}\Z")


class Exchange(Protocol):
    """One request to a token server, retried, never authenticated by us again: method, URL, headers, body."""

    def __call__(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> Response: ...


@dataclass(frozen=True, slots=True)
class Authorization:
    """The value of an `Authorization` header and until when it is good (monotonic seconds, None: for ever)."""

    value: Secret
    scopes: Scopes = frozenset()
    expires: float | None = None


class Authenticator:
    """What one registry is shown.  Nothing is asked, and no credential looked up, before the registry's first 401."""

    def __init__(
        self,
        host: str,
        lookup: Callable[[], Credential | None],
        exchange: Exchange,
        monotonic: Callable[[], float],
        secrets: SecretRegister,
        encrypted: bool,
    ) -> None:
        self._host = host
        self._lookup = lookup
        self._exchange = exchange
        self._monotonic = monotonic
        self._secrets = secrets
        self._encrypted = encrypted
        self._lock = threading.Lock()
        self._challenge: Challenge | None = None
        self._tokens: list[Authorization] = []
        self._known: Credential | None = None
        self._asked = False

    def authorization(self, scopes: Scopes) -> Authorization | None:
        """What to send with a request that needs `scopes`: None before the first challenge, else a kept token that
        covers them, or a new one."""
        if self._challenge is None:
            return None
        with self._lock:
            return self._current(self._challenge, scopes)

    def challenged(
        self, values: Sequence[str], scopes: Scopes, used: Authorization | None, exclusive: bool = False
    ) -> Authorization | None:
        """What to repeat a request with that was answered 401 with these `WWW-Authenticate` lines; None where nothing
        better is to be had.

        `used` is what the request carried: it is not used again.  `exclusive` asks for a token that no other request
        shares, for servers whose tokens serve once.
        """
        challenge = _choose(parse_challenges(values))
        if challenge is None:
            return None
        with self._lock:
            self._challenge = challenge
            if challenge.scheme == "basic":
                found = self._basic()
                return None if used is not None and found is not None and used.value == found.value else found
            wanted = scopes | parse_scopes(challenge.parameters.get("scope", ""))
            if used is not None:
                self._tokens = [token for token in self._tokens if token.value != used.value]
                if challenge.parameters.get("error") == "insufficient_scope" and used.scopes >= wanted:
                    return None
            if exclusive:
                return self._fetch(challenge, wanted, keep=False)
            return self._current(challenge, wanted)

    def _current(self, challenge: Challenge, scopes: Scopes) -> Authorization | None:
        if challenge.scheme == "basic":
            return self._basic()
        return self._kept(scopes) or self._fetch(challenge, scopes)

    def _kept(self, scopes: Scopes) -> Authorization | None:
        now = self._monotonic()
        self._tokens = [token for token in self._tokens if token.expires is None or token.expires > now]
        return next((token for token in self._tokens if token.scopes >= scopes), None)

    def sent(self) -> str | None:
        """What a refused caller should know of our credential: whether there was one.  None before one was needed."""
        if not self._asked:
            return None
        if self._known is None:
            return f"no credential for {self._host} in the files of docker and podman"
        return f"a credential for {self._host}, which did not suffice"

    def _credential(self) -> Credential | None:
        if not self._asked:
            self._known = self._lookup()
            self._asked = True
            if self._known is not None:
                for secret in (self._known.password, self._known.identity_token, self._known.registry_token):
                    if secret is not None:
                        self._secrets.add(secret)
        return self._known

    def _basic(self) -> Authorization | None:
        credential = self._credential()
        if credential is None or credential.password is None:
            return None
        value = self._secrets.add(basic_value(credential.username, credential.password))
        return Authorization(Secret(f"Basic {value.reveal()}"))

    def _fetch(self, challenge: Challenge, scopes: Scopes, keep: bool = True) -> Authorization | None:
        credential = self._credential()
        if credential is not None and credential.registry_token is not None:
            return self._made(credential.registry_token, scopes, None, keep)
        self._check_realm(challenge.realm)
        try:
            answer = self._ask(challenge, scopes, credential)
        except RefusedError as error:
            # Some token servers refuse a set of which one scope is not ours instead of leaving that one out.
            own = parse_scopes(challenge.parameters.get("scope", ""))
            if not own or own >= scopes:
                raise self._denied(error) from None
            try:
                answer = self._ask(challenge, own, credential)
            except RefusedError as again:
                raise self._denied(again) from None
        token, life = _parse_token(answer)
        # The server may grant less than was asked and does not say so; what is missing shows as a refusal.
        return self._made(token, scopes, self._monotonic() + max(life - MARGIN, life / 2), keep)

    def _denied(self, error: RefusedError) -> RefusedError:
        """A refusal of the token server is one of the registry's: that is what one logs in to."""
        return RefusedError(
            "registry.denied",
            f"{self._host} gives no access: {error.message}",
            found=self.sent(),
            hint=f"log in to {self._host} (docker login, podman login), or ask for the right to this repository",
            details=error.details,
        )

    def _made(self, token: Secret, scopes: Scopes, expires: float | None, keep: bool) -> Authorization:
        self._secrets.add(token)
        made = Authorization(Secret(f"Bearer {token.reveal()}"), scopes, expires)
        if keep:
            self._tokens.insert(0, made)
            del self._tokens[32:]
        return made

    def _check_realm(self, realm: str) -> None:
        parts = urlsplit(realm)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise UnavailableError("registry.bad-challenge", f"{self._host} names a token server that has no address")
        if parts.scheme == "http" and self._encrypted and not is_loopback(parts.netloc):
            raise RefusedError(
                "registry.insecure-realm",
                f"{self._host} is reached over TLS and wants the credentials sent in clear to {show_url(realm)}",
                hint=f"correct the token server's address in the settings of {self._host}",
            )

    def _ask(self, challenge: Challenge, scopes: Scopes, credential: Credential | None) -> Response:
        service = challenge.parameters.get("service", "")
        fields = [("service", service)] if service else []
        wanted = format_scopes(scopes)
        if credential is not None and credential.identity_token is not None:
            return self._post(
                challenge.realm,
                wanted,
                [("grant_type", "refresh_token"), ("refresh_token", credential.identity_token.reveal()), *fields],
            )
        headers = {}
        if credential is not None and credential.password is not None:
            value = self._secrets.add(basic_value(credential.username, credential.password))
            headers["Authorization"] = f"Basic {value.reveal()}"
        query = urlencode([*fields, *(("scope", scope) for scope in wanted), ("client_id", CLIENT_ID)])
        joint = "&" if urlsplit(challenge.realm).query else "?"
        return self._exchange("GET", f"{challenge.realm}{joint}{query}", headers, None)

    def _post(self, realm: str, wanted: list[str], fields: list[tuple[str, str]]) -> Response:
        body = urlencode([*fields, ("scope", " ".join(wanted)), ("client_id", CLIENT_ID)]).encode()
        return self._exchange("POST", realm, {"Content-Type": "application/x-www-form-urlencoded"}, body)


def _choose(challenges: list[Challenge]) -> Challenge | None:
    for scheme in ("bearer", "basic"):
        for challenge in challenges:
            if challenge.scheme == scheme and (scheme == "basic" or challenge.realm):
                return challenge
    return None


def _parse_token(answer: Response) -> tuple[Secret, float]:
    """Token and life in seconds.  The error says nothing of the body."""

    def bad(why: str) -> ImagebuildError:
        return UnavailableError("registry.bad-token", f"the token server {show_url(answer.url)} gave {why}")

    try:
        value = json.loads(answer.body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise bad("an answer that is not JSON") from None
    if not isinstance(value, dict):
        raise bad("an answer that is not an object")
    token = value.get("token") or value.get("access_token")
    if not isinstance(token, str) or not _VISIBLE.match(token):
        raise bad("no usable token")
    life = value.get("expires_in")
    if isinstance(life, bool) or not isinstance(life, (int, float)) or not 0 < life < 1e9:
        life = DEFAULT_LIFE
    return Secret(token), float(life)
