"""Credentials in a wrapper that shows nothing, and the check that nothing of them is repeated by others."""

from __future__ import annotations

import base64
import hmac
import threading
from typing import Any, NoReturn
from urllib.parse import quote, quote_plus

HIDDEN = "***"


class Secret:
    """A password or token.  `repr`, `str` and `format` show `***`; it cannot be pickled; only `reveal` gives the text,
    and only the code that writes a header or a token request calls it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(
            self._text.encode("utf-8", "surrogatepass"), other._text.encode("utf-8", "surrogatepass")
        )

    def __hash__(self) -> int:
        return hash(("Secret", self._text))

    def __bool__(self) -> bool:
        return bool(self._text)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not written anywhere")


class SecretRegister:
    """Every secret that was sent somewhere in this run, so that text from outside can be withheld when it repeats one
    (proxies and debug pages like to echo the request)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: set[str] = set()

    def add(self, secret: Secret) -> Secret:
        text = secret.reveal()
        if text:
            forms = {text, quote(text, safe=""), quote_plus(text)}
            forms.add(base64.b64encode(text.encode("utf-8", "replace")).decode("ascii"))
            with self._lock:
                self._texts |= forms
        return secret

    def repeated_in(self, text: str) -> bool:
        """Whether any secret, plain, percent-encoded or in base64, stands in `text`."""
        with self._lock:
            return any(secret in text for secret in self._texts)

    def __repr__(self) -> str:
        return f"SecretRegister({HIDDEN})"


def basic_value(username: str, password: Secret) -> Secret:
    """The value of `Authorization` after `Basic ` (RFC 7617; UTF-8)."""
    pair = f"{username}:{password.reveal()}".encode("utf-8", "surrogateescape")
    return Secret(base64.b64encode(pair).decode("ascii"))
