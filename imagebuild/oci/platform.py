"""Platforms (image-spec image-index.md, platform)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagebuild.errors import InputError

_ALIASES = {
    "amd64": "amd64",
    "x86_64": "amd64",
    "x86-64": "amd64",
    "arm64": "arm64",
    "aarch64": "arm64",
}
_VARIANT = re.compile(r"[a-z0-9.]{1,16}\Z")
_MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True, order=True)
class Platform:
    """Operating system and CPU architecture in Go's words; `variant` is "" where absent."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Reads `linux/amd64`, `linux/arm64/v8`, `amd64`, `x86_64`, `arm64`, `aarch64`.

        `v8` of arm64 is the same as no variant and is dropped.  Raises InputError `oci.bad-platform`.
        """
        parts = text.strip().lower().split("/")
        if len(parts) == 1:
            parts = ["linux", *parts]
        if (
            len(parts) not in (2, 3)
            or parts[0] != "linux"
            or parts[1] not in _ALIASES
            or not all(_VARIANT.match(part) for part in parts[2:])
        ):
            raise InputError(
                "oci.bad-platform",
                f"unknown platform {text!r}",
                expected="linux/amd64 or linux/arm64 (amd64, x86_64, arm64, aarch64 are understood)",
                found=text,
            )
        return cls(parts[0], _ALIASES[parts[1]], parts[2] if len(parts) == 3 else "").normalised()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Platform:
        """The platform of a descriptor or config as it stands there, whatever it is (`unknown/unknown` too).

        A missing or null word is "".  Raises InputError `oci.bad-platform` for a word that is not text.
        """

        def word(key: str) -> str:
            item = value.get(key)
            if item is not None and not isinstance(item, str):
                raise InputError("oci.bad-platform", f"a platform whose {key} is not text", found=repr(item)[:80])
            return item or ""

        return cls(word("os"), word("architecture"), word("variant"))

    def normalised(self) -> Platform:
        if self.architecture == "arm64" and self.variant in ("", "v8"):
            return Platform(self.os, self.architecture)
        return self

    def agrees(self, other: Platform) -> bool:
        """Equal, where a variant that is absent on one side agrees with any (images.md, Reading 8)."""
        mine, theirs = self.normalised(), other.normalised()
        return (mine.os, mine.architecture) == (theirs.os, theirs.architecture) and (
            mine.variant == theirs.variant or not mine.variant or not theirs.variant
        )

    @property
    def known(self) -> bool:
        """Whether both words are there and neither is `unknown`."""
        return bool(self.os) and bool(self.architecture) and "unknown" not in (self.os, self.architecture)

    @property
    def machine(self) -> str:
        """The kernel's word, `x86_64` or `aarch64`: what tags and ELF files say."""
        return _MACHINE.get(self.architecture, self.architecture)

    def to_json(self) -> dict[str, str]:
        out = {"architecture": self.architecture, "os": self.os}
        if self.variant:
            out["variant"] = self.variant
        return out

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)
