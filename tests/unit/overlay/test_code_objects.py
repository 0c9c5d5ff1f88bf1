"""ELF machines and GPU architectures, read from the bytes of files."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
import zstandard

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.blob_checks import check_blob, check_machine
from imagebuild.overlay.changes import BlobChange
from imagebuild.overlay.code_objects import BUNDLE, BinaryFacts, processor, read_binary
from imagebuild.overlay.elf import read_elf_header

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
X86, ARM, AMDGPU = 62, 183, 224


def elf(machine: int, flags: int = 0, sections: dict[str, bytes] | None = None, big: bool = False) -> bytes:
    """A 64-bit ELF file of these sections (the names' own one is added)."""
    order = ">" if big else "<"
    names, table, body = b"\0", [struct.pack(order + "10Q", *[0] * 10)[:64]], b""
    for name, data in {**(sections or {}), ".shstrtab": b""}.items():
        at = len(names)
        names += name.encode() + b"\0"
        data = data if name != ".shstrtab" else names
        table.append(struct.pack(order + "IIQQQQIIQQ", at, 1, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0))
        body += data
    head = b"\x7fELF" + bytes([2, 2 if big else 1, 1, 0]) + bytes(8)
    head += struct.pack(
        order + "HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), flags, 64, 0, 0, 64, len(table), len(table) - 1
    )
    return head + body + b"".join(table)


def bundle(*ids: str) -> bytes:
    table = b"".join(struct.pack("<QQQ", 4096, 0, len(name)) + name.encode() for name in ids)
    return BUNDLE + struct.pack("<Q", len(ids)) + table


def compressed(data: bytes, version: int = 2, method: int = 1) -> bytes:
    packed = zstandard.compress(data) if method == 1 else zlib.compress(data)
    wide = "<QQQ" if version == 3 else "<IIQ" if version == 2 else "<IQ"
    sizes = [len(packed), len(data), 0] if version > 1 else [len(data), 0]
    return b"CCOB" + struct.pack("<HH", version, method) + struct.pack(wide, *sizes) + packed


def facts(tmp_path: Path, data: bytes) -> BinaryFacts:
    path = tmp_path / "f"
    path.write_bytes(data)
    return read_binary(path)


HOST = "host-x86_64-unknown-linux--"
GFX950, GFX942 = "hipv4-amdgcn-amd-amdhsa--gfx950:sramecc+:xnack-", "hipv4-amdgcn-amd-amdhsa--gfx942"


@pytest.mark.parametrize(("machine", "word"), [(X86, "x86_64"), (ARM, "aarch64"), (8, "mips"), (9999, "machine 9999")])
def test_the_machine_of_an_elf_file(tmp_path: Path, machine: int, word: str) -> None:
    assert facts(tmp_path, elf(machine)) == BinaryFacts(word)
    assert facts(tmp_path, elf(machine, big=True)) == BinaryFacts(word)


def test_what_is_no_elf_file_has_none(tmp_path: Path) -> None:
    for data in (b"", b"\x7fELF", b"text" * 100, b"\x7fELF" + bytes([7, 1]) + bytes(60), elf(X86)[:40] + b""):
        assert facts(tmp_path, data) == BinaryFacts(None)
    assert read_elf_header(b"\x7fELF" + bytes([1, 1]) + bytes(12) + b"\x03\0" + bytes(60)) is not None


@pytest.mark.parametrize(
    ("flags", "name"), [(0x54F, "gfx950"), (0x4C, "gfx942"), (0x3F, "gfx90a"), (0x30, "gfx908"), (0xEE, "mach 0x0ee")]
)
def test_the_processor_of_a_code_object(tmp_path: Path, flags: int, name: str) -> None:
    assert processor(flags) == name
    assert facts(tmp_path, elf(AMDGPU, flags)) == BinaryFacts("amdgpu", (name,))


def test_a_bundle_names_its_processors(tmp_path: Path) -> None:
    assert facts(tmp_path, bundle(HOST, GFX950, GFX942)) == BinaryFacts(None, ("gfx942", "gfx950"))
    old = bundle(
        "hip-amdgcn-amd-amdhsa-gfx906",
        "hip-amdgcn-amd-amdhsa-gfx908:xnack-",
        "openmp-amdgcn-amd-amdhsa--gfx9-4-generic",
    )
    assert facts(tmp_path, old).targets == ("gfx9-4-generic", "gfx906", "gfx908")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("method", [0, 1])
def test_compressed_bundles(tmp_path: Path, version: int, method: int) -> None:
    assert facts(tmp_path, compressed(bundle(GFX950), version, method)).targets == ("gfx950",)


def test_a_shared_object_with_several_bundles(tmp_path: Path) -> None:
    fat = bundle(HOST, GFX950).ljust(4096, b"\0") + compressed(bundle(HOST, GFX942))
    data = elf(X86, sections={".text": b"code", ".hip_fatbin": fat, ".data": b"x"})
    assert facts(tmp_path, data) == BinaryFacts("x86_64", ("gfx942", "gfx950"))


def test_the_magic_elsewhere_in_a_program_is_no_bundle(tmp_path: Path) -> None:
    data = elf(X86, sections={".rodata": bundle(GFX950), ".hip_fatbin_other": bundle(GFX942)})
    assert facts(tmp_path, data).targets == ()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:70],
        lambda data: data[: len(data) // 2],
        lambda data: data[:40] + b"\xff" * 8 + data[48:],
        lambda data: data[:58] + b"\xff\xff\xff\xff\xff\xff" + data[64:],
    ],
)
def test_damaged_section_tables_hold_nothing(tmp_path: Path, damage: object) -> None:
    data = damage(elf(X86, sections={".hip_fatbin": bundle(GFX950)}))  # type: ignore[operator]
    assert facts(tmp_path, data).machine == "x86_64"


