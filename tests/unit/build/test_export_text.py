"""What an export is: the same bytes each time, readable, alone; and what it refuses to become."""

from __future__ import annotations

import ast
import base64
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from imagebuild.build.export import whiteout_step
from imagebuild.build.export_text import dockerfile_text, literal
from imagebuild.errors import RefusedError
from imagebuild.overlay.patch_make import make_diff
from imagebuild.target.lock_types import LayerItem, PathFact
from imagebuild.testing.small_engine import SCHEDULER


@pytest.fixture
def script(in_workspace: Any, verb: Any) -> str:
    in_workspace()
    assert verb("lock", "tuned").code == 0
    answer = verb("export", "tuned", "--as", "script", "--output", "-")
    assert answer.code == 0, answer.err
    return str(answer.out)


def test_it_stands_alone(script: str) -> None:
    tree = ast.parse(script, feature_version=(3, 8))
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules.add(str(node.module).split(".")[0])
    assert modules <= sys.stdlib_module_names
    assert "imagebuild" not in modules


def test_the_same_lock_gives_the_same_bytes(script: str, verb: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.py"
    assert verb("export", "tuned", "--as", "script", "--output", str(out)).code == 0
    assert out.read_text().rstrip("\n") == script.rstrip("\n")
    assert out.stat().st_mode & 0o777 == 0o755


def test_a_reviewer_reads_the_patch(script: str) -> None:
    diff = make_diff("x", SCHEDULER, SCHEDULER.replace(b"state + 17", b"state + 18"))
    for line in diff.splitlines(keepends=True)[3:]:
        assert f"        {line!r}\n" in script
    assert "content id: sha256:" in script
    assert "overlay: tune: tune the engine" in script


@pytest.mark.parametrize(
    "data", [b"", b"a\nb", b"a\r\nb'\"\\\n", "naïve\n".encode(), b"\0\xff" * 500, b"\"\"\"\n'''\n"]
)
def test_a_literal_is_its_bytes(data: bytes) -> None:
    assert eval(literal(data), {"base64": base64, "zlib": zlib}) == data


def test_a_stale_lock_gives_no_script(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    assert verb("lock", "tuned").code == 0
    space.write_overlay(changes='  - edit: {path: engine/scheduler.py, find: "state + 17", replace: "state + 19"}\n')
    answer = verb("export", "tuned", "--as", "script", "--json")
    assert (answer.code, answer.document["code"]) == (1, "lock.stale")


def test_a_whole_folder_is_not_deleted_unseen() -> None:
    item = LayerItem("/site/engine/data", "whiteout", "change:engine/data")
    with pytest.raises(RefusedError, match="/site/engine/data is deleted with everything in it") as caught:
        whiteout_step(item, None)
    assert caught.value.code == "export.unguarded"
    link = PathFact(item.path, "present", kind="symlink", link="other")
    assert whiteout_step(item, link) == {"path": item.path, "kind": "whiteout", "before_link": "other"}


def test_what_does_not_fit_into_one_file_is_refused(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    space.write_overlay(
        changes="  - file: files/big\n    to: engine/big\n", files={"files/big": bytes(range(256)) * 20_000}
    )
    assert verb("lock", "tuned").code == 0
    answer = verb("export", "tuned", "--as", "script", "--json")
    assert (answer.code, answer.document["code"]) == (1, "export.too-large")


def test_several_platforms_share_one_script_and_one_can_be_chosen(in_workspace: Any, verb: Any) -> None:
    in_workspace(platforms=("linux/amd64", "linux/arm64"))
    assert verb("lock", "tuned").code == 0
    both = verb("export", "tuned", "--as", "script", "--json").document
    one = verb("export", "tuned", "--as", "script", "--json", "--platform", "arm64").document
    assert (both["platforms"], one["platforms"]) == (["linux/amd64", "linux/arm64"], ["linux/arm64"])
    assert one["size"] < both["size"]
    assert both["content_id"] == one["content_id"]
    wrong = verb("export", "tuned", "--as", "script", "--json", "--platform", "linux/s390x")
    assert wrong.code == 2


def unpacked(dockerfile: str) -> bytes:
    """The script that a Dockerfile carries, as its RUN would unpack it."""
    found = re.search(r"^RUN (\[.*?\])$", dockerfile, re.DOTALL | re.MULTILINE)
    assert found is not None
    words = json.loads(found[1].replace("\\\n", ""))
    assert words[:2] == ["python3", "-c"]
    return zlib.decompress(base64.b64decode("".join(words[3:])))


def test_a_dockerfile_carries_the_script_and_needs_no_context(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    space.write_overlay(changes='  - patch: patches/0001-envs.patch\n  - env: {A: "x$y\\"z"}\n')
    assert verb("lock", "tuned").code == 0
    script = verb("export", "tuned", "--as", "script", "--output", "-").out
    text = verb("export", "tuned", "--as", "dockerfile", "--output", "-").out
    lines = text.splitlines()
    assert [line.split()[0] for line in lines if line and not line.startswith(("#", " "))] == [
        "ARG",
        "FROM",
        "RUN",
        "ENV",
    ]
    assert lines[-1] == 'ENV A="x\\$y\\"z"'
    assert unpacked(text).rstrip() == script.encode().rstrip()


def test_a_dockerfile_pins_its_base_keeps_the_user_and_fits_line_limits() -> None:
    import random

    script = bytes(random.Random(1).randbytes(200_000))
    text = dockerfile_text(script, base="docker.io/a/b:c@sha256:0", user="1000:1000", environment=(), summary=("x", ""))
    lines = text.decode().splitlines()
    assert lines[:4] == ["# x", "#", "FROM docker.io/a/b:c@sha256:0", "USER 0"]
    assert lines[-1] == "USER 1000:1000"
    assert max(map(len, lines)) < 65_535
    assert unpacked(text.decode()) == script
