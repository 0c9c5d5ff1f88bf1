"""Tar blocks put together by hand, well formed or not, for tests of readers."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor

END = bytes(1024)
"""The two zero blocks that end an archive."""
_PLACES = {
    "name": (0, 100),
    "mode": (100, 108),
    "uid": (108, 116),
    "gid": (116, 124),
    "size": (124, 136),
    "mtime": (136, 148),
    "kind": (156, 157),
    "link": (157, 257),
    "magic": (257, 265),
    "uname": (265, 297),
    "gname": (297, 329),
    "major": (329, 337),
    "minor": (337, 345),
    "prefix": (345, 500),
    "rest": (500, 512),
    "sparse": (386, 482),
    "extended": (482, 483),
    "realsize": (483, 495),
}
USTAR = b"ustar\x0000"
GNU = b"ustar  \0"
V7 = b""


def header(name: bytes, size: int | bytes = 0, kind: bytes = b"0", magic: bytes = USTAR, **fields: bytes) -> bytes:
    """One header block; `fields` replace whole fields by raw bytes, `checksum` the checksum field."""
    block = bytearray(512)
    values: Mapping[str, bytes] = {
        "name": name,
        "mode": b"0000644\0",
        "uid": b"0000000\0",
        "gid": b"0000000\0",
        "size": b"%011o\0" % size if isinstance(size, int) else size,
        "mtime": b"14524662400\0",
        "kind": kind,
        "magic": magic,
        **{key: value for key, value in fields.items() if key != "checksum"},
    }
    for key, value in values.items():
        start, end = _PLACES[key]
        if len(value) > end - start:
            raise ValueError(f"{key} is too long")
        block[start : start + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = fields.get("checksum", b"%06o\0 " % sum(block))
    return bytes(block)


def padded(data: bytes) -> bytes:
    """The data, filled up to whole blocks."""
    return data + bytes(-len(data) % 512)


def member(name: bytes, data: bytes = b"", kind: bytes = b"0", magic: bytes = USTAR, **fields: bytes) -> bytes:
    """A header and its data."""
    return header(name, len(data), kind, magic, **fields) + padded(data)


def record(key: bytes, value: bytes) -> bytes:
    """One PAX record."""
    rest = len(key) + len(value) + 3
    length = rest + 1
    while length != rest + len(str(length)):
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    """A PAX header with these records."""
    return member(b"PaxHeader", b"".join(record(key, value) for key, value in records), kind)


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    """A GNU long name (`K`: long link) for the next entry."""
    return member(b"././@LongLink", name + b"\0", kind, GNU)


def blob(tar: bytes, *, compressed: bool = False) -> tuple[bytes, Descriptor]:
    """The tar as a layer blob, plain or gzip, with its descriptor."""
    data = gzip.compress(tar, 1, mtime=0) if compressed else tar
    return data, Descriptor(mt.OCI_LAYER_GZIP if compressed else mt.OCI_LAYER, Digest.of(data), len(data))


def stored_gzip(data: bytes) -> bytes:
    """A gzip member of stored blocks (RFC 1951, 3.2.4; RFC 1952), the same bytes under every version of zlib."""
    out = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]
    for start in range(0, len(data), 0xFFFF) or (0,):
        part = data[start : start + 0xFFFF]
        last = start + len(part) == len(data)
        out += [bytes([last]), len(part).to_bytes(2, "little"), (len(part) ^ 0xFFFF).to_bytes(2, "little"), part]
    out += [zlib.crc32(data).to_bytes(4, "little"), (len(data) & 0xFFFFFFFF).to_bytes(4, "little")]
    return b"".join(out)
