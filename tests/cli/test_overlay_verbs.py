"""overlay import, edit, refresh and show, end to end on a base.

Reports retold here: the history of InferenceX (a regenerated diff that also touches `tests/` and `examples/`, which no
wheel has), gentoo/portage#481 (fuzz 0), NixOS/nixpkgs#257446.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

from imagebuild.content.digest import Digest, git_blob_id
from imagebuild.overlay.document import load_overlay
from imagebuild.overlay.patch_make import make_diff
from imagebuild.testing.small_engine import ENVS, ENVS_AFTER, EXTRA, SCHEDULER, SmallWorkspace

NEW = make_diff("engine/extra.py", None, EXTRA)
CHANGED = make_diff("engine/envs.py", ENVS, ENVS_AFTER)


def write(space: SmallWorkspace, data: bytes, name: str = "change.diff") -> str:
    (space.root / name).write_bytes(data)
    return name


def test_a_diff_becomes_a_guarded_overlay_that_builds(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    diff = write(space, CHANGED + NEW)
    ran = verb("overlay", "import", "mine", "--target", "tuned", "--from-diff", diff, "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    assert (document["kind"], document["overlay"]) == ("overlay-imported", "mine")
    assert document["folder"] == str(space.root / "overlays" / "mine")
    assert len(document["files"]) == 2
    assert "next: add mine to `overlays`" in ran.err
    guards = load_overlay(space.root / "overlays" / "mine").guards
    assert guards["engine/envs.py"].preimage == (Digest.of(ENVS),)
    assert guards["engine/envs.py"].postimage == Digest.of(ENVS_AFTER)
    assert guards["engine/extra.py"].preimage == (None,)
    space.write_target(overlays=["mine"])
    locked = verb("lock", "tuned", "--json")
    assert (locked.code, locked.document["guards_written"]) == (0, [])
    assert verb("build", "tuned").code == 0


def test_a_diff_on_standard_input(in_workspace: Any, verb: Any, monkeypatch: Any) -> None:
    space = in_workspace()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CHANGED)))
    assert verb("overlay", "import", "mine", "--target", "tuned", "--from-diff", "-").code == 0
    assert (space.root / "overlays" / "mine" / "overlay.yaml").is_file()


def test_what_no_wheel_has_is_told_by_path_and_left_out_on_request(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    strange = make_diff("tests/test_envs.py", b"a\n", b"b\n") + make_diff("examples/run.py", None, b"x\n")
    diff = write(space, CHANGED + strange)
    before = space.snapshot()
    refused = verb("overlay", "import", "mine", "--target", "tuned", "--from-diff", diff, "--json")
    assert refused.code in (1, 2)
    assert "tests/test_envs.py" in refused.err
    assert "examples/run.py" in refused.err
    assert "--exclude" in refused.err
    assert space.snapshot() == before
    words = ("overlay", "import", "mine", "--target", "tuned", "--from-diff", diff)
    done = verb(*words, "--exclude", "tests/**", "--exclude", "examples/**", "--json")
    assert done.code == 0, done.err
    assert [item["path"] for item in done.document["files"] if item["path"] is not None] == ["engine/envs.py"]
    assert set(load_overlay(space.root / "overlays" / "mine").guards) == {"engine/envs.py"}


def test_git_index_lines_must_be_those_of_the_bases_files(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    right = f"index {git_blob_id(ENVS)[:10]}..{git_blob_id(ENVS_AFTER)[:10]} 100644\n--- a/"
    good = write(space, CHANGED.replace(b"--- a/", right.encode(), 1), "good.diff")
    wrong = write(space, CHANGED.replace(b"--- a/", b"index 1234567890..0987654321 100644\n--- a/", 1), "wrong.diff")
    refused = verb("overlay", "import", "mine", "--target", "tuned", "--from-diff", wrong, "--json")
    assert (refused.code, refused.document["code"]) == (1, "overlay.index-mismatch")
    assert verb("overlay", "import", "mine", "--target", "tuned", "--from-diff", good).code == 0


def test_hunks_that_stand_elsewhere_are_written_at_their_true_lines(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    shifted = CHANGED.replace(b"@@ -10,6 +10,7 @@", b"@@ -14,6 +14,7 @@")
    assert shifted != CHANGED
    diff = write(space, shifted)
    ran = verb("overlay", "import", "mine", "--target", "tuned", "--from-diff", diff, "--json")
    assert ran.code == 0, ran.err
    (patch,) = (space.root / "overlays" / "mine").rglob("*.patch")
    assert b"@@ -10,6 +10,7 @@" in patch.read_bytes()


def test_a_tree_of_files(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    (space.root / "tree" / "engine").mkdir(parents=True)
    (space.root / "tree" / "engine" / "envs.py").write_bytes(ENVS_AFTER)
    (space.root / "tree" / "engine" / "scheduler.py").write_bytes(SCHEDULER)
    (space.root / "tree" / "engine" / "extra.py").write_bytes(EXTRA)
    ran = verb("overlay", "import", "mine", "--target", "tuned", "--from-tree", "tree", "--json")
    assert ran.code == 0, ran.err
    assert {item["path"] for item in ran.document["files"]} >= {"engine/envs.py", "engine/extra.py"}
    guards = load_overlay(space.root / "overlays" / "mine").guards
    assert set(guards) == {"engine/envs.py", "engine/extra.py"}


def test_an_overlay_that_is_there_is_not_overwritten(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    diff = write(space, CHANGED)
    before = space.snapshot()
    refused = verb("overlay", "import", "tune", "--target", "tuned", "--from-diff", diff, "--json")
    assert (refused.code, refused.document["code"]) == (2, "overlay.exists")
    assert space.snapshot() == before
    assert verb("overlay", "import", "tune", "--target", "tuned", "--from-diff", diff, "--force").code == 0


def test_the_loop_of_edit_and_refresh(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    assert verb("lock", "tuned").code == 0
    old = space.digest()
    ran = verb("overlay", "edit", "tune", "engine/envs.py", "--json")
    assert ran.code == 0, ran.err
    (path,) = ran.document["paths"]
    with open(path, "rb") as stream:
        assert stream.read() == ENVS_AFTER
    with open(path, "wb") as out:
        out.write(ENVS_AFTER.replace(b'"ENGINE_TUNED", 0', b'"ENGINE_TUNED", 1'))
    refreshed = verb("overlay", "refresh", "tune", "--json")
    assert refreshed.code == 0, refreshed.err
    assert refreshed.document["paths"]
    assert verb("lock", "tuned", "--check").code == 1
    assert verb("lock", "tuned").code == 0
    assert space.digest() != old
    assert verb("build", "tuned").code == 0
    guards = load_overlay(space.root / "overlays" / "tune").guards
    assert guards["engine/envs.py"].preimage == (Digest.of(ENVS),)


def test_refreshing_without_a_change_writes_nothing(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    assert verb("lock", "tuned").code == 0
    before = space.snapshot()
    assert verb("overlay", "edit", "tune", "engine/envs.py").code == 0
    ran = verb("overlay", "refresh", "tune", "--json")
    assert (ran.code, ran.document["paths"]) == (0, [])
    assert space.snapshot() == before


def test_show_tells_changes_guards_and_provenance(in_workspace: Any, verb: Any) -> None:
    in_workspace()
    assert verb("lock", "tuned").code == 0
    document = verb("overlay", "show", "tune", "--json").document
    text = json.dumps(document)
    assert str(Digest.of(ENVS)) in text
    assert "tests" in text
    assert "engine/legacy.py" in verb("overlay", "show", "tune").out
