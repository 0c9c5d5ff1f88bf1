"""Sparse files in the four GNU forms: where their data lies, and the bytes that a reader of the file sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from imagebuild.layer.headers import BLOCK, check_size, parse_number
from imagebuild.layer.names import TarFault

SPARSE_OFFSET = -1
"""`Entry.offset` of a sparse file, whose bytes do not lie in the tar one after another."""
ZEROS = bytes(1 << 20)
_MAP_LIMIT = 1 << 20
Region = tuple[int, int]


def old_regions(block: bytes, more: Callable[[], bytes]) -> tuple[list[Region], int]:
    """The map of an old GNU header (type `S`) and the expanded size; `more` gives the extension blocks."""
    regions = _pairs(block[386:482])
    extended, size = block[482], check_size(parse_number(block[483:495]))
    while extended:
        if len(regions) * 24 > _MAP_LIMIT:
            raise TarFault("base.bad-sparse", "the map of a sparse file is longer than 1 MiB")
        block = more()
        regions += _pairs(block[:504])
        extended = block[504]
    return regions, size


def _pairs(field: bytes) -> list[Region]:
    out = []
    for at in range(0, len(field), 24):
        if field[at] == 0:
            break
        out.append((parse_number(field[at : at + 12]), parse_number(field[at + 12 : at + 24])))
    return out


def _number(text: bytes) -> int:
    if not text or len(text) > 19 or text.translate(None, b"0123456789"):
        raise TarFault("base.bad-sparse", f"{text[:40]!r} is not a number of a sparse map")
    return int(text)


def pax_regions(
    records: Sequence[tuple[bytes, bytes]], take: Callable[[int], bytes], packed: int
) -> tuple[list[Region], int, bytes | None, int]:
    """The map that `GNU.sparse.*` records describe: regions, expanded size, the file's real name where one is given,
    and the bytes of data left after the map.  `take` gives the data's next bytes (format 1.0 keeps its map there);
    `packed` is the entry's size in the tar.  Formats 0.0, 0.1 and 1.0; another raises TarFault `base.bad-sparse`."""
    values = dict(records)
    name = values.get(b"name")
    version = (values.get(b"major"), values.get(b"minor"))
    if version == (b"1", b"0"):
        regions, used = _map_in_data(take, packed)
        return regions, _number(values.get(b"realsize", b"")), name, packed - used
    if version not in ((None, None), (b"0", b"0"), (b"0", b"1")):
        raise TarFault("base.bad-sparse", "the sparse format is none of 0.0, 0.1 and 1.0")
    if b"map" in values:
        numbers = [_number(text) for text in values[b"map"].split(b",")] if values[b"map"] else []
    else:
        numbers = []
        for key, value in records:
            if key == (b"offset", b"numbytes")[len(numbers) % 2]:
                numbers.append(_number(value))
            elif key in (b"offset", b"numbytes"):
                raise TarFault("base.bad-sparse", "the records of a sparse map are out of order")
    if len(numbers) % 2 or len(numbers) != 2 * _number(values.get(b"numblocks", b"")):
        raise TarFault("base.bad-sparse", "a sparse map has not as many numbers as it says")
    return list(zip(numbers[::2], numbers[1::2], strict=True)), _number(values.get(b"size", b"")), name, packed


def _map_in_data(take: Callable[[int], bytes], packed: int) -> tuple[list[Region], int]:
    text = b""
    used = 0
    numbers: list[int] = []
    wanted: int | None = None
    while wanted is None or len(numbers) < wanted:
        line, newline, rest = text.partition(b"\n")
        if not newline:
            if used + BLOCK > min(packed, _MAP_LIMIT):
                raise TarFault("base.bad-sparse", "the map of a sparse file is longer than its data or than 1 MiB")
            text += take(BLOCK)
            used += BLOCK
            continue
        text = rest
        if wanted is None:
            wanted = 2 * _number(line)
        else:
            numbers.append(_number(line))
    return list(zip(numbers[::2], numbers[1::2], strict=True)), used


def check_regions(regions: Sequence[Region], size: int, packed: int) -> None:
    """Regions must be in order, apart, inside the file, and hold exactly the data that the tar has."""
    end = 0
    for offset, length in regions:
        if offset < end or length < 0 or offset + length > size:
            raise TarFault("base.bad-sparse", "the regions of a sparse file overlap or leave the file")
        end = offset + length
    if sum(length for _, length in regions) != packed:
        raise TarFault("base.bad-sparse", "the regions of a sparse file do not add up to its data")


def expand(regions: Sequence[Region], size: int, views: Callable[[int], Iterator[memoryview]]) -> Iterator[memoryview]:
    """The bytes of the file: data from `views(n)` (n bytes in pieces), zeros between."""
    at = 0
    for offset, length in [*regions, (size, 0)]:
        gap = offset - at
        while gap:
            part = min(gap, len(ZEROS))
            yield memoryview(ZEROS)[:part]
            gap -= part
        if length:
            yield from views(length)
        at = offset + length
