"""Installations made by real installers, patched by our rules, judged by real interpreters."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import py_compile
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools import program

from imagebuild.content.digest import Digest
from imagebuild.layer.entry import Found
from imagebuild.overlay.bytecode import find_bytecode
from imagebuild.overlay.interpreters import RootConfig
from imagebuild.overlay.provenance_file import ProvenanceBase, ProvenanceEntry, provenance_json
from imagebuild.overlay.record import PROVENANCE_NAME, record_edits
from imagebuild.overlay.roots import find_root, read_layout
from imagebuild.overlay.times import entry_time
from imagebuild.testing.python_tree import folder_layer, python_tree

pytestmark = [pytest.mark.integration, pytest.mark.slow(35)]

CREATED = 1_700_000_000
VENV = "opt/venv"


@dataclass(frozen=True)
class Alpha:
    python = "alpha"
    path = None
    purelib = False


class Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def sha256(self) -> Digest:
        return Digest.of(self._data)

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._data)


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """A wheel made by hand (binary distribution format)."""
    info = f"{name}-1.0.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-tool = {name}.m:main\n".encode(),
    }
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        quoted = f'"{path}"' if "," in path else path
        rows.append(f"{quoted},sha256={digest},{len(data)}")
    rows.append(f"{info}/RECORD,,")
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", "\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    both = {"both/data.txt": b"of two"}
    alpha = {
        "alpha/__init__.py": b"",
        "alpha/m.py": b"VALUE = 'old'\n\n\ndef main():\n    pass\n",
        "alpha/gone.py": b"X = 1\n",
        "alpha/E=1,N=2.json": b"{}",
    }
    beta = {"beta/__init__.py": b"", "beta/m.py": b"def main():\n    pass\n"}
    return [wheel(folder, "alpha", alpha | both), wheel(folder, "beta", beta | both)]


def run(*words: str | Path, **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_", "PYTHON"))}
    done = subprocess.run(
        [str(word) for word in words],
        env=environment | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


PIP = (sys.executable, "-m", "pip")
OFFLINE = ("--no-index", "--no-deps")


def by_pip(root: Path, wheels: list[Path]) -> Path:
    pytest.importorskip("pip", reason="pip is not importable here")
    venv.create(root / VENV, with_pip=False, symlinks=True)
    run(*PIP, "--python", root / VENV / "bin/python", "install", *OFFLINE, *wheels)
    return root


def by_pip_target(root: Path, wheels: list[Path]) -> Path:
    pytest.importorskip("pip", reason="pip is not importable here")
    site = root / VENV / f"lib/python3.{sys.version_info.minor}/site-packages"
    run(*PIP, "install", *OFFLINE, "--target", site, *wheels)
    (root / VENV / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return root


def by_uv(root: Path, wheels: list[Path]) -> Path:
    uv = program("uv")
    venv.create(root / VENV, with_pip=False, symlinks=True)
    python = root / VENV / "bin/python"
    run(uv, "pip", "install", "--offline", "--no-cache", "--compile-bytecode", *OFFLINE, "--python", python, *wheels)
    return root


def pythons() -> Iterator[str]:
    """This Python, and those of PATH that start."""
    yield sys.executable
    for minor in range(11, 15):
        found = shutil.which(f"python3.{minor}")
        if found is not None and minor != sys.version_info.minor:
            done = subprocess.run([found, "-c", ""], capture_output=True, check=False, timeout=60)
            if done.returncode == 0:
                yield found


JUDGE = """
import base64, hashlib, importlib.metadata, json, sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
out = {"wrong": [], "missing": [], "files": [], "pyc": []}
for name in ("alpha", "beta"):
    for item in importlib.metadata.files(name):
        out["files"].append(str(item))
        if not item.locate().is_file():
            out["missing"].append(str(item))
        elif item.hash is not None:
            digest = hashlib.new(item.hash.mode, item.read_binary()).digest()
            value = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            if value != item.hash.value or item.size != len(item.read_binary()):
                out["wrong"].append(str(item))
import alpha.m, alpha.added
out["value"] = alpha.m.VALUE
out["added"] = alpha.added.VALUE
try:
    import alpha.gone
    out["gone"] = "still imported"
except ImportError:
    out["gone"] = ""
