"""The wheel on a stand-in base is what pip itself leaves on disk."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from imagebuild.testing.base_tar import tar_chunks, with_parents
from imagebuild.testing.wheel_install import Layout, WheelInstall

pytestmark = pytest.mark.integration

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
INFO = "tiny-1.2.dist-info"


def small_wheel(folder: Path) -> Path:
    path = folder / "tiny-1.2-py3-none-any.whl"
    files = {
        "tiny/__init__.py": b"VERSION = '1.2'\n",
        "tiny/data, with comma.txt": b"x" * 1000,
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.2\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{INFO}/entry_points.txt": b"[console_scripts]\ntiny-run = tiny:run\n",
        "tiny-1.2.data/scripts/tiny-tool": b"#!python\nprint('tool')\n",
        "tiny-1.2.data/data/share/tiny/notes": b"notes\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            archive.writestr(member, data)
        quoted = [f'"{name}"' if "," in name else name for name in files]
        archive.writestr(f"{INFO}/RECORD", "".join(f"{name},,\n" for name in [*quoted, f"{INFO}/RECORD"]))
    return path


def rows(record: bytes, differing: set[str]) -> list[list[str]]:
    """The lines of a RECORD; hashes of files that may differ (the text of scripts) left out."""
    assert record.count(b"\r\n") == record.count(b"\n")
    found = list(csv.reader(io.StringIO(record.decode(), newline="")))
    return [row[:1] if row[0] in differing else row for row in found]


def test_pip_and_the_base_maker_write_the_same_files(tmp_path: Path) -> None:
    wheel = small_wheel(tmp_path)
    by_pip = tmp_path / "pip"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    command += ["--ignore-installed", "--no-warn-script-location", "--disable-pip-version-check"]
    subprocess.run([*command, f"--prefix={by_pip}", str(wheel)], check=True, capture_output=True)
    layout = Layout("p", f"p/{SITE}", "p/bin", sys.executable)
    ours = tmp_path / "ours"
    data = b"".join(tar_chunks(with_parents(WheelInstall(wheel, layout).items(1_793_613_600)), 1_793_613_600))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            archive.extract(member, ours, **({"filter": "tar"} if sys.version_info >= (3, 12) else {}))

    def tree(root: Path) -> dict[str, int]:
        found = (path for path in root.rglob("*") if path.is_file())
        # pip notes where the wheel was, since it was named as a file and not by requirement.
        return {
            str(path.relative_to(root)): path.stat().st_mode & 0o111 for path in found if path.name != "direct_url.json"
        }

    assert tree(ours / "p") == tree(by_pip)
    scripts = {"../../../bin/tiny-run"}
    expected = rows((by_pip / SITE / INFO / "RECORD").read_bytes(), scripts)
    expected = [row for row in expected if not row[0].endswith("direct_url.json")]
    # the wheel's own RECORD has no hashes here, and pip takes them over as they are
    assert rows((ours / "p" / SITE / INFO / "RECORD").read_bytes(), scripts) == expected
    tool = "bin/tiny-tool"
    assert (ours / "p" / tool).read_bytes() == (by_pip / tool).read_bytes()
