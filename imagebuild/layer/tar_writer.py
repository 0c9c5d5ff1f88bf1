"""The canonical layer tar: one list of entries, one text of bytes (images.md, Writing the layers).

Format 1.  Order: depth first; in each folder its whiteouts first, then its entries, both by the bytes of their names,
each folder directly before what is in it.  Headers are POSIX ustar; what does not fit (a long or non-ASCII path or link,
a size from 8 GiB, an owner above 2097151, extended attributes) stands in a PAX header before the entry, its records by
the bytes of their keys.  No owner names, times in whole seconds, a whiteout is an empty file of mode 0644 and owner 0:0, a
symbolic link has mode 0777.  Two zero blocks end the archive, and nothing follows them: a last record filled up to 10,240
bytes helps tapes only, and no reader asks for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol

from imagebuild.content.digest import Digest
from imagebuild.errors import RefusedError
from imagebuild.layer.entry import NewEntry, NewKind
from imagebuild.layer.names import PATH_LIMIT, WHITEOUT, bytes_of, is_normal

LAYER_FORMAT = 1
"""Number of the rules above: other bytes for the same entries need another number."""
EARLIEST = 315_532_800
"""1980-01-01T00:00:00Z: `zipfile` and wheel tools refuse files that are older."""
FORBIDDEN_XATTRS = ("security.selinux", "security.ima", "security.evm")
FORBIDDEN_XATTR_PREFIXES = ("trusted.overlay.", "user.overlay.")
_BLOCK = 512
_END = bytes(2 * _BLOCK)
_OCTAL_11 = 8**11
_OCTAL_7 = 8**7
_NAME_LIMIT = 255
_TYPES = {NewKind.FILE: b"0", NewKind.DIRECTORY: b"5", NewKind.SYMLINK: b"2", NewKind.WHITEOUT: b"0"}


class Writable(Protocol):
    """All that is asked of a sink of bytes; it takes each piece whole."""

    def write(self, data: bytes, /) -> object: ...


def write_tar(entries: Iterable[NewEntry], out: Writable) -> None:
    """Writes the canonical tar of `entries` (in any order) to `out`.

    Raises RefusedError `layer.…` before the first byte for a list that breaks a rule, and `layer.data-changed` where a
    file's bytes are not those that its entry promises.
    """
    for entry in canonical_order(entries):
        out.write(_headers(entry))
        if entry.kind is NewKind.FILE:
            _copy(entry, out)
    out.write(_END)


def tar_size(entries: Iterable[NewEntry]) -> int:
    """Bytes that `write_tar` gives for the same entries; raises what it raises for the list."""
    total = len(_END)
    for entry in canonical_order(entries):
        size = entry.data.size if entry.data is not None else 0
        total += len(_headers(entry)) + size + -size % _BLOCK
    return total


def kept_xattrs(xattrs: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """The attributes that may be written (images.md, Writing 4): labels of one host's security modules and overlayfs's
    own marks mean something else, or something dangerous, elsewhere."""
    for name, value in xattrs:
        if name not in FORBIDDEN_XATTRS and not name.startswith(FORBIDDEN_XATTR_PREFIXES):
            yield name, value


def canonical_order(entries: Iterable[NewEntry]) -> list[NewEntry]:
    """The entries in the order of the tar, validated one by one and against each other.

    Raises RefusedError `layer.bad-path`, `layer.bad-entry`, `layer.too-old`, `layer.duplicate-path`,
    `layer.whiteout-and-entry` or `layer.parent-not-a-folder`.
    """
    ordered = sorted(entries, key=_order)
    shown: dict[str, NewEntry] = {}
    hidden: set[str] = set()
    for entry in ordered:
        _validate(entry)
        ours = hidden if entry.kind is NewKind.WHITEOUT else shown
        if entry.path in ours:
            raise _refused("layer.duplicate-path", f"{entry.path!r} stands twice in the layer")
        if entry.kind is NewKind.WHITEOUT:
            hidden.add(entry.path)
        else:
            shown[entry.path] = entry
    for entry in ordered:
        if entry.kind is not NewKind.WHITEOUT and entry.path in hidden:
            raise _refused(
                "layer.whiteout-and-entry",
                f"{entry.path!r} is both deleted and written in one layer",
                hint="an entry hides what lower layers have under its name: leave the deletion out",
            )
        at = entry.path.find("/")
        while at >= 0:
            folder = entry.path[:at]
            if folder in hidden:
                raise _refused(
                    "layer.whiteout-and-entry",
                    f"{entry.path!r} lies below {folder!r}, which is deleted in the same layer",
                )
            above = shown.get(folder)
            if above is not None and above.kind is not NewKind.DIRECTORY:
                raise _refused("layer.parent-not-a-folder", f"{entry.path!r} lies below {folder!r}, which is no folder")
            at = entry.path.find("/", at + 1)
    return ordered


def _order(entry: NewEntry) -> list[tuple[int, bytes]]:
    *folders, name = bytes_of(entry.path).split(b"/")
    return [*((1, folder) for folder in folders), (0 if entry.kind is NewKind.WHITEOUT else 1, name)]


def _refused(code: str, message: str, hint: str | None = None) -> RefusedError:
    return RefusedError(code, message, hint=hint)


def _validate(entry: NewEntry) -> None:
    path = entry.path
    raw = bytes_of(path)
    names = raw.split(b"/")
    if not is_normal(path) or len(raw) > PATH_LIMIT or any(len(name) > _NAME_LIMIT for name in names):
        raise _refused("layer.bad-path", f"{path!r} is not a path that a layer can hold")
    if any(name.startswith(bytes_of(WHITEOUT)) for name in names):
        raise _refused("layer.bad-path", f"{path!r}: names that begin with '.wh.' mean deletions in a layer")
    if entry.mtime < EARLIEST:
        raise RefusedError(
            "layer.too-old",
            f"{path!r} has a time before 1980",
            expected=f"at least {EARLIEST} seconds since 1970",
            found=str(entry.mtime),
        )
    good = (entry.data is not None) == (entry.kind is NewKind.FILE) and bool(entry.link) == (
        entry.kind is NewKind.SYMLINK
    )
    if not good or "\0" in entry.link or len(bytes_of(entry.link)) > PATH_LIMIT:
        raise _refused(
            "layer.bad-entry", f"{path!r}: a file has data, a symbolic link a target, and nothing else either"
        )
    if not (0 <= entry.mode <= 0o7777 and 0 <= entry.uid < 0xFFFFFFFF and 0 <= entry.gid < 0xFFFFFFFF):
        raise _refused("layer.bad-entry", f"{path!r}: mode or owner is out of range")
    if any(not name or "=" in name or "\0" in name for name in entry.xattrs):
        raise _refused("layer.bad-entry", f"{path!r}: an extended attribute's name is empty or holds '=' or NUL")


def _headers(entry: NewEntry) -> bytes:
    """The entry's header, after a PAX header where one is needed."""
    records: dict[bytes, bytes] = {}
    whiteout = entry.kind is NewKind.WHITEOUT
    folder, slash, name = entry.path.rpartition("/")
    text = f"{folder}{slash}{WHITEOUT}{name}" if whiteout else entry.path
    raw = bytes_of(text) + (b"/" if entry.kind is NewKind.DIRECTORY else b"")
    short = _split(raw)
    if short is None:
        records[b"path"] = raw
        short = (b"", _ascii(raw))
    link = bytes_of(entry.link)
    if len(link) > 100 or not link.isascii():
        records[b"linkpath"] = link
        link = _ascii(link)
    mode = 0o644 if whiteout else 0o777 if entry.kind is NewKind.SYMLINK else entry.mode
    numbers = {
        b"uid": (0 if whiteout else entry.uid, _OCTAL_7),
        b"gid": (0 if whiteout else entry.gid, _OCTAL_7),
        b"size": (0 if entry.data is None else entry.data.size, _OCTAL_11),
        b"mtime": (entry.mtime, _OCTAL_11),
    }
    fields = {}
    for key, (value, limit) in numbers.items():
        if value >= limit:
            records[key] = b"%d" % value
        fields[key] = value if value < limit else 0
    if not whiteout:
        for attribute, content in kept_xattrs(entry.xattrs.items()):
            records[b"SCHILY.xattr." + bytes_of(attribute)] = content
    header = _header(short, _TYPES[entry.kind], mode, fields, link)
    if not records:
        return header
    body = b"".join(_record(key, records[key]) for key in sorted(records))
    about = {b"uid": 0, b"gid": 0, b"size": len(body), b"mtime": fields[b"mtime"]}
    return _header((b"", b"PaxHeader"), b"x", 0o644, about, b"") + body + bytes(-len(body) % _BLOCK) + header


