"""Small wheels with every part that an installer acts on."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from imagebuild.content.digest import Digest
from imagebuild.testing.wheel_fetch import WheelPin

FILES: dict[str, bytes] = {
    "tiny/__init__.py": b"VERSION = '1.2'\n",
    "tiny/deep/module.py": b"def answer():\n    return 42\n",
    "tiny/data, with comma.txt": b"x" * 1000,
    "tiny-1.2.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.2\n",
    "tiny-1.2.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.2.dist-info/entry_points.txt": b"[console_scripts]\ntiny-run = tiny.deep.module:answer\n",
    "tiny-1.2.data/scripts/tiny-tool": b"#!python\nprint('tool')\n",
    "tiny-1.2.data/data/share/tiny/notes": b"notes\n",
}


def record_line(name: str, data: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    shown = f'"{name}"' if "," in name else name
    return f"{shown},sha256={value},{len(data)}\n"


def make_wheel(folder: Path, files: dict[str, bytes] | None = None) -> Path:
    """`tiny-1.2-py3-none-any.whl` with these files and a RECORD of them."""
    content = FILES if files is None else files
    path = folder / "tiny-1.2-py3-none-any.whl"
    record = "".join(record_line(name, data) for name, data in content.items()) + "tiny-1.2.dist-info/RECORD,,\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**content, "tiny-1.2.dist-info/RECORD": record.encode()}.items():
            member = zipfile.ZipInfo(name, (2026, 11, 1, 0, 0, 0))
            member.external_attr = (0o100755 if "scripts" in name else 0o100664) << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return path


def pin_of(path: Path) -> WheelPin:
    data = path.read_bytes()
    return WheelPin(path.name, Digest.of(data), len(data))
