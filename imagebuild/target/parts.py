"""Parts of a target: its base, its roots, where it is published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imagebuild.errors import InputError
from imagebuild.oci.reference import DigestReference, PathReference, Repository, TagReference, parse_reference

IMPORT_NAME = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
"""How a package is imported; a pattern for the whole text."""

Base = DigestReference | PathReference


def parse_base(text: str) -> Base:
    """A base: a pinned reference of a registry, an OCI layout or an OCI archive.

    Raises InputError `target.base-unpinned`, `target.base-transport`, `oci.bad-reference` or `content.bad-digest`.
    """
    reference = parse_reference(text)
    if isinstance(reference, DigestReference):
        return reference
    if isinstance(reference, PathReference) and reference.transport in ("oci", "oci-archive"):
        if reference.digest is not None:
            return reference
    elif not isinstance(reference, TagReference):
        raise InputError(
            "target.base-transport",
            f"{text[:300]} cannot be a base: it has no digest to pin",
            expected="HOST/REPO:TAG@sha256:…, oci:DIR@sha256:… or oci-archive:FILE@sha256:…",
            found=text[:300],
        )
    raise InputError(
        "target.base-unpinned",
        f"the base {text[:300]} is not pinned: a tag may point elsewhere tomorrow",
        expected="…@sha256:<64 hexadecimal digits>",
        found=text[:300],
        hint=f"append @sha256:… (`imagebuild init --base {text[:200]} --sku SKU` looks the digest up and writes it down)",
    )


@dataclass(frozen=True, slots=True)
class RootSpec:
    """How a root's folder is found in the base: by the import name `python`, as the absolute `path`, or as the site
    folder (`purelib`)."""

    python: str | None = None
    path: str | None = None
    purelib: bool = False

    def __post_init__(self) -> None:
        if (self.python is not None) + (self.path is not None) + self.purelib != 1:
            raise InputError("target.bad-root", "a root has one of python, path and purelib")

    def to_json(self) -> dict[str, Any]:
        """The root as it stands in target.yaml."""
        if self.python is not None:
            return {"python": self.python}
        return {"path": self.path} if self.path is not None else {"purelib": True}


@dataclass(frozen=True, slots=True)
class Publish:
    """Where the image goes.  `tag` names the index, `arch_tag` each platform's manifest (None: no such tags)."""

    repository: Repository
    tag: str
    arch_tag: str | None = None
