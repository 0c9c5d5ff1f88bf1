"""References, in skopeo's transports (cli.md, Common; distribution/reference for the grammar of names).

`TagReference` and `DigestReference` are different types: whatever goes into a plan takes the second, so nothing
unpinned can reach it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError

HUB = "docker.io"
_DOMAIN = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?\Z"
)
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
TRANSPORTS = ("docker", "oci", "oci-archive", "docker-archive", "docker-daemon", "dir")
PATH_TRANSPORTS = ("oci", "oci-archive", "docker-archive", "dir")
_REF_NAME = re.compile(
    r"[A-Za-z0-9]+(?:(?:--|[-._:@+])[A-Za-z0-9]+)*(?:/[A-Za-z0-9]+(?:(?:--|[-._:@+])[A-Za-z0-9]+)*)*\Z"
)
_LONGEST = 1024
_LONGEST_PATH = 4096


def _bad(text: str, why: str) -> InputError:
    return InputError(
        "oci.bad-reference",
        f"cannot read the reference {text[:200]!r}: {why}",
        hint="forms: HOST/REPO:TAG@sha256:…, oci:DIR[:NAME][@sha256:…], oci-archive:FILE[:NAME], "
        "docker-archive:FILE[:NAME], docker-daemon:NAME, dir:ROOTFS",
    )


def _check_tag(tag: str, text: str) -> None:
    if not _TAG.match(tag):
        raise _bad(text, f"{tag[:130]!r} is not a tag (at most 128 letters, digits, and _ . - not first)")


def _is_host(word: str) -> bool:
    """Whether the first component of a name is a host (distribution/reference: a dot, a port, a capital, localhost)."""
    return "." in word or ":" in word or word == "localhost" or word != word.lower()


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of a registry: `host` (with port), and `path` without leading slash.

    Raises InputError `oci.bad-reference` where one of them breaks the grammar of distribution/reference.
    """

    host: str
    path: str

    def __post_init__(self) -> None:
        text = f"{self.host}/{self.path}"
        if len(text) > _LONGEST:
            raise _bad(text, "too long")
        if not _DOMAIN.match(self.host):
            raise _bad(text, f"{self.host!r} is not a host name")
        port = self.host[self.host.rindex(":") + 1 :] if self.host.rfind(":") > self.host.rfind("]") else "1"
        if not 1 <= int(port[:6]) <= 65535:
            raise _bad(text, f"{port} is not a port")
        if not _REPOSITORY.match(self.path) or len(self.path) > 255:
            raise _bad(text, f"{self.path!r} is not a repository name (lower case letters, digits, and . _ - between)")
        if not _is_host(self.host) or (self.host == HUB and "/" not in self.path):
            raise _bad(text, "written so it would name a repository of Docker Hub")

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"


@dataclass(frozen=True, slots=True)
class TagReference:
    """A movable name in a registry."""

    repository: Repository
    tag: str

    def __post_init__(self) -> None:
        _check_tag(self.tag, f"{self.repository}:{self.tag}")

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}"


@dataclass(frozen=True, slots=True)
class DigestReference:
    """A pinned name in a registry; `tag` is for people and decides nothing."""

    repository: Repository
    digest: Digest
    tag: str | None = None

    def __post_init__(self) -> None:
        if self.tag is not None:
            _check_tag(self.tag, f"{self.repository}:{self.tag}")

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}@{self.digest}"


RegistryReference = TagReference | DigestReference


