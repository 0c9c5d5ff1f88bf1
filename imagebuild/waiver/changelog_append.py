"""An entry at the physical end of a repository's changelog, in that file's own manner; no earlier byte is touched."""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebuild.content.strict_yaml import quoted
from imagebuild.errors import InputError, RefusedError
from imagebuild.waiver.changelog import blank_between

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.*/-]*")
_LINK = re.compile(rb"^[ \t]+pr-link:[ \t]*[\"']?(https?://[^\s\"']+/pull/)\d+", re.MULTILINE)
_ITEM = re.compile(rb"^[ \t]+config-keys:[ \t]*\n([ \t]+)- |^- config-keys:[ \t]*\n([ \t]+)- ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ChangelogEntry:
    """What an entry says: the configurations' keys, what changed (a line each), the pull request's address."""

    keys: tuple[str, ...]
    description: tuple[str, ...]
    link: str

    def __post_init__(self) -> None:
        if not self.keys or not self.description or not self.link:
            raise InputError(
                "changelog.bad-entry",
                "an entry has configuration keys, a description and a pull request",
                found=", ".join(name for name in ("keys", "description", "link") if not getattr(self, name))
                + " missing",
            )


def link_of(before: bytes, number: int) -> str | None:
    """The address of a pull request as the last entry writes such addresses; None where no entry has one."""
    found = _LINK.findall(before)
    return f"{found[-1].decode('utf-8', 'replace')}{number}" if found else None


def append_entry(before: bytes, entry: ChangelogEntry, shown: str) -> bytes:
    """The file with the entry at its end; the same bytes where it stands there already.

    Raises RefusedError `changelog.cannot-append` where the file is no list of entries, or its last line has no end (git
    would show that line as changed).
    """
    if before and not before.endswith(b"\n"):
        raise RefusedError(
            "changelog.cannot-append",
            f"the last line of {shown} has no end, and an appended entry would change it",
            expected="a file that ends in a line end",
        )
    plain = before.replace(b"\r\n", b"\n")
    if before.strip() and not re.search(rb"^- ", plain, re.MULTILINE):
        raise RefusedError(
            "changelog.cannot-append", f"{shown} is no list of entries", expected="lines that begin with `- `"
        )
    text = _text(plain, entry)
    if plain.endswith(text):
        return before
    # as the check of an append wants it
    gap = b"\n" if before.strip() and blank_between(plain) and not plain.endswith(b"\n\n") else b""
    added = gap + text
    return before + (added.replace(b"\n", b"\r\n") if before.endswith(b"\r\n") else added)


def _text(before: bytes, entry: ChangelogEntry) -> bytes:
    found = _ITEM.findall(before)
    indent = next((one for one in found[-1] if one), b"    ").decode() if found else "    "
    lines = ["- config-keys:", *(f"{indent}- {_scalar(key)}" for key in entry.keys)]
    lines += ["  description:", *(f"{indent}- {quoted(text)}" for text in entry.description)]
    lines.append(f"  pr-link: {entry.link}")
    return ("\n".join(lines) + "\n").encode()


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else quoted(text)
