"""What an ELF file says of the machine that it is for (System V ABI, ELF header), read from its first 64 bytes."""

from __future__ import annotations

from dataclasses import dataclass

HEADER_SIZE = 64
MAGIC = b"\x7fELF"
EM_AMDGPU = 224
MACHINES = {
    2: "sparc", 3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 43: "sparcv9", 62: "x86_64",
    183: "aarch64", 190: "cuda", EM_AMDGPU: "amdgpu", 243: "riscv", 247: "bpf", 258: "loongarch",
}  # fmt: skip
"""e_machine to the word that people use."""


@dataclass(frozen=True, slots=True)
class ElfHeader:
    """`machine` is the number of e_machine, `flags` e_flags; `bits` 32 or 64.  `sections` says where the section
    headers are: offset, size of one, count, and the index of the one with the names."""

    machine: int
    flags: int
    bits: int
    little: bool
    sections: tuple[int, int, int, int]

    @property
    def machine_name(self) -> str:
        return MACHINES.get(self.machine, f"machine {self.machine}")


def read_elf_header(head: bytes) -> ElfHeader | None:
    """The header at the start of `head`; None for what is no ELF file, or is cut inside its header."""
    if head[:4] != MAGIC or len(head) < 52 or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    wide = head[4] == 2
    if wide and len(head) < HEADER_SIZE:
        return None
    order = "little" if head[5] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], order)  # type: ignore[arg-type]

    machine = number(18, 2)
    if wide:
        places = (number(40, 8), number(58, 2), number(60, 2), number(62, 2))
        return ElfHeader(machine, number(48, 4), 64, order == "little", places)
    places = (number(32, 4), number(46, 2), number(48, 2), number(50, 2))
    return ElfHeader(machine, number(36, 4), 32, order == "little", places)
