"""`plan --offline` asks nobody, and what stands outside the image is shown as such."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.target.workspace import Workspace

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = (
    "docker.io/vllm/vllm-openai:kimi-k31-mc@sha256:f81998764e8594d71b40788c5285ae112acf9230129d5d0d238b5df83da5acf6"
)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_words: Any, **_named: Any) -> None:
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr("socket.socket.connect", refused)
    monkeypatch.setattr("socket.getaddrinfo", refused)


def test_a_published_base_is_explained_from_the_target_alone(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    space.write_target(base="registry.example/team/engine:1.0@sha256:" + "0" * 64)
    plan = verb("plan", "tuned", "--offline", "--json").document
    assert (plan["offline"], plan["locked"]) == (True, False)
    assert plan["base"]["location"] == "registry.example/team/engine"
    first, *_, last = plan["fetches"]
    assert first["name"] == "sha256:" + "0" * 64
    assert last["settles"][0] == "root engine"
    assert {"engine/envs.py", "engine/extra.py", "engine/legacy.py", "engine/scheduler.py"} <= set(last["settles"])
    assert "imagebuild lock tuned" in verb("plan", "tuned", "--offline").out


def test_documents_that_were_kept_give_sizes(in_workspace: Any, verb: Any) -> None:
    space = in_workspace(platforms=("linux/amd64", "linux/arm64"))
    here = verb("plan", "tuned", "--json").document
    assert verb("lock", "tuned").code == 0
    shutil.rmtree(space.root / "build" / "base")
    space.lock_path().unlink()
    plan = verb("plan", "tuned", "--offline", "--json").document
    assert plan["lock"] == here["lock"]
    assert len(plan["platforms"]) == 2


def test_a_layout_that_is_here_is_read_and_one_that_is_not_is_explained(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    assert verb("plan", "tuned", "--offline", "--json").document["platforms"][0]["base_layers"] == 4
    shutil.rmtree(space.root / "build" / "base")
    plan = verb("plan", "tuned", "--offline", "--json").document
    assert plan["fetches"][0]["name"] == str(space.base.digest)


def test_what_stands_outside_the_image_is_told(in_workspace: Any, verb: Any) -> None:
    space = in_workspace()
    space.write_target(
        requires={"env": {"ENGINE_PORT": "8000"}, "host": {"mec_firmware": ">=38"}},
        serve={"engine": "vllm", "env": {"THP_MEM_ALLOC_ENABLE": "1"}},
        publish={"repository": "docker.io/a/b", "tag": "{base.tag}-x", "arch_tag": "{content.short}-{arch}"},
    )
    unlocked = verb("plan", "tuned", "--json").document
    assert unlocked["recipe"] == {"THP_MEM_ALLOC_ENABLE": "1"}
    assert unlocked["asserted"] == {"ENGINE_PORT": "8000"}
    assert unlocked["host"] == {"mec_firmware": ">=38"}
    assert unlocked["tags"] == {"index": "v1-x"}
    assert verb("lock", "tuned").code == 0
    short = space.lock()["result"]["content_id"].removeprefix("sha256:")[:7]
    assert verb("plan", "tuned", "--json").document["tags"]["linux/amd64"] == f"{short}-x86_64"
    text = verb("plan", "tuned").out
    assert "recipe, not image: THP_MEM_ALLOC_ENABLE=1" in text
    assert "asserted of the host: mec_firmware >=38" in text


def test_the_published_b300_image_gets_the_tag_that_it_is_known_by(verb: Any) -> None:
    target = Workspace.find(ROOT, ROOT).target("b300-vllm-public")
    assert str(target.base) == PUBLIC
    assert target.index_tag(Digest("0" * 64)) == "kimi-k31-mc-f819987-tep-shared-tp"
    answer = verb("plan", "b300-vllm-public", "--offline", "--json", "-C", ROOT)
    assert answer.document["tags"]["linux/amd64"] == "kimi-k31-mc-f819987-tep-shared-tp-x86_64"
    assert "vllm/models/kimi_k3/nvidia/model.py" in answer.document["fetches"][-1]["settles"]
