"""Exported scripts and wheels: members by digest, from a folder, an address or the container's own pip."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from test_export_script import Exported, seen, unpack

from imagebuild.build.export import merged_items
from imagebuild.build.exported import wheels as exported_wheels
from imagebuild.build.exported.guards import Stop
from imagebuild.content.digest import Digest
from imagebuild.oci.platform import Platform
from imagebuild.target.lock_types import LayerItem, PlatformInputs
from imagebuild.testing.small_engine import SITE

BIG = bytes(range(256)) * 20_000
FILES = {
    "plugin/__init__.py": b"NAME = 'plugin'\n",
    "plugin/kernel.bin": BIG,
    "plugin-2.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: plugin\nVersion: 2.0\n",
    "plugin-2.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "plugin-2.0.dist-info/entry_points.txt": b"[console_scripts]\nplug = plugin:main\n",
}


def make_wheel(folder: Path) -> Path:
    path = folder / "plugin-2.0-py3-none-any.whl"
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in FILES.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
            value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={value},{len(data)}\n")
        archive.writestr("plugin-2.0.dist-info/RECORD", "".join([*rows, "plugin-2.0.dist-info/RECORD,,\n"]))
    return path


@pytest.fixture
def exported(in_workspace: Any, verb: Any, tmp_path: Path) -> Exported:
    """A target that brings a wheel and changes a file of it, and a file of the base."""
    space = in_workspace()
    (space.cache / "wheels").mkdir(parents=True)
    digest = Digest.of(make_wheel(space.cache / "wheels").read_bytes())
    changes = (
        f"  - wheel: {{name: plugin, version: '2.0', sha256: {{linux/amd64: '{digest}'}}}}\n"
        "  - edit: {path: plugin/__init__.py, find: \"'plugin'\", replace: \"'tuned plugin'\"}\n"
        '  - edit: {path: engine/scheduler.py, find: "state + 17", replace: "state + 18"}\n'
    )
    space.write_target(roots={"engine": {"python": "engine"}, "plugin": {"python": "plugin"}})
    space.write_overlay(changes=changes, files={})
    locked = verb("lock", "tuned", "--complete")
    assert locked.code == 0, locked.err
    answer = verb("export", "tuned", "--as", "script", "--json")
    assert answer.code == 0, answer.err
    root = tmp_path / "root"
    root.mkdir()
    unpack(space.root / "build" / "base", str(space.base.digest), root)
    return Exported(space, Path(answer.document["file"]), root)


def test_the_wheel_is_laid_out_as_in_the_image(exported: Exported, verb: Any, tmp_path: Path) -> None:
    assert exported.script.stat().st_size < 100_000, "members of wheels are not carried"
    folder = str(exported.space.cache / "wheels")
    done = exported.run("--wheels", folder)
    assert (done.returncode, done.stdout) == (0, exported.content_id() + "\n"), done.stderr
    built = verb("build", "tuned", "--output", "oci:built", "--complete", "--json").document
    image = tmp_path / "image"
    image.mkdir()
    unpack(exported.space.root / "built", built["digest"], image)
    assert seen(exported.root) == seen(image)
    assert (exported.root / SITE / "plugin/kernel.bin").read_bytes() == BIG
    assert b"tuned plugin" in (exported.root / SITE / "plugin/__init__.py").read_bytes()
    # what is there already is not fetched again
    assert exported.run("--check").returncode == 0
    assert exported.run("--wheels", str(tmp_path / "nowhere")).returncode == 0


def test_without_the_wheel_nothing_is_written(exported: Exported, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    before = seen(exported.root)
    done = exported.run("--wheels", str(empty))
    assert (done.returncode, done.stdout) == (3, "")
    assert "plugin==2.0" in done.stderr
    assert seen(exported.root) == before


@pytest.fixture
def wheel(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "site").mkdir()
    path = make_wheel(tmp_path / "site")
    return {"requirement": "plugin==2.0", "sha256": str(Digest.of(path.read_bytes())), "url": path.as_uri()}


def test_a_wheel_comes_from_its_address_and_goes_when_closed(wheel: dict[str, Any]) -> None:
    found = exported_wheels.Wheels(None)
    assert b"".join(found.member(wheel, "plugin/kernel.bin")) == BIG
    assert found.scratch is not None
    folder = Path(found.scratch)
    assert folder.is_dir()
    found.close()
    assert not folder.exists()


def test_other_bytes_are_refused_and_an_address_that_fails_is_could_not(wheel: dict[str, Any]) -> None:
    for change, code in (({"sha256": "sha256:" + "0" * 64}, 1), ({"url": "file:///nowhere/x.whl"}, 3)):
        found = exported_wheels.Wheels(None)
        with pytest.raises(Stop) as caught:
            list(found.member({**wheel, **change}, "plugin/__init__.py"))
        assert caught.value.code == code
        found.close()


def test_pip_downloads_by_digest_and_installs_nothing(
    wheel: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []

    def pip(command: list[str], **_named: Any) -> None:
        asked.append(command)
        if "fail" in wheel["requirement"]:
            raise subprocess.CalledProcessError(1, command)
        folder = Path(command[command.index("--dest") + 1])
        (folder / "plugin-2.0-py3-none-any.whl").write_bytes(
            (tmp_path / "site" / "plugin-2.0-py3-none-any.whl").read_bytes()
        )
        assert (folder / "requirement.txt").read_text() == f"plugin==2.0 --hash={wheel['sha256']}\n"

    del wheel["url"]
    monkeypatch.setattr(exported_wheels.subprocess, "run", pip)
    found = exported_wheels.Wheels(None)
    assert b"".join(found.member(wheel, "plugin/__init__.py")) == FILES["plugin/__init__.py"]
    assert {"download", "--no-deps", "--require-hashes"} <= set(asked[0])
    assert "install" not in asked[0]
    found.close()
    wheel["requirement"] = "fail==1"
    with pytest.raises(Stop) as caught:
        list(exported_wheels.Wheels(None).member({**wheel, "sha256": "sha256:" + "1" * 64}, "x"))
    assert caught.value.code == 3


def test_both_layers_are_one_step_from_the_base() -> None:
    one, two, three = (Digest(str(number) * 64) for number in (1, 2, 3))
    artefacts = (
        LayerItem("/a", "file", "wheel:x", preimage=one, postimage=two),
        LayerItem("/b", "file", "wheel:x", postimage=two),
        LayerItem("/c", "file", "wheel:x", postimage=two),
    )
    changes = (
        LayerItem("/a", "file", "change:r/a", preimage=two, postimage=three),
        LayerItem("/b", "whiteout", "change:r/b", preimage=two),
    )
    platform = PlatformInputs(
        Platform("linux", "amd64"), one, 1, "", one, (), (), (), artefacts, changes, (), {}, ()
    )  # fmt: skip
    items = {item.path: item for item in merged_items(platform)}
    assert (items["/a"].preimage, items["/a"].postimage) == (one, three)
    assert set(items) == {"/a", "/c"}, "what the wheel brings and a change deletes is not there at all"
