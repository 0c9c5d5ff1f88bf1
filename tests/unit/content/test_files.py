"""Writing: the old file or the new one, never a part of it."""

import errno
import os
import stat
from pathlib import Path

import pytest

from imagebuild.content import files
from imagebuild.errors import UnavailableError


def test_a_failing_block_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")
    with pytest.raises(RuntimeError), files.atomic_file(target) as stream:
        stream.write(b"half of the new")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        files.atomic_write(tmp_path / "f", b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644


def test_an_equal_file_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "f"
    files.atomic_write(target, b"x")
    os.utime(target, (1, 1))
    inode = target.stat().st_ino
    files.atomic_write(target, b"x")
    assert (target.stat().st_mtime, target.stat().st_ino) == (1, inode)
    files.atomic_write(target, b"y")
    assert target.read_bytes() == b"y"


def test_a_full_disk_is_could_not_find_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnavailableError) as caught:
        files.atomic_write(tmp_path / "f", b"x")
    assert caught.value.code == "content.disk-full"
    assert os.listdir(tmp_path) == []


def test_links_share_the_file_and_existing_targets_stay(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"x")
    assert files.link_or_copy(source, tmp_path / "sub" / "b")
    assert (tmp_path / "sub" / "b").samefile(source)
    assert files.link_or_copy(source, tmp_path / "sub" / "b")


def test_where_links_cannot_be_made_it_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_bytes(b"x")
    assert not files.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"x"
    assert not (tmp_path / "b").samefile(tmp_path / "a")
