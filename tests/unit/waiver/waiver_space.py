"""Made-up workspaces with a locked target and its waiver, for the tests of waivers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.target.lock import load_lock, store_lock
from imagebuild.target.workspace import Workspace
from imagebuild.testing.small_engine import SmallWorkspace

LINK = "https://github.com/engine-project/engine/pull/12"
WAIVER = """\
schema: 1
number: 77
title: Tune the engine
targets: [tuned]
configs: [engine-fp4-b300-vllm]
why_unmodified_cannot_run: {text: "The scheduler of the unmodified image stops at step 17.", evidence: ["KeyError: 17"]}
upstream: [UPSTREAM]
removal_plan: {condition: "when upstream has merged the change and an image carries it", delete: [the switch in recipe.yaml], expires: 2027-03-01}
notes: {engine/envs.py: registers the switch}
zh: {title: 调整引擎, why: 未修改镜像的调度器在第 17 步停止。, removal_plan: 上游合并且镜像包含该修改之后}
"""
PUBLISH = {"repository": "docker.io/example/engine", "tag": "v1-tuned"}
SWITCH = 'switch: {env: ENGINE_TUNED, default: "0", "on": "1"}\n'


def write_waiver(space: SmallWorkspace, link: str | None = LINK, text: str = WAIVER) -> Path:
    folder = Workspace.find(space.root).waivers
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "77.yaml"
    path.write_text(text.replace("UPSTREAM", f"{{url: {link}, state: open}}" if link else ""), encoding="utf-8")
    return path


def write_result(space: SmallWorkspace, digest: str, result: str, name: str, target: str = "tuned") -> Path:
    """An in-toto test result beside the target."""
    statement: dict[str, Any] = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "image", "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {"result": result, "configuration": [], "failedTests": ["serve"] if result == "FAILED" else []},
    }
    folder = space.folder(target) / "evidence"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(statement))
    return path


def change_a_postimage(space: SmallWorkspace) -> tuple[str, str]:
    """One digest of the lock becomes another, as if the overlay had been changed and locked again."""
    path = space.lock_path()
    lock = load_lock(path)
    assert lock is not None
    (platform, *others) = lock.inputs.platforms
    index = next(n for n, item in enumerate(platform.changes) if item.origin == "change:engine/envs.py")
    before = platform.changes[index].postimage
    after = Digest.of(b"another")
    changes = list(platform.changes)
    changes[index] = replace(changes[index], postimage=after)
    inputs = replace(lock.inputs, platforms=(replace(platform, changes=tuple(changes)), *others))
    store_lock(path, replace(lock, inputs=inputs, result=replace(lock.result, content_id=inputs.content_id)))
    return str(before), str(after)