print(json.dumps(out))
"""


def patch(root: Path) -> Path:
    """Replaces, adds and deletes modules by the rules; gives the site folder."""
    view, contents = python_tree(folder_layer(root))
    config = RootConfig((f"PATH=/{VENV}/bin", f"VIRTUAL_ENV=/{VENV}"))
    layout = read_layout(view, contents, config)
    found = find_root(Alpha(), view, contents, config, name="alpha", layout=layout)
    assert found.distribution is not None
    assert found.distribution.name == "alpha"
    site = found.folder.rpartition("/")[0]
    written = {
        f"{found.folder}/m.py": b"VALUE = 'new'\n\n\ndef main():\n    pass\n",
        f"{site}/both/data.txt": b"mended",
    }
    added = {f"{found.folder}/added.py": b"VALUE = 'added'\n"}
    deleted = [f"{found.folder}/gone.py"]
    removed = list(deleted)
    for path in [*written, *added, *deleted]:
        removed += find_bytecode(view, path, deleted=path in deleted).whiteouts
    plan = record_edits(
        layout.distributions,
        written={path: Bytes(data) for path, data in written.items()},
        removed=removed,
        added={path: Bytes(data) for path, data in added.items()},
    )
    assert [item.name for item in plan.patched] == ["alpha", "beta"]
    files = written | added
    for change in plan.changes:
        files[change.path] = change.apply((root / change.path).read_bytes())
        entries = [ProvenanceEntry(path, None, Digest.of(data)) for path, data in written.items()]
        base = ProvenanceBase("example/base", Digest.of(b"base"))
        name = f"{change.distribution.info}/{PROVENANCE_NAME}"
        files[name] = provenance_json(Digest.of(b"id"), base, entries)
    for path in removed:
        (root / path).unlink()
    for path, data in files.items():
        known = view.lookup(path)
        time = entry_time(CREATED, known.entry.mtime if isinstance(known, Found) else None)
        target = root / path
        target.unlink(missing_ok=True)
        target.write_bytes(data)
        os.utime(target, (time, time))
    return root / site


@pytest.mark.parametrize("install", [by_pip, by_pip_target, by_uv])
def test_every_hash_agrees_and_the_patched_code_is_imported(
    install: Callable[[Path, list[Path]], Path], wheels: list[Path], tmp_path: Path
) -> None:
    site = patch(install(tmp_path / "image", wheels))
    for python in pythons():
        out = json.loads(run(python, "-c", JUDGE, site))
        assert out["wrong"] == [], python
        # With --target pip lists scripts two folders away from where it puts them; that is the base's own fault.
        assert [path for path in out["missing"] if install is not by_pip_target or "/bin/" not in path] == [], python
        assert (out["value"], out["added"], out["gone"]) == ("new", "added", ""), python
        assert "alpha/added.py" in out["files"]
        assert "alpha/gone.py" not in out["files"]
        assert out["files"].count("alpha-1.0.dist-info/imagebuild.json") == 1
        assert out["files"].count("beta-1.0.dist-info/imagebuild.json") == 1


def test_pip_takes_a_patched_distribution_away_whole(wheels: list[Path], tmp_path: Path) -> None:
    site = patch(by_pip(tmp_path / "image", wheels))
    python = tmp_path / "image" / VENV / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "uninstall", "-y", "alpha")
    assert not (site / "alpha").exists()
    assert not (site / "alpha-1.0.dist-info").exists()


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_what_would_happen_without_the_rules(tmp_path: Path, mode: py_compile.PycInvalidationMode) -> None:
    """A source of equal size and time beside its old bytecode: Python runs the old code, and that is why bytecode goes."""
    source = tmp_path / "m.py"
    read = [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import m; print(m.V)"]

    def value() -> str:
        return run(*read).strip()

    source.write_text("V = 'old'\n")
    os.utime(source, (CREATED, CREATED))
    compiled = py_compile.compile(str(source), doraise=True, invalidation_mode=mode)
    assert compiled is not None
    source.write_text("V = 'new'\n")
    os.utime(source, (CREATED, CREATED))
    if mode is py_compile.PycInvalidationMode.CHECKED_HASH:
        assert value() == "new"
    else:
        assert value() == "old", "Python no longer runs stale bytecode: the rule could go"
    # One second more (images.md, Writing 2) is enough for a timestamp and not for an unchecked hash.
    time = entry_time(CREATED, CREATED)
    os.utime(source, (time, time))
    assert value() == ("old" if mode is py_compile.PycInvalidationMode.UNCHECKED_HASH else "new")
    view, _ = python_tree(folder_layer(tmp_path))
    for path in find_bytecode(view, "m.py").whiteouts:
        (tmp_path / path).unlink()
    assert value() == "new"
