"""Wheels: found, fetched by pip, and never taken with other bytes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_wheel import make_wheel, pin_of

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, UnavailableError
from imagebuild.testing import wheel_fetch
from imagebuild.testing.wheel_fetch import VLLM, WheelPin, obtain, pip_command, wheel_folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_a_wheel_that_is_there_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBUILD_TEST_WHEELS", str(tmp_path))
    path = make_wheel(tmp_path)
    told: list[tuple[str, int, int]] = []
    assert obtain(pin_of(path), lambda *args: told.append(args)) == path
    assert told == []


def test_the_folder_is_the_caches_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMAGEBUILD_TEST_WHEELS", raising=False)
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(tmp_path))
    assert wheel_folder() == tmp_path / "wheels"


def test_pip_fetches_what_is_missing_or_damaged(tmp_path: Path, index: Path) -> None:
    pin = pin_of(make_wheel(index))
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / pin.filename).write_bytes(b"x" * pin.size)
    told: list[tuple[str, int, int]] = []
    found = obtain(pin, lambda *args: told.append(args), cache)
    assert Digest.of(found.read_bytes()) == pin.sha256
    assert told[-1][2] == pin.size
    assert [path.name for path in cache.iterdir()] == [pin.filename]


def test_other_bytes_under_the_same_name_are_refused(tmp_path: Path, index: Path) -> None:
    pin = replace(pin_of(make_wheel(index)), sha256=Digest("0" * 64))
    with pytest.raises(UnavailableError) as caught:
        obtain(pin, folder=tmp_path / "cache")
    assert caught.value.code == "testing.wheel-unavailable"
    assert caught.value.hint is not None
    assert "IMAGEBUILD_TEST_WHEELS" in caught.value.hint
    assert list((tmp_path / "cache").iterdir()) == []


def test_pip_is_asked_for_the_wheels_platform(tmp_path: Path) -> None:
    for pin in VLLM.values():
        assert f"--platform={pin.filename[:-4].split('-')[-1]}" in pip_command(pin, tmp_path)
    assert not any(
        part.startswith("--platform")
        for part in pip_command(WheelPin("a-1-py3-none-any.whl", Digest("0" * 64), 1), tmp_path)
    )


@pytest.mark.parametrize("name", ["vllm.whl", "a-1-py3-none-any.zip", "x/a-1-py3-none-any.whl"])
def test_a_pin_names_a_wheel(name: str) -> None:
    with pytest.raises(InputError):
        WheelPin(name, Digest("0" * 64), 1)


def test_a_folder_that_pip_removes_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "here").write_bytes(b"x" * 7)
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("gone"):
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert wheel_fetch._arrived(tmp_path) == 7
