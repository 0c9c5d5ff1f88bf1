"""Whose word counts: public keys with a name, a role and the days between which they count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from imagebuild.attest.public_key import PublicKey
from imagebuild.attest.signers import open_public_key, read_key_file
from imagebuild.target.policy import PolicyKey


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a certificate must name, exactly: the subject's alternative name and the issuer of the identity."""

    name: str
    issuer: str

    def __str__(self) -> str:
        return f"{self.name} (identity, by {self.issuer})"


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key and what it is trusted with; both days are included, in UTC."""

    name: str
    key: PublicKey
    role: str = ""
    valid_from: date | None = None
    valid_until: date | None = None

    def counts_on(self, day: date) -> bool:
        return (self.valid_from is None or self.valid_from <= day) and (
            self.valid_until is None or day <= self.valid_until
        )

    def __str__(self) -> str:
        role = f", {self.role}" if self.role else ""
        return f"{self.name} ({self.key.fingerprint}{role})"


def day_of(seconds: int) -> date:
    """The day in UTC of whole seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).date()


def keys_of_policy(keys: Mapping[str, PolicyKey], folder: Path) -> tuple[TrustedKey, ...]:
    """The keys that a policy lists; a `file` is below `folder`.  Raises InputError `attest.bad-key`, `attest.no-key`,
    `attest.unsupported-key`."""
    out = []
    for entry in keys.values():
        if entry.pem is not None:
            key = PublicKey.parse(entry.pem.encode("utf-8"), f"the key {entry.name}")
        else:
            path = folder / (entry.file or "")
            key = PublicKey.parse(read_key_file(path), str(path))
        out.append(TrustedKey(entry.name, key, entry.role, entry.valid_from, entry.valid_until))
    return tuple(out)


def keys_named(texts: Iterable[str]) -> tuple[TrustedKey, ...]:
    """The keys of `--key`, each without role or end."""
    return tuple(TrustedKey(text, open_public_key(text)) for text in texts)


def count_signers(keys: Sequence[TrustedKey], *, distinct_roles: bool = False) -> int:
    """How many distinct public keys there are; with `distinct_roles`, how many of them can each stand for a role of
    its own.  A key that is listed twice, under whatever names and roles, is one."""
    roles: dict[PublicKey, set[str]] = {}
    for item in keys:
        roles.setdefault(item.key, set()).add(item.role)
    if not distinct_roles:
        return len(roles)
    taken: dict[str, PublicKey] = {}

    def place(key: PublicKey, tried: set[str]) -> bool:
        for role in sorted(roles[key]):
            if role in tried:
                continue
            tried.add(role)
            holder = taken.get(role)
            if holder is None or place(holder, tried):
                taken[role] = key
                return True
        return False

    return sum(place(key, set()) for key in roles)
