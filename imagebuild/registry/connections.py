"""The one place that opens sockets: pools of connections, TLS, proxies, and the faults of all of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from imagebuild.content.files import io_faults
from imagebuild.content.reader import Readable
from imagebuild.errors import InputError, UnavailableError, clean
from imagebuild.registry.failure import DroppedConnection, show_url
from imagebuild.registry.proxies import split_host
from imagebuild.registry.secret import basic_value
from imagebuild.registry.settings import RegistrySettings, wire_host

if TYPE_CHECKING:
    import ssl

    import urllib3

CONNECTIONS = 32
"""Connections kept open to one host: engine images have up to some thirty layers, and all are mounted at once."""
CONNECT_SECONDS = 10.0
READ_SECONDS = 300.0
"""Seconds without a byte before a connection counts as dropped; a registry that moves a large upload to its storage
answers only after that."""
PROBE_SECONDS = 3.0
BLOCK = 1 << 18


class OutgoingBody:
    """A request's body while it is read by the connection: bounded, counted, its own faults kept apart from the
    network's."""

    def __init__(self, stream: Readable, length: int, count: Callable[[int], None]) -> None:
        self._stream = stream
        self._left = length
        self._count = count

    def read(self, size: int = -1) -> bytes:
        size = self._left if size is None or size < 0 else min(size, self._left)
        if size == 0:
            return b""
        with io_faults("what is uploaded", "reading"):
            data = self._stream.read(size)
        self._left -= len(data)
        self._count(len(data))
        return data

    def close(self) -> None:
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()