def _split(raw: bytes) -> tuple[bytes, bytes] | None:
    """The name as ustar's prefix and name fields, the prefix as short as can be; None where it does not fit."""
    if not raw.isascii():
        return None
    if len(raw) <= 100:
        return b"", raw
    at = raw.find(b"/", len(raw) - 101)
    if 0 < at <= 155 and at < len(raw) - 1:
        return raw[:at], raw[at + 1 :]
    return None


def _ascii(raw: bytes) -> bytes:
    """What a reader without PAX sees of a name."""
    return bytes(byte if byte < 128 else 0x3F for byte in raw[:100])


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH KEY=VALUE\\n`, where LENGTH counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    while length != rest + len(str(length)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _header(name: tuple[bytes, bytes], kind: bytes, mode: int, numbers: dict[bytes, int], link: bytes) -> bytes:
    block = bytearray(_BLOCK)
    block[0 : len(name[1])] = name[1]
    block[100:108] = b"%07o\0" % mode
    block[108:116] = b"%07o\0" % numbers[b"uid"]
    block[116:124] = b"%07o\0" % numbers[b"gid"]
    block[124:136] = b"%011o\0" % numbers[b"size"]
    block[136:148] = b"%011o\0" % numbers[b"mtime"]
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\00000"
    block[329:345] = b"0000000\0" * 2
    block[345 : 345 + len(name[0])] = name[0]
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _copy(entry: NewEntry, out: Writable) -> None:
    assert entry.data is not None
    digest = hashlib.sha256()
    left = entry.data.size
    with entry.data.open() as stream:
        while part := stream.read(1 << 20):
            left -= len(part)
            if left < 0:
                break
            digest.update(part)
            out.write(part)
    if left or Digest(digest.hexdigest()) != entry.data.sha256:
        raise RefusedError(
            "layer.data-changed",
            f"the bytes for {entry.path!r} are not those that were promised",
            expected=f"{entry.data.size} bytes, {entry.data.sha256}",
            found="another size" if left else f"sha256:{digest.hexdigest()}",
        )
    out.write(bytes(-entry.data.size % _BLOCK))