@dataclass(frozen=True, slots=True)
class PathReference:
    """A folder or file: `transport` is oci, oci-archive, docker-archive or dir; `name` the image inside it
    (`org.opencontainers.image.ref.name`, or a docker-archive's tag); `digest` pins.

    As in skopeo the path ends at the first colon, so a path that holds one cannot be written (`dir:` excepted).
    """

    transport: str
    path: str
    name: str | None = None
    digest: Digest | None = None

    def __post_init__(self) -> None:
        text = str(self)
        if self.transport not in PATH_TRANSPORTS:
            raise _bad(text, f"{self.transport!r} is not one of {', '.join(PATH_TRANSPORTS)}")
        if not self.path or len(self.path) > _LONGEST_PATH or any(ord(c) < 32 or ord(c) == 127 for c in self.path):
            raise _bad(text, "the path is missing, too long, or holds control characters")
        if self.transport == "dir":
            if self.name is not None or self.digest is not None:
                raise _bad(text, "an unpacked root has neither name nor digest")
            return
        if ":" in self.path or "@sha256" in self.path:
            raise _bad(text, "the path of an image must not hold ':' or '@sha256'")
        if self.transport == "docker-archive":
            if self.digest is not None:
                raise _bad(text, "a docker-archive has no digest to pin")
            if self.name is not None:
                named = parse_registry_reference(self.name)
                if not isinstance(named, TagReference):
                    raise _bad(text, "a docker-archive's name is REPO:TAG")
        elif self.name is not None and (
            len(self.name) > _LONGEST or "@sha256" in self.name or not _REF_NAME.match(self.name)
        ):
            raise _bad(text, f"{self.name!r} is not a ref name (letters and digits, and - . _ : @ + / between)")

    def __str__(self) -> str:
        name = f":{self.name}" if self.name else ""
        pin = f"@{self.digest}" if self.digest else ""
        return f"{self.transport}:{self.path}{name}{pin}"


@dataclass(frozen=True, slots=True)
class DaemonReference:
    """A name in a Docker engine."""

    name: str

    def __post_init__(self) -> None:
        parse_registry_reference(self.name)

    @property
    def pinned(self) -> bool:
        """Whether it names an image by digest, which an engine gives out and does not take."""
        return isinstance(parse_registry_reference(self.name), DigestReference)

    def __str__(self) -> str:
        return f"docker-daemon:{self.name}"


Reference = TagReference | DigestReference | PathReference | DaemonReference


def parse_repository(text: str) -> Repository:
    """`HOST/PATH`, or Docker Hub's short forms (`vllm/vllm-openai`, `debian`).  Raises `oci.bad-reference`."""
    host, slash, path = text.partition("/")
    if not slash or not _is_host(host):
        host, path = HUB, text
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = HUB
    if host == HUB and "/" not in path:
        path = f"library/{path}"
    return Repository(host, path)


def parse_registry_reference(text: str) -> RegistryReference:
    """A registry reference; a missing tag and digest means the tag `latest`.

    Also reads enroot's `HOST#REPO:TAG` and a digest in the tag's place (`REPO:sha256:…`).
    Raises InputError `oci.bad-reference` or `content.bad-digest`.
    """
    if len(text) > _LONGEST:
        raise _bad(text, "too long")
    if not text or any(ord(c) < 33 or ord(c) > 126 for c in text):
        raise _bad(text, "empty, or with spaces, control or other characters outside ASCII")
    if "://" in text:
        raise _bad(text, "a registry is named without http:// or https://")
    rest, at, pin = text.partition("@")
    digest = Digest.parse(pin) if at else None
    if "#" in rest:
        host, _, name = rest.partition("#")
        if "/" in host or not host:
            raise _bad(text, "'#' stands between a host and a repository only")
        rest = f"{host}/{name}"
    tag: str | None = None
    head, colon, tail = rest.rpartition(":")
    if colon and "/" not in tail:
        if digest is None and head.endswith(":sha256"):
            digest = Digest.parse(f"sha256:{tail}")
            rest = head[: -len(":sha256")]
        else:
            rest, tag = head, tail
            _check_tag(tag, text)
    repository = parse_repository(rest)
    if digest is not None:
        return DigestReference(repository, digest, tag)
    return TagReference(repository, tag or "latest")


def _parse_path(transport: str, rest: str) -> PathReference:
    if transport == "dir":
        return PathReference(transport, rest)
    rest, at, pin = rest.partition("@sha256:")
    path, _, name = rest.partition(":")
    return PathReference(transport, path, name or None, Digest(pin) if at else None)


def parse_reference(text: str) -> Reference:
    """Any reference of cli.md.  Raises InputError `oci.bad-reference` or `content.bad-digest`."""
    transport, colon, rest = text.partition(":")
    if colon and transport == "docker" and rest.startswith("//"):
        return parse_registry_reference(rest[2:])
    if colon and transport == "docker-daemon":
        return DaemonReference(rest)
    if colon and transport in PATH_TRANSPORTS:
        return _parse_path(transport, rest)
    return parse_registry_reference(text)


def is_pinned(reference: Reference) -> bool:
    """Whether the reference names bytes, not a movable name."""
    if isinstance(reference, PathReference):
        return reference.digest is not None
    return isinstance(reference, DigestReference)
