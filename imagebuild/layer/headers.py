"""One 512-byte tar header: checksum, numbers, names, in the v7, ustar, GNU and star dialects (POSIX.1-1988 and later)."""

from __future__ import annotations

from imagebuild.layer.names import TarFault

BLOCK = 512
ZERO_BLOCK = bytes(BLOCK)
_OCTAL = b"01234567"
_POSIX_MAGIC = b"ustar\x0000"
_GNU_MAGIC = b"ustar  \0"
_INT64 = 1 << 63


def checksum_is_right(block: bytes) -> bool:
    """Whether the header's sum of bytes is right, read as unsigned (POSIX) or signed bytes (some old writers)."""
    try:
        stored = parse_number(block[148:156])
    except TarFault:
        return False
    rest = block[:148] + block[156:]
    total = 256 + sum(rest.translate(None, b"\0"))
    if total == stored:
        return True
    return total - 256 * sum(byte > 127 for byte in rest) == stored


def parse_number(field: bytes) -> int:
    """An octal field, or base-256 where the first bit is set.  Raises TarFault `base.bad-tar`."""
    first = field[0]
    if first & 0x80:
        value = int.from_bytes(field, "big", signed=False)
        bits = len(field) * 8
        value &= (1 << (bits - 1)) - 1
        if first & 0x40:
            value -= 1 << (bits - 1)
        if not -_INT64 <= value < _INT64:
            raise TarFault("base.bad-tar", "a base-256 number does not fit 64 bits")
        return value
    digits = field.strip(b" \0").partition(b"\0")[0]
    if not digits:
        return 0
    if digits.translate(None, _OCTAL):
        raise TarFault("base.bad-tar", f"a number field holds {field!r}")
    return int(digits, 8)


def text_field(field: bytes) -> bytes:
    """The bytes up to the first NUL."""
    return field.partition(b"\0")[0]


def parse_owner(field: bytes) -> tuple[int, int, int]:
    """Mode (12 bits), uid and gid of the 24 bytes at offset 100."""
    mode = parse_number(field[:8])
    return mode & 0o7777, check_id(parse_number(field[8:16])), check_id(parse_number(field[16:24]))


def check_id(value: int) -> int:
    """A user or group id as the kernel knows it (32 bits, all ones reserved)."""
    if not 0 <= value < 0xFFFFFFFF:
        raise TarFault("base.bad-tar", f"the owner id {value} is not one that a kernel knows")
    return value


def check_size(value: int) -> int:
    """A size that is not negative and below 2^63."""
    if not 0 <= value < _INT64:
        raise TarFault("base.bad-tar", f"the size {value} is not valid")
    return value


def header_name(block: bytes) -> bytes:
    """The name field with the prefix of the dialects that have one."""
    name = text_field(block[:100])
    if block[345] == 0:
        return name
    magic = block[257:265]
    if magic == _POSIX_MAGIC or magic[:6] == b"ustar\0":
        end = 476 if block[508:512] == b"tar\0" else 500
        return text_field(block[345:end]) + b"/" + name
    if magic == _GNU_MAGIC and not _is_gnu_time(block[345:357]):
        # Go before 1.8 wrote a prefix into GNU headers, and every engine (all of them use Go's reader) honours it.
        prefix = text_field(block[345:500])
        if prefix.isascii():
            return prefix + b"/" + name
        raise TarFault("base.bad-tar", "a GNU header holds neither a time nor a prefix where one of them stands")
    return name


def _is_gnu_time(field: bytes) -> bool:
    try:
        parse_number(field)
    except TarFault:
        return False
    return True


def device_of(block: bytes) -> tuple[int, int]:
    """Major and minor number."""
    major, minor = parse_number(block[329:337]), parse_number(block[337:345])
    if not (0 <= major < 1 << 32 and 0 <= minor < 1 << 32):
        raise TarFault("base.bad-tar", f"the device number {major}:{minor} is not valid")
    return major, minor
