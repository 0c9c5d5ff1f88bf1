"""lock and build are killed at every moment; the same command then completes with the same digest."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from killing import EVENTS, FILES, killed_at

from imagebuild.content.files import TEMPORARY_PREFIX
from imagebuild.content.strict_yaml import load_yaml
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BASE = engine_base(("linux/amd64", "linux/arm64"))


def unfinished(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]


def check_layout(folder: Path, allowed: set[str]) -> None:
    """What the layout names is whole as far as it is ours, and every blob is what its name says."""
    if not (folder / "oci-layout").is_file():
        return
    for path in (folder / "blobs" / "sha256").iterdir():
        if not path.name.startswith(TEMPORARY_PREFIX):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    base = {str(layer.descriptor.digest) for layer in BASE.layers}
    wanted = [entry["digest"] for entry in json.loads((folder / "index.json").read_bytes())["manifests"]]
    assert set(wanted) <= allowed
    while wanted:
        digest = wanted.pop()
        if digest in base:
            continue
        data = (folder / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()
        value = json.loads(data) if data[:1] == b"{" else {}
        wanted += [child["digest"] for child in (*value.get("manifests", ()), *value.get("layers", ()))]
        wanted += [value["config"]["digest"]] if "schemaVersion" in value and "config" in value else []


@pytest.fixture
def space(
    in_workspace: Callable[..., SmallWorkspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SmallWorkspace]:
    made = in_workspace(BASE)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield made
    monkeypatch.setattr("tempfile.tempdir", None)


def moments(kinds: set[str]) -> Iterator[int]:
    """Every moment; where file systems count too, there are so many that only some are tried, all of the early ones."""
    number = 0
    while True:
        yield number
        number += 1 if kinds == {EVENTS} or number < 12 else 4


@pytest.mark.parametrize("kinds", [{EVENTS}, {EVENTS, FILES}], ids=["events", "files"])
def test_build_killed_at_every_moment(space: SmallWorkspace, verb: Any, tmp_path: Path, kinds: set[str]) -> None:
    assert verb("lock", "tuned").code == 0
    digest = str(space.digest())
    tried = 0
    for moment in moments(kinds):
        output = f"oci:{tmp_path}/out{moment}:v"
        shutil.rmtree(space.cache, ignore_errors=True)
        ended = killed_at(moment, ["build", "tuned", "--output", output], kinds)
        check_layout(tmp_path / f"out{moment}", {digest})
        again = verb("build", "tuned", "--output", output, "--json")
        assert (again.code, again.document["digest"]) == (0, digest), again.err
        check_layout(tmp_path / f"out{moment}", {digest})
        assert not unfinished(tmp_path / f"out{moment}")
        if ended is not None:
            assert (ended, again.document["unchanged"]) == (0, True)
            break
        tried += 1
        shutil.rmtree(tmp_path / f"out{moment}")
    assert tried >= (6 if kinds == {EVENTS} else 10)


def test_a_killed_rebuild_leaves_the_earlier_image_named(space: SmallWorkspace, verb: Any, tmp_path: Path) -> None:
    """The name never points at anything but the old image or the new one, whole."""
    verb("lock", "tuned")
    verb("build", "tuned")
    layout = space.root / "build" / "tuned"
    old = str(space.digest())
    shutil.copytree(layout, tmp_path / "before")
    space.write_target(env={"ADDED": "1"})
    assert verb("lock", "tuned").code == 0
    new = str(space.digest())
    assert new != old
    for moment in moments({EVENTS, FILES}):
        shutil.rmtree(layout)
        shutil.copytree(tmp_path / "before", layout)
        ended = killed_at(moment, ["build", "tuned"], {EVENTS, FILES})
        check_layout(layout, {old, new})
        assert len(json.loads((layout / "index.json").read_bytes())["manifests"]) == 1
        again = verb("build", "tuned", "--json")
        assert (again.code, again.document["digest"]) == (0, new), again.err
        check_layout(layout, {new})
        if ended is not None:
            break


@pytest.mark.parametrize("kinds", [{EVENTS}, {EVENTS, FILES}], ids=["events", "files"])
def test_lock_killed_at_every_moment(space: SmallWorkspace, verb: Any, tmp_path: Path, kinds: set[str]) -> None:
    """The lock file is the old one or the new one, and whichever stands there has all of its content beside it."""
    assert verb("lock", "tuned").code == 0
    first = space.lock_path().read_bytes()
    shutil.copytree(space.root, tmp_path / "locked", symlinks=True)
    unlocked = space.root / "overlays" / "tune" / "overlay.yaml"
    space.write_target(env={"ADDED": "1"})
    space.write_overlay(
        changes='  - edit: {path: engine/scheduler.py, find: "state + 3\\n", replace: "state + 4\\n"}\n'
    )
    changed = {"target.yaml": (space.folder() / "target.yaml").read_bytes(), "overlay.yaml": unlocked.read_bytes()}
    shutil.rmtree(space.cache)
    assert verb("lock", "tuned").code == 0
    second = space.lock_path().read_bytes()
    assert second != first
    tried = 0
    for moment in moments(kinds):
        shutil.rmtree(space.root / "manifests")
        shutil.rmtree(space.root / "overlays")
        for part in ("manifests", "overlays"):
            shutil.copytree(tmp_path / "locked" / part, space.root / part)
        (space.folder() / "target.yaml").write_bytes(changed["target.yaml"])
        unlocked.write_bytes(changed["overlay.yaml"])
        shutil.rmtree(space.cache, ignore_errors=True)
        ended = killed_at(moment, ["lock", "tuned"], kinds)
        assert space.lock_path().read_bytes() in (first, second)
        load_yaml(unlocked)
        for digest in space.lock()["notes"]["content"]:
            assert (space.folder() / "content" / "sha256" / f"{digest.removeprefix('sha256:')}.z").is_file()
        again = verb("lock", "tuned")
        assert again.code == 0, again.err
        assert space.lock_path().read_bytes() == second
        assert verb("lock", "tuned", "--check").code == 0
        if ended is not None:
            break
        tried += 1
    assert tried >= (6 if kinds == {EVENTS} else 15)
