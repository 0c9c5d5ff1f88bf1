"""The bases of the three targets: what they are made of, and the program that makes them."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_wheel import FILES, make_wheel, pin_of

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError, RefusedError
from imagebuild.oci import media_types as mt
from imagebuild.testing import bases, target_bases
from imagebuild.testing.base_layers import FilesLayer
from imagebuild.testing.dependency_layer import DependencyLayer
from imagebuild.testing.target_bases import STAND_INS, names, runnable_base, target_base
from imagebuild.testing.wheel_base import MadeBase
from imagebuild.testing.wheel_fetch import AMD64, ARM64

ROOT = Path(__file__).resolve().parents[3]


def test_the_committed_targets_pin_these_bases() -> None:
    for name, stand_in in STAND_INS.items():
        text = (ROOT / "manifests" / name / "target.yaml").read_text()
        spec = stand_in.spec(None)
        assert f"base: oci:build/bases/{name}:{spec.tag}@{stand_in.digest}\n" in text
        assert f"platforms: [{spec.platforms[0]}]" in text


def test_each_has_what_its_target_is_about() -> None:
    b300, gb200, mi355x = (STAND_INS[name].spec(None) for name in ("b300-vllm", "gb200-dynamo", "mi355x-rocm"))
    assert (b300.platforms, gb200.platforms, mi355x.platforms) == ((AMD64,), (ARM64,), (AMD64,))
    assert "HSA_NO_SCRATCH_RECLAIM=1" in mi355x.env
    assert (b300.family, mi355x.family, mi355x.index) == (mt.OCI, mt.DOCKER, False)
    built = [
        path for layer in mi355x.layers if isinstance(layer, FilesLayer) for path in layer.files if "/jit/" in path
    ]
    assert len(built) == 2
    libc = [path for layer in gb200.layers if isinstance(layer, FilesLayer) for path in layer.files if "libc" in path]
    assert libc == ["usr/lib/aarch64-linux-gnu/libc.so.6"]
    for header, machine in ((b300, 62), (gb200, 183)):
        (data,) = (
            data for layer in header.layers if isinstance(layer, FilesLayer) for path, (data, _) in layer.files.items() if "libc" in path
        )  # fmt: skip
        assert (data[:4], int.from_bytes(data[18:20], "little")) == (b"\x7fELF", machine)


REQUIRES = b"""Metadata-Version: 2.1
Name: tiny
Version: 1.2
Requires-Dist: exact==2.0
Requires-Dist: least>=1.5,<3
Requires-Dist: any
Requires-Dist: here>=1; platform_machine == "aarch64"
Requires-Dist: not-here>=1; platform_machine == "s390x"
Requires-Dist: optional; extra == "all"
Requires-Dist: with-extra[http]>=4
Requires-Dist: below-and-wild>=5,!=5.1.*

Requires-Dist: prose==1
"""


def test_requirements_stand_as_metadata_in_versions_that_meet_them(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {**FILES, "tiny-1.2.dist-info/METADATA": REQUIRES})
    pin = pin_of(path)
    layer = DependencyLayer({AMD64: pin, ARM64: pin}, {"any": "9", "more": "1"}, installer="uv")
    versions: dict[Any, set[str]] = {}
    for platform in (AMD64, ARM64):
        items = {item.path: item for item in layer.items(platform, 0, lambda _pin: path)}
        folders = {part for item in items for part in item.split("/") if part.endswith(".dist-info")}
        versions[platform] = {folder.removesuffix(".dist-info") for folder in folders}
        info = "usr/local/lib/python3.12/dist-packages/with_extra-4.dist-info"
        assert {f"{info}/METADATA", f"{info}/RECORD", f"{info}/INSTALLER"} <= set(items)
    common = {"exact-2.0", "least-1.5", "any-9", "more-1", "with_extra-4", "below_and_wild-5"}
    assert versions == {AMD64: common, ARM64: common | {"here-1"}}
    assert zipfile.ZipFile(path).testzip() is None


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets no base be made: each comes out with the digest that is asked for, or another one for `wrong`."""
    asked: list[str] = []

    def make(spec: Any, folder: Path, **_named: Any) -> MadeBase:
        asked.append(str(folder))
        digest = STAND_INS[spec.name].digest if "wrong" not in str(folder) else Digest("f" * 64)
        return MadeBase(folder, digest, mt.OCI_INDEX, 1, {}, True)

    monkeypatch.setattr(target_bases, "make_base", make)
    return asked


def test_the_program_makes_all_three_unless_some_are_named(
    made: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bases.main(["-C", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [f"oci:{tmp_path}/build/bases/{name}@{STAND_INS[name].digest}" for name in STAND_INS]
    assert bases.main(["-C", str(tmp_path), "mi355x-rocm", "mi355x-rocm"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert names(()) == tuple(STAND_INS)


def test_the_program_ends_as_verbs_do(made: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bases.main(["-C", str(tmp_path), "b301"]) == 2
    assert "testing.unknown-base" in capsys.readouterr().err
    assert bases.main(["-C", str(tmp_path / "wrong")]) == 1
    assert "testing.other-base" in capsys.readouterr().err
    with pytest.raises(RefusedError):
        target_base(tmp_path / "wrong", "b300-vllm")
    with pytest.raises(InputError, match="demo has no runnable form"):
        runnable_base(tmp_path, "demo", tmp_path)


def test_progress_is_one_line_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    bar = bases._Bar()
    for done in range(3):
        bar("fetching x", done << 20, 3 << 20)
    bar("layer 1", 0, 0)
    assert capsys.readouterr().err == "fetching x (3 MiB)\nlayer 1\n"


def test_the_description_of_a_spec_is_json(tmp_path: Path) -> None:
    """The cache's keys are made of it."""
    for stand_in in STAND_INS.values():
        spec = replace(stand_in.spec(None))
        for layer in spec.layers:
            json.dumps(layer.describe(spec.platforms[0]))
            assert layer.created_by
