"""Random wheels: what is laid out is what pip installs, but for INSTALLER, direct_url.json, bytecode and the text of scripts."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebuild.overlay.wheel_archive import open_wheel
from imagebuild.overlay.wheel_install import Scheme, install_wheel
from imagebuild.testing.small_wheels import wheel_files, write_wheel

pytestmark = pytest.mark.slow

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"lib/{PYTHON}/site-packages"

names = st.text("abcXYZ019_-. ,'\"", min_size=1, max_size=8).filter(
    lambda text: text.strip(". ") and not text.endswith((".", " ", ".pyc")) and not text.startswith((".", " ", "-"))
)
folders = st.sampled_from(["pkg", "pkg/deep", "other_pkg", "pkg/data files"])
parts = st.sampled_from(["", "purelib/", "platlib/", "data/share/", "headers/", "scripts/"])
contents = st.one_of(
    st.binary(max_size=40), st.just(b"#!python\nprint(1)\n"), st.just(b"#!pythonw -E\r\nx\n"), st.just(b"#!/bin/sh\n")
)


@st.composite
def members(draw: st.DrawFn) -> tuple[dict[str, bytes], list[str]]:
    """Files of a wheel, and which of them are executable.  No name differs from another in a folder's place only."""
    files: dict[str, bytes] = {}
    for _ in range(draw(st.integers(1, 6))):
        part, name = draw(parts), draw(names)
        if part == "scripts/":
            path = f"wheel_under_test-1.5.data/scripts/{name}"
        elif part:
            path = f"wheel_under_test-1.5.data/{part}{draw(folders)}/{part.strip('/')[:2]}{name}"
        else:
            path = f"{draw(folders)}/{name}"
        files[path] = draw(contents)
    places = {path.rpartition("/")[0] for path in files}
    files = {path: data for path, data in files.items() if path not in places}
    # pip leaves a script without the bit as it is; the specification lets an installer add it
    return files, [path for path in files if "/scripts/" in path or draw(st.booleans())]


def by_pip(wheel: Path, prefix: Path) -> dict[str, tuple[bool, bytes]]:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    command += ["--ignore-installed", "--no-warn-script-location", "--disable-pip-version-check", f"--prefix={prefix}"]
    around = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, env=around)
    found = {}
    for path in prefix.rglob("*"):
        if path.is_file():
            found[path.relative_to(prefix).as_posix()] = (bool(path.stat().st_mode & 0o100), path.read_bytes())
    return found


def by_us(wheel: Path, prefix: Path) -> dict[str, tuple[bool, bytes]]:
    place = str(prefix).lstrip("/")
    site = f"{place}/{SITE}"
    include = f"{place}/include/site/{PYTHON}" if sys.prefix != sys.base_prefix else f"{place}/include/{PYTHON}"
    scheme = Scheme(site, site, f"{place}/bin", include, place, sys.executable)
    out = {}
    for file in install_wheel(open_wheel(wheel, "wheel-under-test", "1.5"), scheme):
        with file.data.open() as stream:
            out[file.path.removeprefix(place + "/")] = (bool(file.mode & 0o100), stream.read())
    return out


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(members(), st.booleans(), st.booleans())
def test_the_same_files_and_the_same_record(
    made: tuple[dict[str, bytes], list[str]], purelib: bool, points: bool
) -> None:
    files, executable = made
    text = "[console_scripts]\nrun-it = pkg.deep:Main.go\n\n[gui_scripts]\nshow = pkg:show [extra]\n" if points else ""
    content = wheel_files("wheel-under-test", "1.5", files, purelib=purelib, entry_points=text)
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder).resolve()
        wheel = write_wheel(top / "wheel_under_test-1.5-py3-none-any.whl", content, executable=executable)
        prefix = top / "prefix"
        theirs, ours = by_pip(wheel, prefix), by_us(wheel, prefix)
    info = f"{SITE}/wheel_under_test-1.5.dist-info"
    theirs.pop(f"{info}/direct_url.json", None)
    assert {path: mode for path, (mode, _) in ours.items()} == {path: mode for path, (mode, _) in theirs.items()}
    generated = {"bin/run-it", "bin/show"} if points else set()
    differing = {f"{info}/INSTALLER", f"{info}/RECORD", *generated}
    for path in set(ours) - differing:
        assert ours[path][1] == theirs[path][1], path
    rows = [
        {row[0]: row[1:] for row in csv.reader(io.StringIO(record[f"{info}/RECORD"][1].decode(), newline=""))}
        for record in (ours, theirs)
    ]
    rows[1].pop("wheel_under_test-1.5.dist-info/direct_url.json", None)
    assert set(rows[0]) == set(rows[1])
    but = {"wheel_under_test-1.5.dist-info/INSTALLER", *(f"../../../{path}" for path in generated)}
    assert {path: row for path, row in rows[0].items() if path not in but} == {
        path: row for path, row in rows[1].items() if path not in but
    }
