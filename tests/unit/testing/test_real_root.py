"""A real root as a layer: from a folder and from a tar archive, the same on both ways where both can say it."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from imagebuild.errors import InputError, UnavailableError
from imagebuild.testing import real_root
from imagebuild.testing.base_layers import WheelLayer
from imagebuild.testing.base_tar import DIRECTORY, HARDLINK, REGULAR, SYMLINK, Item
from imagebuild.testing.real_root import TreeLayer, debian_root, python_of
from imagebuild.testing.target_bases import b300_vllm, runnable
from imagebuild.testing.wheel_fetch import AMD64

TIME = 1_793_613_600


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small root with everything that a layer keeps or leaves out."""
    at = tmp_path / "root"
    for folder in ("usr/bin", "usr/lib/python3.11", "dev", "var/log", "tmp", "usr/share/doc/x"):
        (at / folder).mkdir(parents=True)
    (at / "tmp").chmod(0o1777)
    (at / "bin").symlink_to("usr/bin")
    (at / "usr/bin/python3.11").write_bytes(b"#!/bin/sh\n")
    (at / "usr/bin/python3.11").chmod(0o755)
    (at / "usr/bin/python3").symlink_to("python3.11")
    os.link(at / "usr/bin/python3.11", at / "usr/bin/also")
    os.utime(at / "usr/bin/python3.11", (TIME - 5, TIME - 5))
    os.mkfifo(at / "usr/lib/pipe")
    (at / "dev/null").write_bytes(b"")
    (at / "var/log/dpkg.log").write_bytes(b"today")
    (at / "usr/share/doc/x/copyright").write_bytes(b"prose")
    (at / "etc").mkdir()
    (at / "etc/machine-id").write_bytes(b"1\n")
    return at


@pytest.fixture
def archive(root: Path, tmp_path: Path) -> Path:
    path = tmp_path / "root.tar"
    with tarfile.open(path, "w") as out:
        out.add(root, ".")
    return path


def items(path: Path) -> dict[str, Item]:
    return {item.path: item for item in TreeLayer(path).items(AMD64, TIME, lambda pin: Path(pin.filename))}


def test_a_folder_and_an_archive_of_it_give_one_layer(root: Path, archive: Path) -> None:
    kept = {"bin", "dev", "etc", "tmp", "usr", "usr/bin", "usr/bin/also", "usr/bin/python3", "usr/bin/python3.11"}
    kept |= {"usr/lib", "usr/lib/python3.11", "usr/share", "usr/share/doc", "var", "var/log"}
    for found in (items(root), items(archive)):
        assert set(found) == kept
        assert (found["tmp"].type, found["tmp"].mode) == (DIRECTORY, 0o1777)
        assert (found["bin"].type, found["bin"].link) == (SYMLINK, "usr/bin")
        types = {found["usr/bin/also"].type, found["usr/bin/python3.11"].type}
        assert types == {REGULAR, HARDLINK}
        regular = next(item for item in found.values() if item.type == REGULAR)
        assert (regular.mtime, regular.mode, regular.size) == (TIME - 5, 0o755, 10)
        assert regular.open is not None
        assert found["etc"].mtime == TIME, "what was made today gets the layer's time"


def test_the_description_follows_the_bytes(root: Path) -> None:
    before = TreeLayer(root).describe(AMD64)
    assert TreeLayer(root).describe(AMD64) == before
    (root / "var/log/dpkg.log").write_bytes(b"tomorrow")
    assert TreeLayer(root).describe(AMD64) == before
    (root / "usr/bin/python3.11").write_bytes(b"#!/bin/ash")
    assert TreeLayer(root).describe(AMD64) != before


def test_wheels_go_where_the_roots_python_looks(root: Path, archive: Path) -> None:
    assert python_of(root) == python_of(archive) == "3.11"
    spec = b300_vllm(runnable(archive))
    wheel = next(layer for layer in spec.layers if isinstance(layer, WheelLayer))
    assert wheel.layout.site == "usr/local/lib/python3.11/dist-packages"
    assert wheel.bytecode_of == (), "stand-in bytecode would run there"
    (root / "usr/bin/python3").unlink()
    with pytest.raises(InputError) as caught:
        python_of(root)
    assert caught.value.code == "testing.no-python"


def test_a_debian_root_is_made_once_and_failure_says_what_the_program_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def programs(command: list[str], **_named: object) -> real_root.process.Finished:
        calls.append(command)
        if command[0] == "apt-get":
            return real_root.process.Finished(0, b"http://mirror.example/debian trixie\n", b"")
        if "broken" in command:
            return real_root.process.Finished(1, b"I: Retrieving\nE: no such suite\n", b"")
        if command[0] == "debootstrap":
            archives = Path(command[command.index("trixie") + 1]) / "var/cache/apt/archives"
            archives.mkdir(parents=True)
            (archives / "python3.deb").write_bytes(b"")
        if command[0] == "tar":
            root = Path(command[command.index("-C") + 1])
            (root / "etc").mkdir()
            (root / "bin" / "python3").symlink_to("python3.13")
        return real_root.process.Finished(0, b"", b"")

    monkeypatch.setattr(real_root.process, "run", programs)
    made = debian_root("trixie", architecture="arm64", folder=tmp_path / "cache")
    assert debian_root("trixie", architecture="arm64", folder=tmp_path / "cache") == made
    assert [command[-1] for command in calls if command[0] == "debootstrap"] == ["http://mirror.example/debian"]
    assert "--arch=arm64" in calls[1]
    assert python_of(made) == "3.13"
    assert {"lib", "etc/passwd"} <= set(items(made))
    assert "lib64" not in items(made)
    with pytest.raises(UnavailableError, match="no such suite"):
        debian_root("broken", folder=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == [made]
    monkeypatch.setenv("IMAGEBUILD_TEST_ROOTS", str(tmp_path / "cache"))
    assert debian_root("trixie", architecture="arm64") == made
