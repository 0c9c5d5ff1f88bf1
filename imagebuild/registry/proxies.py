"""`HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, in the meaning that Go programs (docker, skopeo, crane) give them."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from imagebuild.errors import InputError
from imagebuild.registry.secret import Secret


def split_host(netloc: str) -> tuple[str, str]:
    """Host name (no brackets) and port ("" where none) of `HOST[:PORT]`."""
    if netloc.startswith("["):
        name, _, rest = netloc[1:].partition("]")
        return name, rest.lstrip(":")
    name, colon, port = netloc.rpartition(":")
    return (name, port) if colon else (netloc, "")


def is_loopback(netloc: str) -> bool:
    """Whether the host is this machine: `localhost`, 127.0.0.0/8, ::1."""
    name = split_host(netloc)[0].rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Proxy:
    """`url` without user information; `user` and `password` where the variable holds them."""

    url: str
    user: str = field(default="", repr=False)
    password: Secret | None = field(default=None, repr=False)


def parse_proxy(text: str, name: str) -> Proxy:
    """A proxy as written in the variable `name`; raises InputError `registry.bad-settings` without repeating it."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            "registry.bad-settings",
            f"{name} is not a proxy's address",
            expected="http://HOST:PORT or https://HOST:PORT",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    if parts.username is None:
        return Proxy(address)
    return Proxy(address, unquote(parts.username), Secret(unquote(parts.password or "")))


@dataclass(frozen=True, slots=True)
class Proxies:
    """Which proxy a URL goes through."""

    https: Proxy | None = None
    http: Proxy | None = None
    direct: tuple[str, ...] = ()

    @classmethod
    def load(cls, variable: Callable[[str], str | None]) -> Proxies:
        found: dict[str, Proxy | None] = {}
        for scheme in ("https", "http"):
            upper, lower = f"{scheme.upper()}_PROXY", f"{scheme}_proxy"
            text = variable(upper) or variable(lower)
            found[scheme] = parse_proxy(text, upper) if text else None
        listed = variable("NO_PROXY") or variable("no_proxy") or ""
        return cls(
            found["https"], found["http"], tuple(item.strip().lower() for item in listed.split(",") if item.strip())
        )

    def choose(self, scheme: str, netloc: str) -> Proxy | None:
        """The proxy for `scheme://netloc`, None for a direct connection; loopback is always direct."""
        proxy = self.https if scheme == "https" else self.http
        if proxy is None or is_loopback(netloc) or self._is_direct(netloc, scheme):
            return None
        return proxy

    def _is_direct(self, netloc: str, scheme: str) -> bool:
        name, port = split_host(netloc.lower())
        port = port or ("443" if scheme == "https" else "80")
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            address = None
        for item in self.direct:
            if item == "*":
                return True
            if address is not None:
                try:
                    if address in ipaddress.ip_network(item, strict=False):
                        return True
                    continue
                except ValueError:
                    pass
            wanted, wanted_port = split_host(item)
            if wanted_port and wanted_port != port:
                continue
            wanted = wanted.removeprefix("*")
            if wanted.startswith("."):
                if name.endswith(wanted):
                    return True
            elif name == wanted or name.endswith("." + wanted):
                return True
        return False
