"""A wheel with any byte changed, cut or doubled is refused, or is still the same wheel; never something in between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from imagebuild.errors import ImagebuildError
from imagebuild.overlay.code_objects import read_binary
from imagebuild.overlay.wheel_archive import open_wheel
from imagebuild.overlay.wheel_install import Scheme, install_wheel
from imagebuild.testing.small_wheels import make_wheel

FILES = {
    "pkg/__init__.py": b"x = 1\n" * 30,
    "pkg/data.bin": bytes(range(256)),
    "pkg-1.0.data/scripts/tool": b"#!python\nprint(1)\n",
}
SCHEME = Scheme("s", "s", "b", "i", "d", "/usr/bin/python3")


def contents(path: Path) -> dict[str, bytes]:
    out = {}
    for file in install_wheel(open_wheel(path, "pkg", "1.0"), SCHEME):
        with file.data.open() as stream:
            out[file.path] = stream.read()
    return out


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path, "pkg", "1.0", FILES, entry_points="[console_scripts]\nrun = pkg:main\n")


def damaged(raw: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(raw))
    kind = chance.randrange(4)
    if kind == 0:
        return raw[:at] + bytes([raw[at] ^ (1 << chance.randrange(8))]) + raw[at + 1 :]
    if kind == 1:
        return raw[:at]
    if kind == 2:
        return raw[:at] + raw[at : at + chance.randrange(1, 40)] + raw[at:]
    return raw[:at] + bytes(chance.randrange(256) for _ in range(4)) + raw[at + 4 :]


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_wheel(wheel: Path, seed: int) -> None:
    raw, expected = wheel.read_bytes(), contents(wheel)
    chance = random.Random(seed)
    refused = 0
    for _ in range(60):
        wheel.write_bytes(damaged(raw, chance))
        try:
            found = contents(wheel)
        except ImagebuildError:
            refused += 1
            continue
        assert found == expected
    assert refused > 20


@pytest.mark.parametrize("seed", range(4))
def test_damaged_binaries_are_read_without_a_fault(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    head = b"\x7fELF\x02\x01\x01" + bytes(11) + b"\x3e\0" + bytes(44)
    path = tmp_path / "f"
    for _ in range(200):
        noise = bytes(chance.randrange(256) for _ in range(chance.randrange(300)))
        start = chance.choice(
            [head[: chance.randrange(64)] + noise, b"__CLANG_OFFLOAD_BUNDLE__" + noise, b"CCOB" + noise]
        )
        path.write_bytes(start + noise)
        read_binary(path)
