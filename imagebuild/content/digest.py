"""Digests of bytes that we hold (image-spec descriptor.md, Digests)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from imagebuild.errors import InputError

_HEX = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A sha256 digest.  `hex` is 64 lower-case hexadecimal digits.

    image-spec registers sha512 and blake3 as well; every registry and engine we speak to answers in sha256, and one
    algorithm keeps "equal digest" and "equal bytes" the same statement, so others are refused on parsing.
    """

    hex: str

    def __post_init__(self) -> None:
        if not _HEX.match(self.hex):
            raise InputError(
                "content.bad-digest",
                f"not a sha256 digest: {self.hex[:80]!r}",
                expected="64 lower-case hexadecimal digits",
                found=self.hex[:80],
            )

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Reads `sha256:HEX`; raises InputError `content.bad-digest` for anything else."""
        algorithm, colon, value = text.partition(":")
        if not colon or algorithm != "sha256":
            raise InputError(
                "content.bad-digest",
                f"not a sha256 digest: {text[:100]!r}",
                expected="sha256:<64 lower-case hexadecimal digits>",
                found=text[:100],
            )
        return cls(value)

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Digest:
        return cls(hashlib.sha256(data).hexdigest())

    def short(self, length: int = 7) -> str:
        """The first `length` hexadecimal digits, for names that people read."""
        return self.hex[:length]

    def __str__(self) -> str:
        return f"sha256:{self.hex}"


def git_blob_id(data: bytes) -> str:
    """The id that git gives to a blob with these bytes (sha1 over `blob SIZE NUL` and the data), 40 hex digits.

    Only ever compared with the `index` lines of diffs; never a guard by itself, since sha1 is not collision resistant.
    """
    header = b"blob %d\0" % len(data)
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()
