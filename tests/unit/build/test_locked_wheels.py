"""Wheels from lock to image: what they bring, what they take out, what refuses them (images.md, the artefacts layer)."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wheel_bench import BOTH, PLUGIN, Wheels, items, read_own, whole_view, with_layer

from imagebuild.content.digest import Digest
from imagebuild.layer.entry import Kind
from imagebuild.overlay.distributions import read_distributions
from imagebuild.testing.images import File, Folder, Link
from imagebuild.testing.small_engine import INFO, SITE, TIME


def test_a_new_distribution(wheels: Callable[..., Wheels], tmp_path: Path) -> None:
    w = wheels()
    w.overlay(
        w.make("plugin", "1.0", PLUGIN, entry_points="[console_scripts]\nplug = plugin.core:run\n"),
        identity={"engine": "1.0", "plugin": "1.0"},
    )
    lock = w.locked()
    (platform,) = lock.inputs.platforms
    assert platform.changes == ()
    assert list(platform.compressors) == ["artefacts"]
    found = items(lock)
    assert found[f"/{SITE}/plugin"].kind == "directory"
    core = found[f"/{SITE}/plugin/core.py"]
    assert (core.origin, core.mode, core.uid, core.preimage) == ("wheel:plugin", 0o644, 0, None)
    assert core.postimage == Digest.of(PLUGIN["plugin/core.py"])
    assert found["/usr/local/bin/plug"].mode == 0o755
    assert f"/{SITE}" not in found
    assert "/usr/local/bin" not in found
    assert {item.mtime for item in found.values()} == {lock.inputs.created}
    (source,) = platform.sources
    assert (source.kind, source.name, source.version) == ("wheel", "plugin", "1.0")
    assert source.details["scheme"]["interpreter"] == "/usr/bin/python3.12"
    image = w.b.build(lock, tmp_path / "out")
    view = whole_view(w, image)
    with image.own[0].open() as stream:
        assert b"#!/usr/bin/python3.12\n" in gzip.decompress(stream.read())
    assert view.lookup(f"{SITE}/plugin/core.py").data.sha256 == core.postimage


def test_the_image_s_own_record_agrees_with_its_files(wheels: Callable[..., Wheels], tmp_path: Path) -> None:
    w = wheels()
    w.overlay(w.make("plugin", "1.0", PLUGIN))
    lock = w.locked()
    image = w.b.build(lock, tmp_path / "out")
    view = whole_view(w, image)
    data = {}

    def keep(entry: Any, raw: bytes) -> None:
        data[entry.path] = raw

    read_own(image, capture=lambda path, size: True, captured=keep)

    class Contents:
        def read(self, path: str) -> bytes | None:
            return data.get(path)

    (plugin,) = read_distributions(view, Contents()).named("plugin")
    assert plugin.installer == "imagebuild"
    listed = set(plugin.rows)
    below = {path for path, found in view.walk(f"{SITE}/plugin") if found.entry.kind is Kind.FILE}
    assert below <= listed
    assert f"{plugin.info}/RECORD" in listed


def test_folders_that_the_site_folder_s_owner_has(wheels: Callable[..., Wheels]) -> None:
    """New files belong to the owner of the nearest folder that exists."""
    w = wheels()
    w.overlay(w.make("engine-extra", "1.0", {"engine/data/more.json": b"{}"}))
    found = items(w.locked())
    more = found[f"/{SITE}/engine/data/more.json"]
    assert (more.uid, more.gid) == (1000, 1000)
    assert found[f"/{SITE}/engine/data"].mode == 0o750


def test_an_installed_version_is_taken_out_by_its_record(wheels: Callable[..., Wheels], tmp_path: Path) -> None:
    w = wheels()
    w.overlay(w.make("engine", "2.0", {"engine/__init__.py": b"__version__ = '2.0'\n"}), identity={"engine": "2.0"})
    locked = w.b.lock()
    found = items(locked.lock)
    assert found[f"/{SITE}/engine/__init__.py"].preimage == Digest.of(b'__version__ = "1.0"\n')
    for gone in ("engine/envs.py", "engine/data", "engine/__pycache__", "engine-1.0.dist-info"):
        assert found[f"/{SITE}/{gone}"].kind == "whiteout"
    assert f"/{SITE}/engine/data/table.json" not in found
    assert f"/{INFO}/METADATA" not in found
    assert found[f"/{INFO}"].origin == f"removed:/{INFO}"
    said = {finding.code: finding.message for finding in locked.findings}
    assert "engine 1.0 is taken out by its RECORD" in said["overlay.wheel-replaces"]
    view = whole_view(w, w.b.build(locked.lock, tmp_path / "out"))
    assert [path for path, _ in view.walk(f"{SITE}/engine")] == [f"{SITE}/engine", f"{SITE}/engine/__init__.py"]
    assert not view.children(INFO)[0]


def test_the_same_version_again_replaces_its_files(wheels: Callable[..., Wheels]) -> None:
    w = wheels()
    w.overlay(w.make("engine", "1.0", {"engine/__init__.py": b"new\n"}))
    found = items(w.locked())
    assert found[f"/{INFO}/METADATA"].kind == "file"
    assert found[f"/{INFO}/INSTALLER"].preimage == Digest.of(b"pip\n")
    assert f"/{INFO}" not in found


def test_a_file_in_the_place_of_a_folder_and_the_other_way_round(wheels: Callable[..., Wheels], tmp_path: Path) -> None:
    w = wheels()
    w.overlay(
        w.make("engine", "2.0", {"engine/data": b"a file now\n", "engine/envs.py/__init__.py": b""}), identity=None
    )
    lock = w.locked()
    found = items(lock)
    assert found[f"/{SITE}/engine/data"].kind == "file"
    assert found[f"/{SITE}/engine/envs.py"].kind == "directory"
    view = whole_view(w, w.b.build(lock, tmp_path / "out"))
    assert view.lookup(f"{SITE}/engine/data").entry.kind is Kind.FILE
    assert list(view.children(f"{SITE}/engine/envs.py")[0]) == ["__init__.py"]


def test_what_a_later_change_patches_of_a_wheel_lies_above_it(wheels: Callable[..., Wheels], tmp_path: Path) -> None:
    w = wheels()
    w.overlay(
        w.make("plugin", "1.0", PLUGIN),
        "  - edit: {path: plugin/core.py, find: 'return 1', replace: 'return 2'}\n",
        roots={"plugin": {"python": "plugin"}, "engine": {"python": "engine"}},
    )
    lock = w.locked()
    changes = {item.path.removeprefix(f"/{SITE}/"): item for item in lock.inputs.platforms[0].changes}
    assert set(changes) == {
        "plugin/core.py",
        "plugin-1.0.dist-info/RECORD",
        "plugin-1.0.dist-info/imagebuild.json",
        "plugin-1.0.dist-info/sboms",
        "plugin-1.0.dist-info/sboms/imagebuild.cdx.json",
    }
    core = changes["plugin/core.py"]
    assert core.preimage == Digest.of(PLUGIN["plugin/core.py"])
    assert core.mtime == lock.inputs.created + 1
    image = w.b.build(lock, tmp_path / "out")
    assert [layer.role for layer in lock.result.platforms[0].layers] == ["artefacts", "changes"]
    assert image.own[0].descriptor.digest == lock.result.platforms[0].layers[0].digest
    guards = w.b.workspace.series(w.b.workspace.target("tuned"))[0].guards
    assert guards == {}


def test_a_change_before_the_wheel_is_refused(wheels: Callable[..., Wheels]) -> None:
    w = wheels()
    w.overlay(
        "  - edit: {path: engine/envs.py, find: '\"ENGINE_PORT\", 8000', replace: '\"ENGINE_PORT\", 9000'}\n",
        w.make("engine", "1.0", {"engine/envs.py": b"number('ENGINE_PORT', 8000)\n"}),
    )
    assert w.refused().code == "overlay.artefact-order"


def test_two_wheels_of_one_series(wheels: Callable[..., Wheels]) -> None:
    w = wheels()
    first = w.make("plugin", "1.0", PLUGIN, requires=["plugin-runtime==1.0"])
    w.overlay(first)
    error = w.refused()
    assert error.code == "overlay.requirement-unmet"
    assert "plugin 1.0 requires plugin-runtime==1.0" in error.message
    w.overlay(first, w.make("plugin-runtime", "1.0", {"plugin_runtime.py": b"x = 1\n"}))
    assert len(w.locked().inputs.platforms[0].sources) == 2
    w.overlay(first, w.make("Plugin", "1.1", PLUGIN))
    assert w.refused().code == "overlay.wheel-twice"


def test_what_a_wheel_brings_over_others_files(wheels: Callable[..., Wheels]) -> None:
    w = wheels()
    w.overlay(w.make("plugin", "1.0", {"helper/__init__.py": b"VALUE = 1\n"}))
    assert items(w.locked())[f"/{SITE}/helper/__init__.py"].preimage == Digest.of(b"VALUE = 1\n")
    w.overlay(w.make("plugin", "1.0", {"helper/__init__.py": b"VALUE = 2\n"}))
    error = w.refused()
    assert error.code == "overlay.wheel-conflict"
    assert "helper" in error.message
    w.overlay(w.make("plugin", "1.0", {"helper": b"a file over a folder"}))
    assert w.refused().code == "overlay.wheel-conflict"
    both = [w.make("one", "1", {"same.py": b"1"}), w.make("two", "1", {"same.py": b"2"})]
    w.overlay(*both)
    assert w.refused().code == "overlay.wheel-conflict"


def test_a_file_that_nobody_owns_is_replaced_and_said(wheels: Callable[..., Wheels]) -> None:
    w = wheels(with_layer(File(f"{SITE}/stray.py", b"old\n")))
    w.overlay(w.make("plugin", "1.0", {"stray.py": b"new\n"}))
    locked = w.b.lock()
    assert "overlay.wheel-overwrites" in {finding.code for finding in locked.findings}
    assert items(locked.lock)[f"/{SITE}/stray.py"].preimage == Digest.of(b"old\n")


def test_accepted_requirements(wheels: Callable[..., Wheels]) -> None:
    w = wheels()
    w.overlay(w.make("plugin", "1.0", PLUGIN, requires=["absent>=1"], more=", without: [absent]"))
    found = w.b.lock().findings
    assert [(f.code, f.severity.value) for f in found if "requirement" in f.code] == [
        ("overlay.requirement-unmet", "note")
    ]


@pytest.mark.parametrize(
    ("of_wheel", "code"),
    [
        ({"python": "<3.12"}, "overlay.requirement-unmet"),
        ({"tags": ["cp311-cp311-manylinux_2_17_x86_64"]}, "overlay.wheel-platform"),
        ({"tags": ["py3-none-manylinux_2_17_aarch64"]}, "overlay.wheel-platform"),
    ],
)
def test_wheels_for_something_else_are_refused(
    wheels: Callable[..., Wheels], of_wheel: dict[str, Any], code: str
) -> None:
    w = wheels()
    w.overlay(w.make("plugin", "1.0", PLUGIN, **of_wheel))
    assert w.refused().code == code


def test_what_is_asked_of_an_unknown_glibc_is_not_proven(wheels: Callable[..., Wheels]) -> None:
    w = wheels()
    w.overlay(w.make("plugin", "1.0", PLUGIN, tags=["py3-none-manylinux_2_28_x86_64"]))
    assert any("glibc is 2.28" in text for text in w.locked().inputs.platforms[0].not_proven)


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little") + bytes(44)


def test_shared_objects_of_another_machine(wheels: Callable[..., Wheels]) -> None:
    w = wheels()
    w.overlay(w.make("plugin", "1.0", {"plugin/x.so": elf(183)}))
    error = w.refused()
    assert (error.code, error.found) == ("overlay.wheel-platform", "aarch64")
    w.overlay(w.make("plugin", "1.0", {"plugin/x.so": elf(183), "plugin/y.so.1": elf(62), "plugin/z.so": b"text"}))
    assert "overlay.wheel-other-machine" in {finding.code for finding in w.b.lock().findings}


def test_a_platform_without_digest_is_refused(wheels: Callable[..., Wheels]) -> None:
    w = wheels(platforms=BOTH)
    change = w.make("plugin", "1.0", PLUGIN)
    w.overlay(change)
    assert len(w.locked().inputs.platforms) == 2
    w.overlay(change.replace(", linux/arm64:", "# linux/arm64:").split("# linux/arm64")[0] + "}}\n")
    assert w.refused().code == "build.wheel-no-digest"


def test_every_layer_is_read(wheels: Callable[..., Wheels]) -> None:
    w = wheels()
    w.overlay(w.make("plugin", "1.0", PLUGIN))
    assert all(layer.read for layer in w.locked().inputs.platforms[0].layers)


def test_links_in_the_site_folder_are_followed(wheels: Callable[..., Wheels], tmp_path: Path) -> None:
    w = wheels(with_layer(Folder("opt"), Folder("opt/plugin"), Link(f"{SITE}/plugin", "/opt/plugin")))
    w.overlay(w.make("plugin", "1.0", PLUGIN))
    lock = w.locked()
    assert "/opt/plugin/core.py" in items(lock)
    assert f"/{SITE}/plugin" not in items(lock)
    w.b.build(lock, tmp_path / "out")


def test_times_of_replaced_files_move_on(wheels: Callable[..., Wheels], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(TIME))
    w = wheels()
    w.overlay(w.make("engine", "1.0", {"engine/__init__.py": b"new\n"}))
    assert items(w.locked())[f"/{SITE}/engine/__init__.py"].mtime == TIME + 1


def test_identity_is_that_of_the_finished_image(wheels: Callable[..., Wheels]) -> None:
    w = wheels()
    w.overlay(w.make("engine", "2.0", {"engine/__init__.py": b"2\n"}), identity={"engine": "1.0"})
    error = w.refused()
    assert (error.code, error.found) == (
        "overlay.identity-mismatch",
        "engine 2.0 (found in /" + f"{SITE}/engine-2.0.dist-info)",
    )
