"""How each registry is reached: its host on the wire, mirrors, scheme, certificates, proxy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.reference import HUB, Repository
from imagebuild.registry.proxies import Proxies, Proxy, is_loopback, split_host
from imagebuild.registry.registries_conf import RegistryEntry, load_registries, registries_files
from imagebuild.registry.statistics import Statistics
from imagebuild.registry.surroundings import Surroundings

HUB_HOST = "registry-1.docker.io"


@dataclass(frozen=True, slots=True, eq=False)
class RegistryOptions:
    """What the command line says of registries; one value serves one run, and is the same as itself only.

    `plain_http` hosts are spoken to without TLS, `insecure` ones with TLS whose certificate is not verified (or
    without, where they refuse it); both are said in the evidence.  `ca_bundle` is a PEM file trusted beside the
    system's authorities.  `allow_base_transfer` lets base layers pass through this machine where a mount is refused,
    at most `jobs` at one time.  `statistics` counts what all sources and sinks of the run move.
    """

    plain_http: frozenset[str] = frozenset()
    insecure: frozenset[str] = frozenset()
    ca_bundle: Path | str | None = None
    allow_base_transfer: bool = False
    jobs: int = 8
    statistics: Statistics = field(default_factory=Statistics)
    surroundings: Surroundings = field(default_factory=Surroundings)


@dataclass(frozen=True, slots=True)
class Location:
    """A repository on the wire: `repository.host` is the registry's name for credentials (`docker.io`); `mirror` tells
    that it stands in for another."""

    repository: Repository
    mirror: bool = False


@dataclass(frozen=True, slots=True)
class Security:
    """How a host's identity is made sure of.  `scheme` is https, http, or probe (HTTPS, and HTTP where that is
    refused); `verified` whether certificates are checked."""

    scheme: str
    verified: bool

    @property
    def word(self) -> str:
        """What evidence says: `tls`, `tls-unverified`, `plain-http`, or `loopback`."""
        if self.scheme == "http":
            return "plain-http"
        return ("loopback" if self.scheme == "probe" else "tls") if self.verified else "tls-unverified"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of `certs.d/HOST`: authorities beside the system's, and client certificates with their keys."""

    authorities: tuple[Path, ...] = ()
    clients: tuple[tuple[Path, Path], ...] = ()


class RegistrySettings:
    """The machine's and the user's settings, read when made."""

    def __init__(self, options: RegistryOptions) -> None:
        self.options = options
        self._entries = load_registries(registries_files(options.surroundings))
        self._proxies = Proxies.load(options.surroundings.variable)
        self._insecure = set(options.insecure)
        for entry in self._entries:
            if entry.insecure:
                self._insecure.add((entry.location or entry.prefix).partition("/")[0])
            self._insecure.update(m.location.partition("/")[0] for m in entry.mirrors if m.insecure)
        if options.ca_bundle is not None and not Path(options.ca_bundle).is_file():
            raise InputError("registry.bad-settings", f"the CA bundle {options.ca_bundle} is not a file")

    def _entry(self, repository: Repository) -> RegistryEntry | None:
        name = str(repository)
        return next((entry for entry in self._entries if entry.matches(name)), None)

    def push_location(self, repository: Repository) -> Location:
        """Where a repository is written.  Raises RefusedError `registry.blocked`."""
        entry = self._entry(repository)
        if entry is None:
            return Location(repository)
        if entry.blocked:
            raise RefusedError(
                "registry.blocked",
                f"{repository} is blocked by registries.conf (prefix {entry.prefix})",
                hint="use another registry, or have the entry changed",
            )
        return Location(_repository(entry.moved(str(repository), entry.location)))

    def pull_locations(self, repository: Repository, by_digest: bool) -> list[Location]:
        """Where a repository is read, in order: mirrors, then the registry itself.  Raises `registry.blocked`."""
        primary = self.push_location(repository)
        entry = self._entry(repository)
        mirrors = entry.mirrors if entry is not None else ()
        return [
            Location(_repository(entry.moved(str(repository), mirror.location)), mirror=True)
            for mirror in mirrors
            if entry is not None and mirror.serves(by_digest)
        ] + [primary]

    def security(self, host: str) -> Security:
        """How `host` (a registry's name, or any host that a redirect leads to) is spoken to."""
        if host in self.options.plain_http:
            return Security("http", False)
        if host in self._insecure or any(
            pattern.startswith("*.") and split_host(host)[0].endswith(pattern[1:]) for pattern in self._insecure
        ):
            return Security("probe", False)
        return Security("probe" if is_loopback(host) else "https", True)

    def proxy(self, scheme: str, host: str) -> Proxy | None:
        return self._proxies.choose(scheme, host)

    def certificates(self, host: str) -> Certificates:
        """What stands in the `certs.d/HOST` folders.  Raises InputError for a certificate without its key."""
        authorities: list[Path] = []
        clients: list[tuple[Path, Path]] = []
        for folder in self._certificate_folders(host):
            if not folder.is_dir():
                continue
            for file in sorted(folder.iterdir()):
                if file.suffix == ".crt":
                    authorities.append(file)
                elif file.suffix == ".cert":
                    key = file.with_suffix(".key")
                    if not key.is_file():
                        raise InputError("registry.bad-settings", f"{file} has no key beside it", expected=str(key))
                    clients.append((file, key))
        return Certificates(tuple(authorities), tuple(clients))

    def _certificate_folders(self, host: str) -> Iterator[Path]:
        around = self.options.surroundings
        for root in (
            around.etc / "docker",
            around.etc / "containers",
            around.home / ".docker",
            around.containers_folder,
        ):
            yield root / "certs.d" / host


def wire_host(host: str) -> str:
    """The host that answers for a registry's name: Docker Hub's differs."""
    return HUB_HOST if host == HUB else host


def _repository(text: str) -> Repository:
    host, _, path = text.partition("/")
    return Repository(host, path)
