"""Small wheels for tests: right ones, and ones with a chosen fault."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TIME = (2026, 11, 1, 0, 0, 0)


def record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def record_of(files: Mapping[str, bytes], info: str) -> bytes:
    """RECORD of these files, itself last."""
    rows = []
    for name, data in files.items():
        shown = '"' + name.replace('"', '""') + '"' if set(name) & set(',"') else name
        rows.append(f"{shown},{record_hash(data)},{len(data)}\n")
    return "".join([*rows, f"{info}/RECORD,,\n"]).encode()


def metadata(name: str, version: str, requires: Sequence[str] = (), python: str = "") -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Python: {python}"] if python else []
    lines += [f"Requires-Dist: {text}" for text in requires]
    return ("\n".join(lines) + "\n\nA distribution for tests.\n").encode()


def wheel_files(
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    requires: Sequence[str] = (),
    python: str = "",
    tags: Sequence[str] = ("py3-none-any",),
    purelib: bool = True,
    entry_points: str = "",
) -> dict[str, bytes]:
    """The members of a wheel without its RECORD."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    about = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: {str(purelib).lower()}\n"
    out = dict(files)
    out[f"{info}/METADATA"] = metadata(name, version, requires, python)
    out[f"{info}/WHEEL"] = (about + "".join(f"Tag: {tag}\n" for tag in tags)).encode()
    if entry_points:
        out[f"{info}/entry_points.txt"] = entry_points.encode()
    return out


def write_wheel(
    path: Path,
    members: Mapping[str, bytes],
    *,
    record: bytes | None = None,
    executable: Sequence[str] = (),
    change: Callable[[zipfile.ZipInfo], None] | None = None,
) -> Path:
    """A wheel file of these members, and a RECORD of them unless one is given; `change` alters each member's header."""
    info = next(name.partition("/")[0] for name in members if ".dist-info/" in name)
    content = {**members, f"{info}/RECORD": record_of(members, info) if record is None else record}
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            member = zipfile.ZipInfo(name, TIME)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o100755 if name in executable else 0o100644) << 16
            if change is not None:
                change(member)
            archive.writestr(member, data)
    return path


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes], **more: object) -> Path:
    """`wheel_files` written under the wheel's own name."""
    tags = more.get("tags", ("py3-none-any",))
    first = tags[0] if isinstance(tags, (list, tuple)) else "py3-none-any"
    members = wheel_files(name, version, files, **more)  # type: ignore[arg-type]
    return write_wheel(folder / f"{name.replace('-', '_')}-{version}-{first}.whl", members)
