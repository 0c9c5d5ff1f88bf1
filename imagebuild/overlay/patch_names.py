"""The names in the headers of diffs: quoting, timestamps behind them, and the prefixes before them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from imagebuild.errors import InputError, clean
from imagebuild.overlay.patch import bad_patch

_PREFIXES = frozenset("abciow12")
_ESCAPES = {
    ord("a"): 7,
    ord("b"): 8,
    ord("t"): 9,
    ord("n"): 10,
    ord("v"): 11,
    ord("f"): 12,
    ord("r"): 13,
    ord('"'): 34,
    ord("\\"): 92,
}


def shown(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def read_name(raw: bytes, number: int) -> str:
    """A name as it stands in a header: perhaps quoted as C does, perhaps with a timestamp behind a tab."""
    if raw.startswith(b'"'):
        raw = _unquoted(raw, number)
    else:
        raw = raw.partition(b"\t")[0]
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            "overlay.bad-path", f"line {number} of the patch: a path that is not UTF-8: {raw[:200]!r}"
        ) from error


def _unquoted(raw: bytes, number: int) -> bytes:
    out = bytearray()
    at = 1
    while at < len(raw):
        byte = raw[at]
        if byte == 0x22:
            return bytes(out)
        if byte != 0x5C:
            out.append(byte)
            at += 1
            continue
        octal = re.match(rb"[0-3][0-7]{2}", raw[at + 1 : at + 4])
        if octal:
            out.append(int(octal[0], 8))
            at += 4
        elif at + 1 < len(raw) and raw[at + 1] in _ESCAPES:
            out.append(_ESCAPES[raw[at + 1]])
            at += 2
        else:
            break
    raise bad_patch(f"cannot read the quoted name {clean(shown(raw), 200)}", number, code="overlay.patch-bad-header")


def is_epoch(raw: bytes) -> bool:
    """Whether the timestamp behind a name is 1970-01-01T00:00:00Z, GNU diff's word for a file that is not there."""
    stamp = raw.rpartition(b'"')[2].partition(b"\t")[2].decode("ascii", "replace").strip()
    found = re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.0+)? ([+-])(\d\d)(\d\d)\Z", stamp)
    if found is None:
        return False
    try:
        local = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return False
    shift = timedelta(hours=int(found[3]), minutes=int(found[4]))
    return (local - shift if found[2] == "+" else local + shift) == datetime(1970, 1, 1)


def tail(path: str) -> str | None:
    """The path without its first component."""
    return path.partition("/")[2] or None


def unprefixed(path: str) -> str:
    """One path alone: its prefix goes only where it is one of those that git and mercurial write."""
    first, slash, rest = path.partition("/")
    return rest if slash and rest and first in _PREFIXES else path


def same_file(old: str, new: str, number: int) -> str:
    """The one path that two names of a diff mean, as `patch -p1` or `-p0` would take it."""
    for suffix in (".orig", ".old", "~"):
        if old == new + suffix:
            old = new
    if old == new:
        return new
    if tail(old) is not None and tail(old) == tail(new):
        return new.partition("/")[2]
    raise bad_patch(
        f"two different names for one file: {clean(old, 200)!r} and {clean(new, 200)!r}",
        number,
        "make the diff with git, or with `diff -ru OLD NEW` from the folder above both",
        "overlay.patch-bad-header",
    )


def git_names(raw: bytes, number: int) -> tuple[str, str]:
    """The two names of a `diff --git` line without rename: they are the same but for the prefix."""
    if raw.startswith(b'"'):
        first = _unquoted(raw, number)
        quoted = re.match(rb'"(?:[^"\\]|\\.)*" (.*)\Z', raw, re.DOTALL)
        if quoted:
            return first.decode("utf-8", "replace"), read_name(quoted[1], number)
    text = read_name(raw, number)
    for at in (at for at, char in enumerate(text) if char == " "):
        old, new = text[:at], text[at + 1 :].strip('"')
        if old == new or (tail(old) is not None and tail(old) == tail(new)):
            return old, new
    raise bad_patch(f"cannot read the names in {clean(text, 300)!r}", number, code="overlay.patch-bad-header")


def header_fields(header: bytes) -> dict[str, str]:
    """The fields of the text above a patch: a DEP-3 header, or the head of a mail (`git format-patch`).

    Continuation lines begin with a space and are joined by newlines.  Free text, mbox `From ` lines and everything from
    a line `---` on are passed over; the first of two equal fields counts.
    """
    out: dict[str, str] = {}
    last: str | None = None
    for raw in header.split(b"\n"):
        line = raw.decode("utf-8", "replace").rstrip("\r")
        if line == "---":
            break
        found = re.match(r"([A-Z][A-Za-z]*(?:-[A-Za-z]+)*):[ \t]*(.*)\Z", line)
        if found is not None:
            last = found[1] if found[1] not in out else None
            out.setdefault(found[1], found[2].strip())
        elif line.startswith((" ", "\t")) and last is not None:
            out[last] = f"{out[last]}\n{line.strip()}" if out[last] else line.strip()
        else:
            last = None
    return out
