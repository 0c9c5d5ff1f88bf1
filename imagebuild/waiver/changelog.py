"""Proof that a changelog grew at its end and nowhere else (waivers.md, `--changelog`).

The diff names the blob before and the blob after (git's `index` line).  The file of today must hash to the second, and the
same file without its last bytes, those that the diff adds, to the first: then every earlier byte is unchanged, whatever the
hunks look like.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from imagebuild.content.strict_yaml import parse_yaml, plain_value
from imagebuild.errors import ImagebuildError
from imagebuild.waiver.change import ChangedFile, ChangeSet
from imagebuild.waiver.findings import BLOCKING, NOTE, WARNING, Finding


@dataclass(frozen=True, slots=True)
class Appended:
    """The old bytes and the bytes behind them."""

    before: bytes
    text: bytes

    @property
    def line(self) -> int:
        """The line on which the new text begins."""
        return self.before.count(b"\n") + 1

    def entries(self) -> list[dict[str, Any]]:
        """The new entries, [] where they are no list of mappings."""
        try:
            value = plain_value(parse_yaml(self.text, "the appended text"))
        except ImagebuildError:
            return []
        return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def git_blob(data: bytes) -> str:
    """The id that git gives a file of these bytes (sha1 of `blob SIZE NUL` and the bytes)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def prove_appended(data: bytes, file: ChangedFile) -> Appended | str:
    """What was appended, or in words why it is no append."""
    if file.old is None:
        return "the change makes the file anew"
    if file.new is None:
        return "the change deletes the file"
    if file.removed:
        return f"{len(file.removed)} earlier line{'s' if len(file.removed) > 1 else ''} changed or removed"
    text = "".join(line.text + "\n" for line in file.added).encode()
    if not data.endswith(b"\n"):
        text = text.removesuffix(b"\n")
    if not text or not data.endswith(text):
        return "the new lines do not stand at the physical end of the file"
    before = data[: len(data) - len(text)]
    if not file.old_blob:
        return "the diff has no `index` line, so the bytes before are not known (git diff prints one)"
    if not git_blob(data).startswith(file.new_blob):
        return "the file is not the one that the diff ends in"
    if not git_blob(before).startswith(file.old_blob):
        return "an earlier byte changed: what stands before the new lines is not the file that the diff starts from"
    return Appended(before, text)


def check_changelog(
    shown: str, data: bytes, change: ChangeSet, number: int | None, keys: frozenset[str]
) -> Iterator[Finding]:
    """The entry was appended, in the file's own manner, for this pull request and (where known) these configurations."""
    file = change.find(shown)
    if file is None:
        yield Finding("changelog.no-entry", BLOCKING, "the change appends no entry to this file", shown)
        return
    proof = prove_appended(data, file)
    if isinstance(proof, str):
        yield Finding("changelog.not-appended", BLOCKING, proof, shown, file.added[0].number if file.added else 0)
        return
    yield Finding(
        "changelog.appended",
        NOTE,
        f"{len(proof.text)} bytes appended, the {len(proof.before)} before them unchanged",
        shown,
        proof.line,
    )
    yield from _manner(shown, proof)
    entries = proof.entries()
    if not entries:
        yield Finding("changelog.bad-entry", BLOCKING, "the appended text is no list of entries", shown, proof.line)
    for entry in entries:
        missing = [key for key in ("config-keys", "description", "pr-link") if not entry.get(key)]
        if missing:
            yield Finding("changelog.bad-entry", BLOCKING, f"the entry has no {', '.join(missing)}", shown, proof.line)
        link = re.search(r"/pull/(\d+)", str(entry.get("pr-link", "")))
        if number is not None and link and int(link[1]) != number:
            yield Finding(
                "changelog.wrong-link",
                WARNING,
                f"pr-link is pull request {link[1]}, the waiver's {number}",
                shown,
                proof.line,
            )
    named = [str(key) for entry in entries for key in _keys(entry)]
    for key in sorted(keys):
        if not any(matches_key(pattern, key) for pattern in named):
            yield Finding(
                "changelog.key-missing", WARNING, f"no entry names the configuration {key}", shown, proof.line
            )


def _keys(entry: dict[str, Any]) -> list[Any]:
    keys = entry.get("config-keys")
    return keys if isinstance(keys, list) else []


def matches_key(pattern: str, key: str) -> bool:
    """Whether an entry's key, in which `*` stands for anything, names a configuration."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), key) is not None


def blank_between(before: bytes) -> bool:
    """Whether a file's entries have a blank line between them: most of them do, or there are no two."""
    entries = len(re.findall(rb"^- ", before, re.MULTILINE))
    return 2 * len(re.findall(rb"\n[ \t]*\n- ", before)) >= entries - 1


def _manner(shown: str, proof: Appended) -> Iterator[Finding]:
    """Separators as the file has them."""
    ends = proof.text.count(b"\n") if proof.before.endswith(b"\r\n") else 0
    if proof.before and proof.text.count(b"\r\n") != ends:
        yield Finding(
            "changelog.separator", BLOCKING, "the new lines end otherwise than those before", shown, proof.line
        )
    proof = Appended(proof.before.replace(b"\r\n", b"\n"), proof.text.replace(b"\r\n", b"\n"))
    blank = blank_between(proof.before)
    if not proof.before.endswith(b"\n") and proof.before:
        yield Finding(
            "changelog.separator", BLOCKING, "the last line before had no end: two lines became one", shown, proof.line
        )
    gap = len(proof.before) - len(proof.before.rstrip(b"\n")) - 1 + len(proof.text) - len(proof.text.lstrip(b"\n"))
    if proof.before and gap != int(blank):
        wanted = "one blank line" if blank else "no blank line"
        yield Finding(
            "changelog.separator", BLOCKING, f"{wanted} stands between entries here, not {gap}", shown, proof.line
        )
    if not proof.text.endswith(b"\n") or proof.text.endswith(b"\n\n"):
        yield Finding("changelog.separator", BLOCKING, "the file must end in exactly one line end", shown, proof.line)
