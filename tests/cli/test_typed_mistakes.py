"""What people mistype: each answer says what was meant, and nothing is half-done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("typed", ["tuned/", "manifests/tuned", "manifests/tuned/", "manifests/tuned/target.yaml"])
def test_a_path_where_a_name_belongs(in_workspace: Any, verb: Any, typed: str) -> None:
    in_workspace()
    ran = verb("lock", typed)
    assert ran.code == 2
    assert "give the name, not a path: tuned\n" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("overlay", "import", "x", "--target", "tuned", "--from-diff", "nosuch"),
        ("overlay", "import", "x", "--target", "tuned", "--from-script", "nosuch"),
        ("overlay", "import", "x", "--target", "tuned", "--from-diff", "manifests"),
        ("waiver", "check", "--diff", "x", "--changelog", "nosuch"),
        ("attest", "oci:build/base", "--type", "https://example.com/x", "--predicate", "nosuch", "--key", "k"),
        ("smoke", "--show", "nosuch"),
        ("smoke", "tuned", "--show"),
    ],
)
def test_a_named_file_that_is_not_there_is_exit_2(in_workspace: Any, verb: Any, words: tuple[str, ...]) -> None:
    space = in_workspace()
    before = space.snapshot()
    ran = verb(*words)
    assert ran.code == 2, ran.err
    assert "[cli.no-file]" in ran.err
    assert space.snapshot() == before


def test_a_passphrase_file_that_is_not_there(in_workspace: Any, verb: Any) -> None:
    in_workspace()
    ran = verb("keygen", "k", "--passphrase-file", "nosuch")
    assert ran.code == 2
    assert "there is no passphrase file nosuch" in ran.err
    assert not Path("k.key").exists()


@pytest.mark.parametrize(
    ("more", "code"), [(("--root", "no-such"), "target.bad-root"), (("--name", "A B"), "overlay.bad-name")]
)
def test_init_writes_no_target_that_lock_refuses(
    in_workspace: Any, verb: Any, more: tuple[str, ...], code: str
) -> None:
    space = in_workspace()
    before = space.snapshot()
    ran = verb("init", "--base", space.base_reference, *(() if "--name" in more else ("--name", "other")), *more)
    assert ran.code == 2
    assert f"[{code}]" in ran.err
    assert space.snapshot() == before


def test_the_demo_elsewhere_names_what_works_there(tmp_path: Path, verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = verb("demo")
    assert (ran.code, "[demo.not-here]" in ran.err) == (2, True)
    assert "imagebuild demo --small DIR" in ran.err


def test_init_into_a_file(tmp_path: Path, verb: Any) -> None:
    file = tmp_path / "file"
    file.touch()
    ran = verb("init", str(file))
    assert ran.code == 2
    assert "is a file" in ran.err


def test_a_layout_named_without_its_transport(in_workspace: Any, verb: Any) -> None:
    """The name is Docker Hub's; that a layout of that name lies here is said before anybody is asked."""
    in_workspace()
    ran = verb("sign", "build/base", "--key", "nosuch.key")
    assert (ran.code, "[attest.no-key]" in ran.err) == (2, True)
    assert "the layout in that folder is oci:build/base" in ran.err
    assert "Docker Hub" not in verb("sign", "oci:build/base", "--key", "nosuch.key").err
