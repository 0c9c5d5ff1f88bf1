"""Facts about layers on disk, by layer digest: a layer is read once for ever (images.md, Reading 2)."""

from __future__ import annotations

import hashlib
import struct
import sys
import zlib
from array import array
from pathlib import Path
from typing import Any

from imagebuild.content.canonical import canonical_json, load_json
from imagebuild.content.digest import Digest
from imagebuild.content.files import atomic_write
from imagebuild.errors import ImagebuildError
from imagebuild.layer.entry import LayerFacts
from imagebuild.layer.table import KINDS, NUMBERS, EntryTable

_MAGIC = b"imagebuild layer facts 1\n"
"""The number is the version of format *and* of the reader's rules: raise it when either changes."""
_HEAD = struct.Struct("<IB16s")
_CHECK = 32


class FactsStore:
    """`ROOT/sha256/HEX.facts`, one file a layer: columns, compressed, with a checksum over all.

    A file that is damaged, of another version or under another layer's name counts as absent.  The checksum keeps out
    accidents, not attackers: whoever can write here can write the cache that it is part of.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: Digest) -> Path:
        return self.root / "sha256" / f"{digest.hex}.facts"

    def load(self, digest: Digest) -> LayerFacts | None:
        """What is known of the layer with this digest (of the stored bytes), or None."""
        try:
            data = self.path(digest).read_bytes()
        except OSError:
            return None
        try:
            facts = decode_facts(data)
        except (ValueError, KeyError, TypeError, IndexError, struct.error, zlib.error, ImagebuildError):
            return None
        return facts if facts.digest == digest else None

    def store(self, facts: LayerFacts) -> None:
        """Keeps the facts; raises UnavailableError `content.disk-full` or `content.io`."""
        atomic_write(self.path(facts.digest), encode_facts(facts))


def encode_facts(facts: LayerFacts) -> bytes:
    """One text of bytes for these facts: equal facts give equal bytes under one zlib."""
    table = EntryTable.of_entries(facts.entries)
    numbers = array("q", table.numbers)
    if sys.byteorder == "big":
        numbers.byteswap()
    rest: dict[str, Any] = {
        "digest": str(facts.digest),
        "diffId": str(facts.diff_id),
        "tarSize": facts.tar_size,
        "count": len(table),
        "whiteouts": sorted(map(_escape, facts.whiteouts)),
        "opaques": sorted(map(_escape, facts.opaques)),
        "notes": [[code, _escape(path)] for code, path in facts.notes],
        "links": {str(at): _escape(link) for at, link in table.links.items()},
        "xattrs": {str(at): [[_escape(k), v.hex()] for k, v in pairs] for at, pairs in table.xattrs.items()},
        "devices": {str(at): list(device) for at, device in table.devices.items()},
    }
    sections = [
        zlib.compress(canonical_json(rest), 1),
        zlib.compress("\0".join(table.paths).encode("utf-8", "surrogateescape"), 1),
        zlib.compress(table.kinds, 1),
        zlib.compress(numbers.tobytes(), 1),
        zlib.compress(b"".join(_HEAD.pack(at, len(head), head) for at, head in sorted(table.heads.items())), 1),
        table.shas,
    ]
    body = _MAGIC + struct.pack("<6Q", *map(len, sections)) + b"".join(sections)
    return body + hashlib.sha256(body).digest()


def decode_facts(data: bytes) -> LayerFacts:
    """The facts in `data`; raises ValueError (or another error of parsing) for anything that is not whole."""
    start = len(_MAGIC) + 48
    if not data.startswith(_MAGIC) or len(data) < start + _CHECK:
        raise ValueError("not facts of this version")
    if hashlib.sha256(memoryview(data)[:-_CHECK]).digest() != data[-_CHECK:]:
        raise ValueError("damaged facts")
    sections = []
    for size in struct.unpack("<6Q", data[len(_MAGIC) : start]):
        sections.append(data[start : start + size])
        start += size
    rest = load_json(zlib.decompress(sections[0]), "facts")
    count = rest["count"]
    text = zlib.decompress(sections[1]).decode("utf-8", "surrogateescape")
    paths = text.split("\0") if count else []
    kinds = zlib.decompress(sections[2])
    if kinds and max(kinds) >= len(KINDS):
        raise ValueError("an unknown kind")
    numbers = array("q")
    numbers.frombytes(zlib.decompress(sections[3], bufsize=8 * NUMBERS * count + 1))
    if sys.byteorder == "big":
        numbers.byteswap()
    heads = {at: head[:length] for at, length, head in _HEAD.iter_unpack(zlib.decompress(sections[4]))}
    table = EntryTable(
        paths,
        kinds,
        numbers,
        sections[5],
        {int(at): _unescape(link) for at, link in rest["links"].items()},
        {int(at): tuple((_unescape(k), bytes.fromhex(v)) for k, v in pairs) for at, pairs in rest["xattrs"].items()},
        {int(at): (major, minor) for at, (major, minor) in rest["devices"].items()},
        heads,
    )
    return LayerFacts(
        Digest.parse(rest["digest"]),
        Digest.parse(rest["diffId"]),
        rest["tarSize"],
        table,
        frozenset(map(_unescape, rest["whiteouts"])),
        frozenset(map(_unescape, rest["opaques"])),
        tuple((code, _unescape(path)) for code, path in rest["notes"]),
    )


def _escape(text: str) -> str:
    """A path for JSON, which has no place for lone surrogates: each byte a character where it is not UTF-8 text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "\0" + text.encode("utf-8", "surrogateescape").decode("latin-1")
    return text


def _unescape(text: str) -> str:
    if text.startswith("\0"):
        return text[1:].encode("latin-1").decode("utf-8", "surrogateescape")
    return text
