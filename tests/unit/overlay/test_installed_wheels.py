"""What an installation of a wheel is: places, modes, scripts, RECORD."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from imagebuild.errors import RefusedError
from imagebuild.overlay.wheel_archive import open_wheel
from imagebuild.overlay.wheel_install import InstalledFile, Scheme, install_wheel
from imagebuild.testing.small_wheels import make_wheel, record_hash, wheel_files, write_wheel

SITE = "opt/venv/lib/python3.12/site-packages"
SCHEME = Scheme(
    SITE, "opt/venv/lib64/python3.12/site-packages", "opt/venv/bin", "opt/venv/include/site/python3.12", "opt/venv",
    "/opt/venv/bin/python3.12",
)  # fmt: skip
INFO = "tiny-1.0.dist-info"


def installed(path: Path, scheme: Scheme = SCHEME) -> dict[str, InstalledFile]:
    return {file.path: file for file in install_wheel(open_wheel(path, "tiny", "1.0"), scheme)}


def data_of(file: InstalledFile) -> bytes:
    with file.data.open() as stream:
        return stream.read()


def refusal(path: Path, scheme: Scheme = SCHEME) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        installed(path, scheme)
    return caught.value


def test_files_go_to_the_site_folder_and_metadata_is_added(tmp_path: Path) -> None:
    files = installed(make_wheel(tmp_path, "tiny", "1.0", {"tiny/__init__.py": b"", "tiny/a, b.txt": b"x"}))
    assert list(files) == sorted(files)
    assert {path.removeprefix(SITE + "/") for path in files} == {
        "tiny/__init__.py", "tiny/a, b.txt",
        *(f"{INFO}/{leaf}" for leaf in ("METADATA", "WHEEL", "RECORD", "INSTALLER", "REQUESTED")),
    }  # fmt: skip
    assert data_of(files[f"{SITE}/{INFO}/INSTALLER"]) == b"imagebuild\n"
    assert data_of(files[f"{SITE}/{INFO}/REQUESTED"]) == b""
    assert all(file.mode == 0o644 for file in files.values())


def test_record_lists_every_file_with_hash_and_size_in_order(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path, "tiny", "1.0", {"tiny/__init__.py": b"", "tiny/a, b.txt": b"x"},
        entry_points="[console_scripts]\ntiny = tiny:main\n",
    )  # fmt: skip
    files = installed(wheel)
    raw = data_of(files[f"{SITE}/{INFO}/RECORD"])
    rows = list(csv.reader(io.StringIO(raw.decode())))
    assert rows == sorted(rows)
    assert [f"{INFO}/RECORD", "", ""] in rows
    listed = {row[0]: row[1:] for row in rows}
    assert listed["../../../bin/tiny"][1] == str(files["opt/venv/bin/tiny"].data.size)
    for path, file in files.items():
        name = path.removeprefix(SITE + "/") if path.startswith(SITE) else "../../../bin/tiny"
        if not name.endswith("RECORD"):
            assert listed[name] == [record_hash(data_of(file)), str(len(data_of(file)))]
    assert len(rows) == len(files)
    assert b"\r" not in raw
    assert not any(row[0].endswith(".pyc") for row in rows)


def test_a_platform_wheel_goes_to_the_platform_folder(tmp_path: Path) -> None:
    files = installed(make_wheel(tmp_path, "tiny", "1.0", {"tiny.so": b"\x7fELF"}, purelib=False))
    assert "opt/venv/lib64/python3.12/site-packages/tiny.so" in files


def test_the_parts_of_the_data_folder(tmp_path: Path) -> None:
    members = {
        "tiny/__init__.py": b"",
        "tiny-1.0.data/purelib/pure.py": b"p",
        "tiny-1.0.data/platlib/plat.py": b"q",
        "tiny-1.0.data/data/share/tiny/notes": b"n",
        "tiny-1.0.data/headers/tiny.h": b"h",
        "tiny-1.0.data/scripts/tool": b"#!python\nprint(1)\n",
        "tiny-1.0.data/scripts/shell": b"#!/bin/sh\necho\n",
        "tiny-1.0.data/scripts/windowed": b"#!pythonw -E\nprint(1)\n",
    }
    files = installed(make_wheel(tmp_path, "tiny", "1.0", members))
    assert data_of(files[f"{SITE}/pure.py"]) == b"p"
    assert data_of(files["opt/venv/lib64/python3.12/site-packages/plat.py"]) == b"q"
    assert data_of(files["opt/venv/share/tiny/notes"]) == b"n"
    assert data_of(files["opt/venv/include/site/python3.12/tiny/tiny.h"]) == b"h"
    assert data_of(files["opt/venv/bin/tool"]) == b"#!/opt/venv/bin/python3.12\nprint(1)\n"
    assert data_of(files["opt/venv/bin/shell"]) == b"#!/bin/sh\necho\n"
    assert data_of(files["opt/venv/bin/windowed"]) == b"#!/opt/venv/bin/python3.12\nprint(1)\n"
    assert {files[f"opt/venv/bin/{name}"].mode for name in ("tool", "shell", "windowed")} == {0o755}


def test_a_shebang_without_a_line_end(tmp_path: Path) -> None:
    files = installed(make_wheel(tmp_path, "tiny", "1.0", {"tiny-1.0.data/scripts/tool": b"#!python"}))
    assert data_of(files["opt/venv/bin/tool"]) == b"#!/opt/venv/bin/python3.12\n"


def test_unknown_parts_of_the_data_folder_are_refused(tmp_path: Path) -> None:
    error = refusal(make_wheel(tmp_path, "tiny", "1.0", {"tiny-1.0.data/elsewhere/x": b""}))
    assert "tiny-1.0.data/elsewhere/x" in error.message


def test_entry_points_become_scripts_that_run(tmp_path: Path) -> None:
    text = (
        "[console_scripts]\nrun = tiny.deep:Main.start [extra]\n\n[gui_scripts]\nshow=tiny:show\n\n[other]\nx = y:z\n"
    )
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/__init__.py": b""}, entry_points=text)
    files = installed(wheel)
    script = data_of(files["opt/venv/bin/run"])
    assert script.startswith(b"#!/opt/venv/bin/python3.12\n")
    assert files["opt/venv/bin/run"].mode == 0o755
    compile(script, "run", "exec")
    assert b"from tiny.deep import Main\n" in script
    assert b"sys.exit(Main.start())" in script
    assert "opt/venv/bin/show" in files
    assert "opt/venv/bin/x" not in files


@pytest.mark.parametrize(
    "line",
    [
        "x = tiny",
        "x = tiny:",
        "x = tiny:a;import os",
        "x = tiny:a b",
        "../x = tiny:a",
        "x/y = tiny:a",
        "x = 1tiny:a",
        "x",
    ],
)
def test_entry_points_that_are_none_are_refused(tmp_path: Path, line: str) -> None:
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/__init__.py": b""}, entry_points=f"[console_scripts]\n{line}\n")
    assert refusal(wheel).code == "overlay.wheel-malformed"


def test_a_wrapper_that_the_wheel_ships_gives_way_to_the_entry_point(tmp_path: Path) -> None:
    members = {"tiny-1.0.data/scripts/run": b"#!python\nold", "tiny-1.0.data/scripts/run-script.py": b"old"}
    wheel = make_wheel(tmp_path, "tiny", "1.0", members, entry_points="[console_scripts]\nrun = tiny:main\n")
    files = installed(wheel)
    assert b"from tiny import main" in data_of(files["opt/venv/bin/run"])
    assert "opt/venv/bin/run-script.py" not in files


def test_two_files_for_one_place_are_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"a.py": b"1", "tiny-1.0.data/purelib/a.py": b"2"})
    assert "two of its files" in refusal(wheel).message


def test_executable_members_stay_executable(tmp_path: Path) -> None:
    members = wheel_files("tiny", "1.0", {"tiny/run.sh": b"#!/bin/sh\n", "tiny/a.py": b""})
    files = installed(write_wheel(tmp_path / "w.whl", members, executable=["tiny/run.sh"]))
    assert (files[f"{SITE}/tiny/run.sh"].mode, files[f"{SITE}/tiny/a.py"].mode) == (0o755, 0o644)


def test_an_installer_s_own_notes_in_the_wheel_are_replaced(tmp_path: Path) -> None:
    members = {f"{INFO}/INSTALLER": b"somebody\n", f"{INFO}/direct_url.json": b"{}", "tiny.py": b""}
    files = installed(make_wheel(tmp_path, "tiny", "1.0", members))
    assert data_of(files[f"{SITE}/{INFO}/INSTALLER"]) == b"imagebuild\n"
    assert f"{SITE}/{INFO}/direct_url.json" not in files


@pytest.mark.parametrize("interpreter", ["/opt/my venv/bin/python", "/" + "x" * 130])
def test_an_interpreter_that_no_shebang_can_name_is_refused(tmp_path: Path, interpreter: str) -> None:
    scheme = Scheme(SITE, SITE, "opt/venv/bin", "opt/venv/include", "opt/venv", interpreter)
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"a.py": b""}, entry_points="[console_scripts]\nrun = tiny:main\n")
    assert interpreter in (refusal(wheel, scheme).found or "")
    assert installed(make_wheel(tmp_path / "b", "tiny", "1.0", {"a.py": b""}), scheme)