class Connections:
    """Pools by host.  Safe to use from several threads."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._schemes: dict[str, str] = {}
        self._pools: dict[tuple[str, str], urllib3.PoolManager] = {}
        self._contexts: dict[str, ssl.SSLContext] = {}

    def base_url(self, host: str) -> str:
        """`https://HOST` or `http://HOST` for a registry's name; the first call for a loopback or insecure host finds
        out whether TLS is spoken there."""
        wire = wire_host(host)
        security = self._settings.security(host)
        if security.scheme != "probe":
            return f"{security.scheme}://{wire}"
        with self._lock:
            scheme = self._schemes.get(wire)
            if scheme is None:
                scheme = self._schemes[wire] = "https" if self._speaks_tls(wire) else "http"
        return f"{scheme}://{wire}"

    def _speaks_tls(self, netloc: str) -> bool:
        """Whether a TLS greeting is answered by one.  Nothing is verified and nothing is said here: the connection
        that is used afterwards is verified like any other."""
        import socket
        import ssl

        name, port = split_host(netloc)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            plain = socket.create_connection((name, int(port or 443)), PROBE_SECONDS)
        except (OSError, ValueError):
            return not port
        try:
            context.wrap_socket(plain, server_hostname=name).close()
        except ssl.SSLError as error:
            # A server that speaks TLS and dislikes the greeting says so in an alert.
            return "ALERT" in (error.reason or "")
        except OSError:
            return False
        finally:
            plain.close()
        return True

    def exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: OutgoingBody | bytes | None
    ) -> urllib3.BaseHTTPResponse:
        """One request, one answer whose body is still to be read; no redirect, no retry, no authentication.

        Raises DroppedConnection `registry.dropped` (worth another attempt), UnavailableError `registry.unreachable`
        or `registry.tls` (not), and whatever reading the body raised.
        """
        import urllib3

        parts = urlsplit(url)
        pool = self._pool(parts.scheme, parts.netloc)
        try:
            return pool.urlopen(
                method,
                url,
                redirect=False,
                retries=False,
                headers=headers,
                body=body,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise network_failure(error, f"{method} {show_url(url)}") from None

    def _pool(self, scheme: str, netloc: str) -> urllib3.PoolManager:
        with self._lock:
            key = (scheme, netloc)
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = self._make_pool(scheme, netloc)
            return pool

    def _make_pool(self, scheme: str, netloc: str) -> urllib3.PoolManager:
        import urllib3

        # Its debug lines hold whole URLs, and the query of a signed URL is a credential.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        choices: dict[str, Any] = {"num_pools": 2, "maxsize": CONNECTIONS, "block": False, "blocksize": BLOCK}
        if scheme == "https":
            choices["ssl_context"] = self._context(netloc)
        proxy = self._settings.proxy(scheme, netloc)
        if proxy is None:
            return urllib3.PoolManager(**choices)
        headers = {}
        if proxy.password is not None:
            headers["proxy-authorization"] = f"Basic {basic_value(proxy.user, proxy.password).reveal()}"
        return urllib3.ProxyManager(proxy.url, proxy_headers=headers, **choices)

    def _context(self, netloc: str) -> ssl.SSLContext:
        import ssl

        name = netloc if netloc != wire_host("docker.io") else "docker.io"
        found = self._settings.certificates(name)
        security = self._settings.security(name)
        verified = security.verified or security.scheme == "http"
        special = bool(found.authorities or found.clients) or not verified
        key = netloc if special else ""
        context = self._contexts.get(key)
        if context is not None:
            return context
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        files = [*found.authorities, *([self._settings.options.ca_bundle] if self._settings.options.ca_bundle else [])]
        file = None
        try:
            for file in files:
                context.load_verify_locations(cafile=str(file))
            for file, secret in found.clients:
                context.load_cert_chain(str(file), str(secret))
        except (OSError, ssl.SSLError) as error:
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "not PEM"
            raise InputError("registry.bad-settings", f"cannot use the certificate file {file}: {why}") from None
        if not verified:
            import urllib3

            # Whoever named the host as insecure knows; evidence says it, not a line on stderr for each connection.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._contexts[key] = context
        return context

    def close(self) -> None:
        """Closes every idle connection."""
        with self._lock:
            for pool in self._pools.values():
                pool.clear()
            self._pools.clear()


def network_failure(error: BaseException, request: str) -> UnavailableError:
    """What a fault of the network means; `request` names it in the message."""
    import ssl

    import urllib3.exceptions as faults

    if isinstance(error, faults.ProxyError):
        return UnavailableError(
            "registry.unreachable",
            f"{request}: the proxy did not let it through ({_reason(error.original_error)})",
            hint="check HTTPS_PROXY and NO_PROXY",
        )
    if isinstance(error, faults.SSLError):
        inner = error.args[0] if error.args else None
        if isinstance(inner, ssl.SSLCertVerificationError) or "CERTIFICATE" in str(error):
            why = inner.verify_message if isinstance(inner, ssl.SSLCertVerificationError) else "certificate refused"
            return UnavailableError(
                "registry.tls",
                f"{request}: the certificate cannot be trusted ({clean(why, 200)})",
                hint="give the registry's authority as certs.d/HOST/ca.crt or as a CA bundle",
            )
        if "WRONG_VERSION_NUMBER" in str(error):
            return UnavailableError(
                "registry.tls",
                f"{request}: the host does not speak TLS",
                hint="a registry without TLS is spoken to with --plain-http HOST",
            )
        return DroppedConnection("registry.dropped", f"{request}: the TLS connection broke")
    if isinstance(error, faults.NameResolutionError):
        return UnavailableError("registry.unreachable", f"{request}: the host name is not known", hint="check the host")
    if isinstance(error, (faults.LocationParseError, faults.LocationValueError, ValueError)):
        return UnavailableError("registry.unreachable", f"{request}: not an address that can be asked")
    if isinstance(error, faults.NewConnectionError):
        return DroppedConnection(
            "registry.unreachable", f"{request}: {_reason(error)}", hint="check that the host is up"
        )
    if isinstance(error, (faults.TimeoutError, TimeoutError)):
        return DroppedConnection("registry.dropped", f"{request}: no byte came in time")
    return DroppedConnection("registry.dropped", f"{request}: the connection broke ({_reason(error)})")


def _reason(error: BaseException) -> str:
    """A few words on a fault, from its class and the system's own error text, never from what was sent."""
    seen: BaseException | None = error
    for _ in range(4):
        if isinstance(seen, OSError) and seen.strerror:
            return clean(seen.strerror, 100)
        if seen is None:
            break
        inner = seen.__cause__ or seen.__context__
        if inner is None and len(seen.args) > 1 and isinstance(seen.args[1], BaseException):
            inner = seen.args[1]
        seen = inner
    return type(error).__name__
