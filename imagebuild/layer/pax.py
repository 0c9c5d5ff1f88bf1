"""PAX extended headers (POSIX.1-2001 pax, Extended Header): records, and what they say of the entry that follows."""

from __future__ import annotations

from dataclasses import dataclass

from imagebuild.layer.headers import check_id, check_size
from imagebuild.layer.names import TarFault

PAX_LIMIT = 1 << 20
"""Bytes of a PAX header at most (images.md, Reading 6)."""
XATTR = b"SCHILY.xattr."
_SPARSE = b"GNU.sparse."
_GLOBAL_REFUSED = (b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime", b"hdrcharset", b"charset")
_DIGITS = b"0123456789"


@dataclass(frozen=True, slots=True)
class Extended:
    """What a PAX header says of the next entry; None where it is silent.  `sparse` holds the `GNU.sparse.*` records
    in their order, since format 0.0 repeats keys."""

    path: bytes | None = None
    linkpath: bytes | None = None
    size: int | None = None
    uid: int | None = None
    gid: int | None = None
    mtime: int | None = None
    xattrs: tuple[tuple[str, bytes], ...] = ()
    sparse: tuple[tuple[bytes, bytes], ...] = ()


def parse_records(data: bytes) -> list[tuple[bytes, bytes]]:
    """The `LENGTH KEY=VALUE\\n` records.  Raises TarFault `base.bad-pax`."""
    out = []
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 8)
        digits = data[at:space] if space > 0 else b""
        if not digits or digits.translate(None, _DIGITS):
            raise TarFault("base.bad-pax", "a PAX record has no valid length")
        end = at + int(digits)
        if end > len(data) or end <= space + 1 or data[end - 1] != 0x0A:
            raise TarFault("base.bad-pax", "a PAX record does not end where its length says")
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not equals or not key or b"\0" in key:
            raise TarFault("base.bad-pax", "a PAX record is not KEY=VALUE")
        out.append((key, value))
        at = end
    return out


def parse_extended(data: bytes) -> Extended:
    """A PAX header for one entry; a later record of a key wins, an empty value takes the key back."""
    said: dict[bytes, bytes] = {}
    xattrs: dict[str, bytes] = {}
    sparse = []
    for key, value in parse_records(data):
        if key.startswith(XATTR):
            xattrs[key[len(XATTR) :].decode("utf-8", "surrogateescape")] = value
        elif key.startswith(_SPARSE):
            sparse.append((key[len(_SPARSE) :], value))
        else:
            said[key] = value
    path, link, size = said.get(b"path"), said.get(b"linkpath"), said.get(b"size")
    uid, gid, mtime = said.get(b"uid"), said.get(b"gid"), said.get(b"mtime")
    return Extended(
        _name(path) if path else None,
        _name(link) if link else None,
        check_size(_whole(size)) if size else None,
        check_id(_whole(uid)) if uid else None,
        check_id(_whole(gid)) if gid else None,
        floor_time(mtime) if mtime else None,
        tuple(sorted(xattrs.items())),
        tuple(sparse),
    )


def check_global(data: bytes) -> None:
    """A global header may only hold commentary: POSIX applies its records to all later entries, engines ignore it, so
    one that would change an entry is refused (`base.global-pax`) rather than read one way or the other."""
    for key, value in parse_records(data):
        if value and (key in _GLOBAL_REFUSED or key.startswith((XATTR, _SPARSE))):
            raise TarFault("base.global-pax", f"a global PAX header sets {key.decode('utf-8', 'replace')!r}")


def _name(value: bytes) -> bytes:
    if b"\0" in value:
        raise TarFault("base.bad-pax", "a PAX name holds a NUL")
    return value


def _whole(value: bytes) -> int:
    sign = value.startswith(b"-")
    digits = value[1:] if sign else value
    if not digits or len(digits) > 20 or digits.translate(None, _DIGITS):
        raise TarFault("base.bad-pax", f"{value[:40]!r} is not a whole number")
    return -int(digits) if sign else int(digits)


def floor_time(value: bytes) -> int:
    """Whole seconds at or before a PAX time (`[-]SECONDS[.FRACTION]`)."""
    seconds, _, fraction = value.partition(b".")
    if fraction.translate(None, _DIGITS):
        raise TarFault("base.bad-pax", f"{value[:40]!r} is not a time")
    whole = _whole(seconds)
    if not -(1 << 63) < whole < 1 << 63:
        raise TarFault("base.bad-pax", f"{value[:40]!r} is not a time")
    if value.startswith(b"-") and fraction.strip(b"0"):
        return whole - 1
    return whole
