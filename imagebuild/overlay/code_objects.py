"""Which GPU architectures a file holds code for, read from the file itself.

AMD code objects are ELF files of machine EM_AMDGPU whose e_flags name the processor (LLVM, User Guide for AMDGPU
Backend, ELF Code Object, Header); compilers put several of them into a bundle (Clang Offload Bundler, Bundled Binary
File Layout), plain or compressed, and bundles into the section `.hip_fatbin` of a shared object.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuild.content.files import io_faults
from imagebuild.overlay.elf import EM_AMDGPU, HEADER_SIZE, ElfHeader, read_elf_header

BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED = b"CCOB"
SECTION = b".hip_fatbin"
ENTRY_LIMIT = 4096
"""Code objects in one bundle at most, and bundles in one file; beyond it is no bundle."""
TABLE_LIMIT = 1 << 20
_HEADERS = {1: 20, 2: 24, 3: 32}
"""Version of a compressed bundle: where its data begins."""
_MACH = 0xFF
_PROCESSORS = {
    0x020: "gfx600", 0x021: "gfx601", 0x022: "gfx700", 0x023: "gfx701", 0x024: "gfx702", 0x025: "gfx703", 0x026: "gfx704",
    0x028: "gfx801", 0x029: "gfx802", 0x02A: "gfx803", 0x02B: "gfx810", 0x02C: "gfx900", 0x02D: "gfx902", 0x02E: "gfx904",
    0x02F: "gfx906", 0x030: "gfx908", 0x031: "gfx909", 0x032: "gfx90c", 0x033: "gfx1010", 0x034: "gfx1011", 0x035: "gfx1012",
    0x036: "gfx1030", 0x037: "gfx1031", 0x038: "gfx1032", 0x039: "gfx1033", 0x03A: "gfx602", 0x03B: "gfx705", 0x03C: "gfx805",
    0x03D: "gfx1035", 0x03E: "gfx1034", 0x03F: "gfx90a", 0x040: "gfx940", 0x041: "gfx1100", 0x042: "gfx1013", 0x043: "gfx1150",
    0x044: "gfx1103", 0x045: "gfx1036", 0x046: "gfx1101", 0x047: "gfx1102", 0x048: "gfx1200", 0x049: "gfx1250", 0x04A: "gfx1151",
    0x04B: "gfx941", 0x04C: "gfx942", 0x04E: "gfx1201", 0x04F: "gfx950", 0x051: "gfx9-generic", 0x052: "gfx10-1-generic",
    0x053: "gfx10-3-generic", 0x054: "gfx11-generic", 0x055: "gfx1152", 0x058: "gfx1153", 0x059: "gfx12-generic",
    0x05A: "gfx1251", 0x05F: "gfx9-4-generic",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BinaryFacts:
    """`machine` is the ELF machine's word (`x86_64`, `aarch64`, `amdgpu`), None for what is no ELF file; `targets` the
    processors that it holds AMD code for, without features (`gfx950`), sorted."""

    machine: str | None
    targets: tuple[str, ...] = ()


def read_binary(path: Path) -> BinaryFacts:
    """Reads headers, section names and bundle tables of the file; what is damaged counts as not there."""
    with io_faults(path, "reading"), open(path, "rb") as stream:
        if os.fstat(stream.fileno()).st_size < len(BUNDLE):
            return BinaryFacts(None)
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _facts(data)


def _facts(data: mmap.mmap) -> BinaryFacts:
    header = read_elf_header(data[:HEADER_SIZE])
    if header is None:
        return BinaryFacts(None, tuple(sorted(set(_targets(data, 0, len(data))))) if _at_bundle(data, 0) else ())
    if header.machine == EM_AMDGPU:
        return BinaryFacts(header.machine_name, (processor(header.flags),))
    found: set[str] = set()
    for start, end in _sections(data, header):
        found.update(_targets(data, start, end))
    return BinaryFacts(header.machine_name, tuple(sorted(found)))


def processor(flags: int) -> str:
    """The processor that e_flags of a code object name."""
    return _PROCESSORS.get(flags & _MACH, f"mach 0x{flags & _MACH:03x}")


def _at_bundle(data: mmap.mmap, at: int) -> bool:
    return data[at : at + len(BUNDLE)] == BUNDLE or data[at : at + len(COMPRESSED)] == COMPRESSED


def _sections(data: mmap.mmap, header: ElfHeader) -> Iterator[tuple[int, int]]:
    """Where the sections with bundles lie."""
    order = "little" if header.little else "big"
    offset, size, count, names = header.sections
    wide = header.bits == 64
    if not offset or size < (64 if wide else 40) or offset + size * count > len(data) or names >= count:
        return

    def number(at: int, width: int) -> int:
        return int.from_bytes(data[at : at + width], order)  # type: ignore[arg-type]

    def place(index: int) -> tuple[int, int]:
        at = offset + index * size
        first, width = (24, 8) if wide else (16, 4)
        start = number(at + first, width)
        return start, start + number(at + first + width, width)

    strings, strings_end = place(names)
    for index in range(count):
        at = strings + number(offset + index * size, 4)
        start, end = place(index)
        if data[at : at + len(SECTION) + 1] == SECTION + b"\0" and at < strings_end and end <= len(data):
            yield start, end


def _targets(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    """The processors of every bundle in a range; bundles stand one behind the other, padded."""
    for magic, table in ((BUNDLE, _plain_table), (COMPRESSED, _compressed_table)):
        at = data.find(magic, start, end)
        count = 0
        while at >= 0 and count < ENTRY_LIMIT:
            yield from _entries(table(data, at, end))
            count += 1
            at = data.find(magic, at + len(magic), end)


def _plain_table(data: mmap.mmap, at: int, end: int) -> bytes:
    return data[at : min(end, at + TABLE_LIMIT)]


def _compressed_table(data: mmap.mmap, at: int, end: int) -> bytes:
    """The beginning of a compressed bundle, unpacked; b"" where it is none."""
    version, method = (int.from_bytes(data[at + 4 + n : at + 6 + n], "little") for n in (0, 2))
    if version not in _HEADERS or method not in (0, 1):
        return b""
    raw = data[at + _HEADERS[version] : end]
    try:
        if method == 0:
            return zlib.decompressobj().decompress(raw, TABLE_LIMIT)
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            return stream.read(TABLE_LIMIT)
    except Exception as error:
        if isinstance(error, zlib.error) or type(error).__name__ == "ZstdError":
            return b""
        raise


def _entries(table: bytes) -> Iterator[str]:
    """The processors that a bundle's table names: entries of offset, size, length of the id, id."""
    if table[: len(BUNDLE)] != BUNDLE:
        return
    at = len(BUNDLE)
    count = int.from_bytes(table[at : at + 8], "little")
    at += 8
    if count > ENTRY_LIMIT:
        return
    for _ in range(count):
        length = int.from_bytes(table[at + 16 : at + 24], "little")
        name = table[at + 24 : at + 24 + length]
        if length > 256 or len(name) < length:
            return
        at += 24 + length
        # KIND-TRIPLE-PROCESSOR[:FEATURE…]; the triple has three parts, or four with an empty one
        text = name.decode("ascii", "replace").partition(":")[0]
        if "amdgcn" in text:
            target = text.rpartition("--")[2] if "--" in text else "-".join(text.split("-")[4:])
            if target:
                yield target
