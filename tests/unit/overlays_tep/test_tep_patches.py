"""The overlay's patches: what they declare, and that they turn the real files into the guarded ones."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuild.overlay.changes import FileChange, Guard, PatchChange
from imagebuild.overlay.document import Overlay, load_overlay
from imagebuild.overlay.header import check_header
from imagebuild.overlay.patch_apply import apply_patch
from imagebuild.overlay.patch_parse import parse_patch

VARIABLE = "VLLM_KIMI_K3_TEP_SHARED_TP"


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\x00" % len(data) + data, usedforsecurity=False).hexdigest()


@pytest.fixture(scope="module")
def overlay(overlay_folder: Path) -> Overlay:
    return load_overlay(overlay_folder)


def guard_of(overlay: Overlay, path: str) -> Guard:
    guard = overlay.guards[path]
    assert isinstance(guard, Guard)
    return guard


def patched(overlay: Overlay, path: str, preimage: bytes) -> bytes:
    """`preimage` after every patch of the overlay that touches `path`; applying knows no fuzz and no offset."""
    for change in overlay.changes:
        if not isinstance(change, PatchChange):
            continue
        for file in parse_patch((overlay.folder / change.patch).read_bytes()).files:
            if file.path == path:
                preimage = apply_patch(preimage, file.hunks, path)
    return preimage


def test_switch_is_off_by_default_and_numerics_are_reordered(overlay: Overlay) -> None:
    assert overlay.switch is not None
    assert (overlay.switch.env, overlay.switch.default, overlay.switch.on) == (VARIABLE, "0", "1")
    assert overlay.numerics == "reordered"
    assert overlay.proof is not None


def test_every_changed_path_is_guarded_and_every_guard_is_changed(overlay: Overlay) -> None:
    changed: set[str] = set()
    for change in overlay.changes:
        if isinstance(change, FileChange):
            changed.add(change.to)
        elif isinstance(change, PatchChange):
            changed |= set(parse_patch((overlay.folder / change.patch).read_bytes()).paths)
    assert changed == set(overlay.guards)


def test_new_module_is_the_guarded_postimage(overlay: Overlay) -> None:
    for change in overlay.changes:
        if isinstance(change, FileChange):
            data = (overlay.folder / change.file).read_bytes()
            guard = guard_of(overlay, change.to)
            assert guard.preimage == (None,)
            assert str(guard.postimage) == "sha256:" + hashlib.sha256(data).hexdigest()
            assert guard.postimage_git == blob_id(data)


def test_patch_index_lines_and_headers_agree_with_the_overlay(overlay: Overlay) -> None:
    seen = 0
    for change in overlay.changes:
        if isinstance(change, PatchChange):
            text = (overlay.folder / change.patch).read_bytes().decode()
            fields = dict(line.split(": ", 1) for line in text.split("\n---\n", 1)[0].splitlines())
            assert fields["Forwarded"] == overlay.forwarded
            check_header(overlay, change.patch, fields)
            (path,) = parse_patch(text.encode()).paths
            (index,) = (line for line in text.splitlines() if line.startswith("index "))
            before, after = index.split()[1].split("..")
            guard = guard_of(overlay, path)
            assert guard.preimage_git is not None
            assert guard.postimage_git is not None
            assert guard.preimage_git.startswith(before)
            assert guard.postimage_git.startswith(after)
            seen += 1
    assert seen == 2


@pytest.mark.parametrize("path", ["vllm/envs.py", "vllm/models/kimi_k3/nvidia/model.py"])
def test_patches_turn_the_real_file_into_the_guarded_one(
    overlay: Overlay, wheel_file: Callable[[str], bytes], path: str
) -> None:
    preimage, guard = wheel_file(path), guard_of(overlay, path)
    assert [str(digest) for digest in guard.preimage] == ["sha256:" + hashlib.sha256(preimage).hexdigest()]
    assert guard.preimage_git == blob_id(preimage)
    postimage = patched(overlay, path, preimage)
    assert str(guard.postimage) == "sha256:" + hashlib.sha256(postimage).hexdigest()
    assert guard.postimage_git == blob_id(postimage)
    compile(postimage, path, "exec")


def test_new_module_is_absent_from_the_wheel_and_compiles(
    overlay: Overlay, wheel_file: Callable[[str], bytes], overlay_folder: Path
) -> None:
    with pytest.raises(KeyError):
        wheel_file("vllm/models/kimi_k3/nvidia/tep_shared_tp.py")
    module = overlay_folder / "files" / "tep_shared_tp.py"
    compile(module.read_bytes(), str(module), "exec")


def registered(source: bytes, environment: dict[str, str]) -> Any:
    """What the patched envs.py reads for the variable; only its own entry is run, for vLLM's needs are many."""

    class FakeOs:
        @staticmethod
        def getenv(name: str, default: str) -> str:
            return environment.get(name, default)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == VARIABLE:
                    entry = eval(compile(ast.Expression(value), "envs.py", "eval"), {"os": FakeOs})
                    return entry()
    raise LookupError(VARIABLE)


def test_patched_envs_registers_the_variable_off(overlay: Overlay, wheel_file: Callable[[str], bytes]) -> None:
    before = wheel_file("vllm/envs.py")
    with pytest.raises(LookupError):
        registered(before, {})
    after = patched(overlay, "vllm/envs.py", before)
    assert registered(after, {}) is False
    assert registered(after, {VARIABLE: "0"}) is False
    assert registered(after, {VARIABLE: "1"}) is True
    declared = [
        node
        for node in ast.walk(ast.parse(after))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == VARIABLE
    ]
    assert [ast.unparse(node) for node in declared] == [f"{VARIABLE}: bool = False"]