@pytest.mark.parametrize(
    "data",
    [
        BUNDLE + struct.pack("<Q", 1 << 40),
        BUNDLE + struct.pack("<Q", 3) + struct.pack("<QQQ", 0, 0, 1 << 50),
        b"CCOB" + struct.pack("<HHIIQ", 2, 1, 10, 10, 0) + b"not zstd at all",
        b"CCOB" + struct.pack("<HHIIQ", 2, 0, 10, 10, 0) + b"not zlib at all",
        b"CCOB" + struct.pack("<HH", 9, 1) + bytes(40),
    ],
)
def test_damaged_bundles_hold_nothing(tmp_path: Path, data: bytes) -> None:
    assert facts(tmp_path, data) == BinaryFacts(None)


def blob(**more: str) -> BlobChange:
    return BlobChange("vllm/x.so", Digest("0" * 64), file="x.so", **more)  # type: ignore[arg-type]


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "f"
    path.write_bytes(data)
    return path


def test_an_object_of_another_machine_is_refused_and_named(tmp_path: Path) -> None:
    path = write(tmp_path, elf(X86))
    with pytest.raises(RefusedError) as caught:
        check_blob("o", blob(), ARM64, path)
    assert (caught.value.code, caught.value.expected, caught.value.found) == (
        "overlay.blob-machine",
        "aarch64",
        "x86_64",
    )
    assert "linux/arm64" in caught.value.message
    assert check_blob("o", blob(elf="x86_64"), AMD64, path) == ()
    with pytest.raises(RefusedError):
        check_machine("o", "vllm/x.so", ARM64, path)
    assert check_machine("o", "vllm/x.so", AMD64, path).machine == "x86_64"


def test_a_declared_machine_must_be_the_platform_s_and_the_file_s(tmp_path: Path) -> None:
    with pytest.raises(InputError) as wrong:
        check_blob("o", blob(elf="x86_64"), ARM64, write(tmp_path, elf(ARM)))
    assert wrong.value.code == "overlay.blob-elf"
    with pytest.raises(RefusedError) as text:
        check_blob("o", blob(elf="x86_64"), AMD64, write(tmp_path, b"#!/bin/sh\n" * 10))
    assert text.value.found == "no ELF file"


def test_device_code_goes_to_every_platform(tmp_path: Path) -> None:
    path = write(tmp_path, elf(AMDGPU, 0x4F))
    assert check_blob("o", blob(gfx="gfx950"), AMD64, path) == ()
    assert check_blob("o", blob(), ARM64, path) == ()


def test_code_for_another_gpu_is_refused_where_declared_and_said_where_not(tmp_path: Path) -> None:
    path = write(tmp_path, elf(AMDGPU, 0x4C))
    with pytest.raises(RefusedError) as caught:
        check_blob("o", blob(gfx="gfx950"), AMD64, path)
    assert (caught.value.code, caught.value.expected, caught.value.found) == ("overlay.blob-gfx", "gfx950", "gfx942")
    (finding,) = check_blob("o", blob(), AMD64, path, "gfx950")
    assert finding.code == "overlay.blob-other-gpu"
    assert check_blob("o", blob(), AMD64, path, "gfx942") == ()
    with pytest.raises(RefusedError) as none:
        check_blob("o", blob(gfx="gfx950"), AMD64, write(tmp_path, elf(X86)))
    assert none.value.found == "no AMD code object"
