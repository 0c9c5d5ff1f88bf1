"""`overlay pin` and `overlay import --from-script` as verbs: what is written, said and refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_index import Index

from imagebuild.build import index_wheels
from imagebuild.build.index_wheels import IndexWheel, fetch_from_index, pip_command
from imagebuild.content.digest import Digest
from imagebuild.errors import UnavailableError
from imagebuild.oci.platform import Platform
from imagebuild.testing.small_engine import ENVS, ENVS_AFTER, SmallWorkspace

ARM64 = Platform("linux", "arm64")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index(tmp_path / "index")
    monkeypatch.setattr(index_wheels.process, "run", made.run)
    return made


@pytest.fixture
def space(in_workspace: Callable[..., SmallWorkspace]) -> SmallWorkspace:
    return in_workspace(platforms=("linux/amd64", "linux/arm64"))


def test_a_new_overlay_with_a_digest_for_each_platform(
    space: SmallWorkspace, index: Index, verb: Callable[..., Any]
) -> None:
    first, second = index.add("plugin", "1.0", "x86_64"), index.add("plugin", "1.0", "aarch64", requires=["helper>=2"])
    done = verb("overlay", "pin", "add-plugin", "plugin==1.0", "--target", "tuned", "--json")
    assert done.code == 0, done.err
    document = done.document
    digests = {wheel["platform"]: wheel["sha256"] for wheel in document["wheels"]}
    assert digests == {
        "linux/amd64": str(Digest.of(first.read_bytes())),
        "linux/arm64": str(Digest.of(second.read_bytes())),
    }
    assert [wheel["file"] for wheel in document["wheels"]] == [first.name, second.name]
    assert document["findings"] == []
    assert "next: add add-plugin" in done.err
    text = (space.root / "overlays" / "add-plugin" / "overlay.yaml").read_text()
    assert digests["linux/arm64"] in text
    for command in index.commands:
        assert "--no-deps" in command
        assert "--only-binary=:all:" in command
        assert "--python-version=3.12" in command
    space.write_target(overlays=["add-plugin", "tune"], identity={"plugin": "1.0"})
    assert verb("lock", "tuned").code == 0
    assert verb("build", "tuned").code == 0
    checked = verb("overlay", "check")
    assert checked.code == 0, checked.err


def test_what_the_image_lacks_is_said_and_can_be_accepted(
    space: SmallWorkspace, index: Index, verb: Callable[..., Any]
) -> None:
    index.add("plugin", "1.0", requires=["absent>=1"])
    done = verb("overlay", "pin", "add-plugin", "plugin==1.0", "--target", "tuned")
    assert done.code == 0
    assert "blocking: plugin 1.0 requires absent>=1" in done.err
    assert "--without DIST" in done.err
    again = verb("overlay", "pin", "add-plugin", "plugin==1.0", "--target", "tuned", "--without", "absent")
    assert "blocking" not in again.err
    assert "without: [absent]" in Path(again.out.strip()).read_text()
    kept = verb("overlay", "pin", "add-plugin", "plugin==1.0", "--target", "tuned")
    assert "without: [absent]" in Path(kept.out.strip()).read_text()


def test_wheels_stand_before_changes_and_are_replaced_in_place(
    space: SmallWorkspace, index: Index, verb: Callable[..., Any]
) -> None:
    file = space.root / "overlays" / "tune" / "overlay.yaml"
    before = file.read_text()
    index.add("plugin", "1.0")
    assert verb("overlay", "pin", "tune", "plugin==1.0").code == 0
    text = file.read_text()
    assert text.index("- wheel:") < text.index("- patch:")
    assert text.endswith(before.partition("changes:\n")[2])
    index.add("plugin", "1.1")
    assert verb("overlay", "pin", "tune", "plugin==1.1").code == 0
    again = file.read_text()
    assert again.count("- wheel:") == 1
    assert '"1.1"' in again or "1.1" in again
    assert "1.0" not in again.partition("- patch")[0].replace("description", "")


@pytest.mark.parametrize("pin", ["plugin", "plugin>=1.0", "plugin==", "==1.0", "plugin==1.*", "plugin==1.0,<2"])
def test_pins_that_are_none(space: SmallWorkspace, verb: Callable[..., Any], pin: str) -> None:
    done = verb("overlay", "pin", "x", pin, "--target", "tuned", "--json")
    assert (done.code, done.document["code"]) == (2, "overlay.bad-pin")


def test_what_the_index_does_not_have(space: SmallWorkspace, index: Index, verb: Callable[..., Any]) -> None:
    done = verb("overlay", "pin", "x", "plugin==9", "--target", "tuned", "--json")
    assert (done.code, done.document["code"]) == (3, "build.wheel-unavailable")
    assert "No matching distribution found" in done.document["message"]
    assert not (space.root / "overlays" / "x").exists()
    assert not [path for path in (space.cache / "artefacts").rglob("*") if path.is_file()]


def test_a_locked_wheel_is_asked_for_by_digest(tmp_path: Path, index: Index) -> None:
    wanted = IndexWheel("plugin", "1.0", ARM64, "3.12", Digest.of(b"x"))
    command = pip_command(wanted, tmp_path / "r", tmp_path / "d")
    assert "--require-hashes" in command
    assert "--platform=manylinux_2_28_aarch64" in command
    assert not any("x86_64" in word for word in command)
    (tmp_path / "work").mkdir()
    with pytest.raises(UnavailableError) as caught:
        fetch_from_index(wanted, tmp_path / "work", lambda _: None)
    assert caught.value.expected == str(Digest.of(b"x"))
    assert (tmp_path / "work" / "requirement.txt").read_text() == f"plugin==1.0 --hash=sha256:{Digest.of(b'x').hex}\n"


def test_a_locked_build_asks_the_index_again(space: SmallWorkspace, index: Index, verb: Callable[..., Any]) -> None:
    index.add("plugin", "1.0")
    verb("overlay", "pin", "add-plugin", "plugin==1.0", "--target", "tuned")
    space.write_target(overlays=["add-plugin", "tune"])
    assert verb("lock", "tuned").code == 0
    index.commands.clear()
    shutil.rmtree(space.cache)
    assert verb("build", "tuned").code == 0
    assert len(index.commands) == 1
    shutil.rmtree(space.cache)
    index.wheels.clear()
    shutil.rmtree(space.root / "build" / "tuned")
    assert verb("build", "tuned", "--json").document["code"] == "build.wheel-unavailable"
    index.add("plugin", "1.0", requires=["helper"])
    other = verb("build", "tuned", "--json")
    assert (other.code, other.document["code"]) == (1, "build.artefact-mismatch")


def test_a_wheel_change_is_shown(space: SmallWorkspace, index: Index, verb: Callable[..., Any]) -> None:
    index.add("plugin", "1.0")
    verb("overlay", "pin", "add-plugin", "plugin==1.0", "--target", "tuned")
    shown = verb("overlay", "show", "add-plugin")
    assert "wheel plugin 1.0" in shown.out
    assert "Platform(" not in shown.out


SCRIPT = """\
#!/usr/bin/env bash
set -euo pipefail
ROOT="$(python3 -c 'import engine, os; print(os.path.dirname(os.path.dirname(engine.__file__)))')"
cat > "$ROOT/engine/added.py" <<'EOF'
ADDED = True
EOF
( cd "$ROOT" && patch -p1 --fuzz=2 ) <<'EOF'
%sEOF
"""


def test_a_patch_script_becomes_an_overlay(space: SmallWorkspace, verb: Callable[..., Any]) -> None:
    from imagebuild.overlay.patch_make import make_diff

    diff = make_diff("engine/envs.py", ENVS, ENVS_AFTER).decode()
    script = space.root / "apply.sh"
    script.write_text(SCRIPT.replace('( cd "$ROOT" && patch -p1 --fuzz=2 )', 'patch -p1 --fuzz=2 -d "$ROOT"') % diff)
    done = verb("overlay", "import", "taken", "--target", "tuned", "--from-script", script)
    assert done.code == 0, done.err
    assert "--fuzz=2 is not honoured" in done.err
    folder = space.root / "overlays" / "taken"
    assert (folder / "files" / "engine" / "added.py").read_bytes() == b"ADDED = True\n"
    space.write_target(overlays=["taken"])
    assert verb("lock", "tuned").code == 0
    script.write_text(script.read_text() + "sed -i s/a/b/ $ROOT/engine/envs.py\npip install x\n")
    refused = verb("overlay", "import", "more", "--target", "tuned", "--from-script", script, "--json")
    assert refused.code == 1
    lines = [error["details"]["line"] for error in refused.document["details"]["errors"]]
    assert lines == sorted(lines)
    assert len(lines) == 2
    assert not (space.root / "overlays" / "more").exists()


def test_an_overlay_of_a_wheel_alone_needs_no_workspace(
    space: SmallWorkspace, index: Index, verb: Callable[..., Any]
) -> None:
    index.add("plugin", "1.0")
    verb("overlay", "pin", "add-plugin", "plugin==1.0", "--target", "tuned")
    base = f"oci:build/base@{space.base.digest}"
    done = verb("build", "--base", base, "--overlay", "overlays/add-plugin", "--output", "oci:out", "--json")
    assert done.code == 0, done.err
    assert [layer["role"] for layer in done.document["platforms"][0]["layers"]] == ["artefacts"]


def test_check_needs_the_bytes_of_a_blob_only_where_it_is_edited(
    space: SmallWorkspace, verb: Callable[..., Any]
) -> None:
    data = b'{"rows": []}\n'
    blob = f"  - blob: {{path: engine/data/table.json, file: files/t, sha256: '{Digest.of(data)}'}}\n"
    edit = "  - edit: {path: engine/data/table.json, find: '[]', replace: '[1]'}\n"
    space.write_overlay(changes=blob + edit, files={"files/t": data})
    assert verb("lock", "tuned").code == 0
    checked = verb("overlay", "check", "tune")
    assert checked.code == 0, checked.err
