"""Whole verbs on bases in the folder layouts of real images: made by pip and uv, in both families, for both platforms."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_wheel import FILES, make_wheel, pin_of

from imagebuild.content.store import ContentStore
from imagebuild.oci import media_types as mt
from imagebuild.overlay.patch_make import make_diff
from imagebuild.testing.base_layers import InterpreterLayer, RootLayer, WheelLayer
from imagebuild.testing.small_engine import SmallWorkspace
from imagebuild.testing.wheel_base import BaseSpec, MadeBase, make_base
from imagebuild.testing.wheel_fetch import AMD64, ARM64
from imagebuild.testing.wheel_install import DIST_PACKAGES, VENV, Installer, Layout

SOURCE = FILES["tiny/deep/module.py"]
DIFF = make_diff("tiny/deep/module.py", SOURCE, SOURCE.replace(b"42", b"43"))
DIST = "usr/local/lib/python3.12/dist-packages"
VENV_SITE = "opt/venv/lib/python3.12/site-packages"

LAYOUTS = {
    "dist-packages": (DIST_PACKAGES, "", DIST, ()),
    "venv": (VENV, "", VENV_SITE, ("PATH=/opt/venv/bin:/usr/bin", "VIRTUAL_ENV=/opt/venv")),
    "editable": (DIST_PACKAGES, "workspace/tiny", "workspace/tiny", ()),
    "editable in a venv": (VENV, "workspace/tiny", "workspace/tiny", ("PATH=/opt/venv/bin:/usr/bin",)),
}
"""Layout, editable folder, the folder that the package is found in, and the environment."""


@pytest.fixture
def base(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., MadeBase]:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    pin = pin_of(make_wheel(wheels))

    def make(layout: Layout, editable: str, env: tuple[str, ...], installer: Installer, family: mt.Family) -> MadeBase:
        wheel = WheelLayer({AMD64: pin, ARM64: pin}, layout, installer, ("tiny/deep/module.py",), editable)
        spec = BaseSpec("x", (AMD64, ARM64), (RootLayer(), InterpreterLayer(), wheel), 1_793_613_600, tag="v1")
        spec = replace(spec, env=env or spec.env, family=family)
        folder = tmp_path / "ws" / "build" / "base"
        return make_base(spec, folder, store=ContentStore(tmp_path / "store"), wheel_folder=wheels)

    return make


@pytest.mark.parametrize("family", [mt.OCI, mt.DOCKER], ids=["oci", "schema-2"])
@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_package_is_found_patched_and_its_record_agrees(
    base: Any, verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, installer: Installer, family: Any
) -> None:
    layout, editable, folder, env = LAYOUTS[name]
    made = base(layout, editable, env, installer, family)
    space = SmallWorkspace(
        tmp_path / "ws",
        None,
        f"oci:build/base:v1@{made.digest}",
        ("linux/amd64", "linux/arm64"),  # type: ignore[arg-type]
    )
    space.write_target(roots={"tiny": {"python": "tiny"}}, identity={"tiny": "1.2"})
    space.write_overlay(changes="  - patch: p.patch\n", files={"p.patch": DIFF})
    monkeypatch.chdir(space.root)
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(space.cache))
    assert verb("lock", "tuned", "--complete").code == 0
    built = verb("build", "tuned", "--json")
    assert built.code == 0, built.err
    lock = json.loads(space.lock_path().read_bytes())
    for platform in ("linux/amd64", "linux/arm64"):
        inputs = lock["inputs"]["platforms"][platform]
        assert inputs["roots"]["tiny"]["folder"] == f"/{folder}/tiny"
        assert inputs["not_proven"] == []
        changes = {item["path"]: item["origin"].partition(":")[0] for item in inputs["changes"]}
        assert changes[f"/{folder}/tiny/deep/module.py"] == "change"
        assert changes[f"/{folder}/tiny/deep/__pycache__/module.cpython-312.pyc"] == "bytecode"
        # of an editable project it lists the note that the builder leaves beside it
        assert changes[f"/{layout.site}/tiny-1.2.dist-info/RECORD"] == "record"
    verified = verb("verify", built.document["reference"], "--target", "tuned", "--json")
    assert verified.document["passed"] is True


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_site_folder_says_how_it_was_installed(base: Any, tmp_path: Path, name: str, installer: Installer) -> None:
    import gzip
    import tarfile

    layout, editable, folder, env = LAYOUTS[name]
    made = base(layout, editable, env, installer, mt.OCI)
    manifest = next(
        value
        for value in (path.read_bytes() for path in sorted((made.folder / "blobs/sha256").iterdir()))
        if value.startswith(b'{"schemaVersion":2') and b'"layers"' in value
    )
    digest = json.loads(manifest)["layers"][-1]["digest"].removeprefix("sha256:")
    raw = gzip.decompress((made.folder / "blobs" / "sha256" / digest).read_bytes())
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        files = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
        names = set(archive.getnames())
    info = f"{layout.site}/tiny-1.2.dist-info"
    assert files[f"{info}/INSTALLER"] == (b"pip\n" if installer == "pip" else b"uv")
    assert f"{folder}/tiny/__init__.py" in files
    record = files[f"{info}/RECORD"].decode()
    assert ("\r\n" in record) == (installer == "pip")
    rows = {row[0] for row in csv.reader(io.StringIO(record))}
    assert ("tiny/__pycache__" in record) is False
    assert ("tiny/deep/__pycache__/module.cpython-312.pyc" in rows) == (installer == "pip" and not editable)
    if layout is VENV:
        assert b"home = /usr/bin" in files["opt/venv/pyvenv.cfg"]
        assert "opt/venv/bin/python" in names
    if editable:
        assert json.loads(files[f"{info}/direct_url.json"])["dir_info"] == {"editable": True}
        assert files[f"{layout.site}/__editable__.tiny-1.2.pth"] == f"/{editable}\n".encode()
        assert not any(row.startswith("tiny/") for row in rows)
