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


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of a registry: `host` (with port), and `path` without leading slash."""

    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"


@dataclass(frozen=True, slots=True)
class TagReference:
    """A movable name in a registry."""

    repository: Repository
    tag: str

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}"


@dataclass(frozen=True, slots=True)
class DigestReference:
    """A pinned name in a registry; `tag` is for people and decides nothing."""

    repository: Repository
    digest: Digest
    tag: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}@{self.digest}"


RegistryReference = TagReference | DigestReference


@dataclass(frozen=True, slots=True)
class PathReference:
    """A folder or file: `transport` is oci, oci-archive, docker-archive or dir; `name` the image inside it
    (`org.opencontainers.image.ref.name`, or a docker-archive's tag); `digest` pins."""

    transport: str
    path: str
    name: str | None = None
    digest: Digest | None = None

    def __str__(self) -> str:
        name = f":{self.name}" if self.name else ""
        pin = f"@{self.digest}" if self.digest else ""
        return f"{self.transport}:{self.path}{name}{pin}"


@dataclass(frozen=True, slots=True)
class DaemonReference:
    """A name in a Docker engine."""

    name: str

    def __str__(self) -> str:
        return f"docker-daemon:{self.name}"


Reference = TagReference | DigestReference | PathReference | DaemonReference


def _bad(text: str, why: str) -> InputError:
    return InputError(
        "oci.bad-reference",
        f"cannot read the reference {text!r}: {why}",
        hint="forms: HOST/REPO:TAG@sha256:…, oci:DIR[:NAME][@sha256:…], oci-archive:FILE[:NAME], docker-archive:FILE[:NAME], docker-daemon:NAME, dir:ROOTFS",
    )


def parse_repository(text: str) -> Repository:
    """`HOST/PATH`, or Docker Hub's short forms (`vllm/vllm-openai`, `debian`).  Raises `oci.bad-reference`."""
    host, slash, path = text.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost" or host != host.lower()):
        host, path = HUB, text
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = HUB
    if host == HUB and "/" not in path:
        path = f"library/{path}"
    if not _DOMAIN.match(host):
        raise _bad(text, f"{host!r} is not a host name")
    if not _REPOSITORY.match(path) or len(path) > 255:
        raise _bad(text, f"{path!r} is not a repository name (lower case letters, digits, and . _ - between them)")
    return Repository(host, path)


def parse_registry_reference(text: str) -> RegistryReference:
    """A registry reference; a missing tag and digest means the tag `latest`.

    Also reads enroot's `HOST#REPO:TAG` and a digest in the tag's place (`REPO:sha256:…`).
    """
    rest, at, pin = text.partition("@")
    digest = Digest.parse(pin) if at else None
    if "#" in rest:
        host, _, name = rest.partition("#")
        rest = f"{host}/{name}"
    tag: str | None = None
    head, colon, tail = rest.rpartition(":")
    if colon and "/" not in tail:
        if digest is None and head.endswith(":sha256"):
            digest = Digest.parse(f"sha256:{tail}")
            rest = head[: -len(":sha256")]
        else:
            rest, tag = head, tail
            if not _TAG.match(tag):
                raise _bad(text, f"{tag!r} is not a tag")
    repository = parse_repository(rest)
    if digest is not None:
        return DigestReference(repository, digest, tag)
    return TagReference(repository, tag or "latest")


def _parse_path(transport: str, rest: str, text: str) -> PathReference:
    rest, at, pin = rest.partition("@sha256:")
    digest = Digest(pin) if at else None
    name = None
    if transport != "dir":
        path, colon, tail = rest.rpartition(":")
        if colon and path and "/" not in tail:
            rest, name = path, tail or None
        elif colon and path:
            # docker-archive:FILE:repo/name:tag and oci:DIR:repo/name:tag carry slashes in the name
            first, _, remainder = rest.partition(":")
            rest, name = first, remainder or None
    if not rest:
        raise _bad(text, "the path is missing")
    return PathReference(transport, rest, name, digest)


def parse_reference(text: str) -> Reference:
    """Any reference of cli.md.  Raises InputError `oci.bad-reference` or `content.bad-digest`."""
    if not text or any(ord(c) < 33 for c in text):
        raise _bad(text, "empty, or with spaces or control characters")
    transport, colon, rest = text.partition(":")
    if colon and transport == "docker" and rest.startswith("//"):
        return parse_registry_reference(rest[2:])
    if colon and transport in TRANSPORTS and transport != "docker":
        if transport == "docker-daemon":
            if not rest:
                raise _bad(text, "the name is missing")
            return DaemonReference(rest)
        return _parse_path(transport, rest, text)
    return parse_registry_reference(text)


def is_pinned(reference: Reference) -> bool:
    """Whether the reference names bytes, not a movable name."""
    if isinstance(reference, PathReference):
        return reference.digest is not None
    return isinstance(reference, DigestReference)
