"""A wheel on disk as an installer leaves it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import marshal
import sys
import tarfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from tiny_wheel import FILES, make_wheel

from imagebuild.errors import InputError
from imagebuild.testing.base_tar import tar_chunks, with_parents
from imagebuild.testing.wheel_install import DIST_PACKAGES, VENV, Installer, WheelInstall, bytecode, bytecode_path

TIME = 1_793_613_600


def unpack(install: WheelInstall, folder: Path) -> Path:
    data = b"".join(tar_chunks(with_parents(install.items(TIME)), TIME))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="tar") if sys.version_info >= (3, 12) else archive.extractall(folder)
    return folder


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("layout", [DIST_PACKAGES, VENV])
def test_every_hash_of_record_agrees(tmp_path: Path, installer: Installer, layout: object) -> None:
    chosen = DIST_PACKAGES if layout is DIST_PACKAGES else VENV
    install = WheelInstall(make_wheel(tmp_path), chosen, installer, ("tiny/deep/module.py",))
    root = unpack(install, tmp_path / "root")
    found = importlib.metadata.Distribution.at(root / chosen.site / "tiny-1.2.dist-info")
    files = found.files or []
    hashed = 0
    for file in files:
        data = Path(str(file.locate())).read_bytes()
        if file.hash is not None:
            assert urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() == file.hash.value
            assert len(data) == file.size
            hashed += 1
    assert hashed == len(FILES) + 3  # the script of the entry point, INSTALLER, REQUESTED
    listed = {str(file) for file in files}
    assert "../../../bin/tiny-run" in listed
    assert ("tiny/deep/__pycache__/module.cpython-312.pyc" in listed) is (installer == "pip")
    assert (root / chosen.site / "tiny/deep/__pycache__/module.cpython-312.pyc").is_file()


def test_record_is_written_as_each_installer_writes_it(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    texts = {}
    for installer in ("pip", "uv"):
        root = unpack(WheelInstall(wheel, DIST_PACKAGES, installer), tmp_path / installer)
        texts[installer] = (root / DIST_PACKAGES.site / "tiny-1.2.dist-info/RECORD").read_bytes()
    assert texts["pip"].count(b"\r\n") == texts["pip"].count(b"\n") == len(FILES) + 4
    assert b"\r" not in texts["uv"]
    lines = texts["pip"].decode().split("\r\n")[:-1]
    assert lines == sorted(lines, key=lambda line: line.strip('"'))


def test_schemes_and_scripts_go_to_their_places(tmp_path: Path) -> None:
    root = unpack(WheelInstall(make_wheel(tmp_path), VENV), tmp_path / "root")
    assert (root / "opt/venv/bin/tiny-tool").read_bytes() == b"#!/opt/venv/bin/python\nprint('tool')\n"
    assert (root / "opt/venv/bin/tiny-run").read_text().startswith("#!/opt/venv/bin/python\n")
    assert (root / "opt/venv/share/tiny/notes").read_bytes() == b"notes\n"
    assert (root / "opt/venv/bin/tiny-tool").stat().st_mode & 0o777 == 0o755
    assert (root / "opt/venv/lib/python3.12/site-packages/tiny/__init__.py").stat().st_mode & 0o777 == 0o644
    assert (root / "opt/venv/lib64").readlink() == Path("lib")


def test_an_editable_install_leaves_its_source_elsewhere(tmp_path: Path) -> None:
    install = WheelInstall(make_wheel(tmp_path), DIST_PACKAGES, editable="workspace/tiny")
    root = unpack(install, tmp_path / "root")
    site = root / DIST_PACKAGES.site
    assert (root / "workspace/tiny/tiny/deep/module.py").is_file()
    assert not (site / "tiny").exists()
    assert (site / "__editable__.tiny-1.2.pth").read_text() == "/workspace/tiny\n"
    found = importlib.metadata.Distribution.at(site / "tiny-1.2.dist-info")
    assert (
        found.origin.url == "file:///workspace/tiny"
        if sys.version_info >= (3, 13)
        else found.read_text("direct_url.json")
    )
    assert not any(str(file).startswith("tiny/") for file in found.files or [])


def test_bytecode_of_a_base_is_valid_for_its_source() -> None:
    made = bytecode(TIME, 28)
    assert made[4:16] == bytes(4) + TIME.to_bytes(4, "little") + (28).to_bytes(4, "little")
    assert bytecode_path("a/b.py") == "a/__pycache__/b.cpython-312.pyc"
    if made[:4] == importlib.util.MAGIC_NUMBER:
        names: dict[str, object] = {}
        exec(marshal.loads(made[16:]), names)
        assert names["STAND_IN_BYTECODE"] is True


@pytest.mark.parametrize(
    "files",
    [
        {"tiny/x.py": b""},
        {"tiny-1.2.dist-info/WHEEL": b"", "other-1.dist-info/WHEEL": b""},
        {"tiny-1.2.dist-info/WHEEL": b"", "../escape": b""},
        {"tiny-1.2.dist-info/WHEEL": b"", "tiny-1.2.data/nowhere/x": b""},
    ],
)
def test_a_wheel_that_breaks_the_format_is_refused(tmp_path: Path, files: dict[str, bytes]) -> None:
    wheel = make_wheel(tmp_path, files)
    modules = ("tiny/y.py",) if "tiny/x.py" in files else ()
    with pytest.raises(InputError) as caught:
        list(WheelInstall(wheel, DIST_PACKAGES, bytecode_of=modules).items(TIME))
    assert caught.value.code == "testing.bad-wheel"
