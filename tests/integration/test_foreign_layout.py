"""A benchmark repository that keeps its own layout: the map is enough to check, name, release and record a patched image."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_registry import RealRegistry
from tools import program

from imagebuild.attest.dsse import Envelope
from imagebuild.attest.keys import KeySigner, store_key_pair
from imagebuild.content.strict_yaml import parse_yaml, plain_value
from imagebuild.target.workspace import Folders
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

pytestmark = pytest.mark.integration

BASE = engine_base()
KEY = "engine-fp4-b300-vllm-tuned"
MAP = """\
manifests: images/targets
overlays: images/patches
waivers: docs/waiver
recipes: benchmarks/multi_node/recipes
masters: [configs/*-master.yaml]
changelog: perf-changelog.yaml
"""
MASTER = """\
# Each key is one line of the benchmark.
other-fp8-h200-vllm:
  image: vllm/vllm-openai:v0.11.0
  model: other
{key}:
  image: {image}
  model: engine
  runner: b300
  scenarios:
    - search-space:
        - {{ tp: 8, conc-list: [ 32 ], additional-settings: [ "CONFIG_FILE=recipes/engine/tuned.yaml" ] }}
"""
RECIPE = """\
name: tuned
model:
  path: engine
  container: "{image}"
identity:
  container:
    image: "{image}"
backend:
  environment:
    ENGINE_PORT: "8001"
    ENGINE_TUNED: "1"
"""
CHANGELOG = """\
- config-keys:
    - other-fp8-h200-vllm
  description:
    - "Raise the version to 0.11.0"
  pr-link: https://github.com/example/bench/pull/4801

- config-keys:
    - engine-*
  description:
    - "Add the configuration"
    - "Keep the image of the last month"
  pr-link: https://github.com/example/bench/pull/4810
"""
WAIVER = f"""\
schema: 1
number: 4878
title: Run the tuned engine
targets: [tuned]
configs: [{KEY}]
patched: auto
why_unmodified_cannot_run: {{text: "The scheduler of the unmodified image stops at step 17.", evidence: ["KeyError: 17"]}}
upstream: [{{url: https://github.com/engine-project/engine/pull/12, state: open}}]
removal_plan: {{condition: "when an image carries the upstream change", delete: [images/patches/tune], expires: 2099-01-01}}
zh: {{title: 运行调整后的引擎, why: 未修改镜像的调度器在第 17 步停止。, removal_plan: 镜像包含上游修改之后}}
"""


class Foreign(SmallWorkspace):
    """The small workspace with its targets and overlays where the map says."""

    def folder(self, target: str = "tuned") -> Path:
        return self.root / "images" / "targets" / target


def git(root: Path, *words: str) -> bytes:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    return subprocess.run([program("git"), "-C", str(root), *identity, *words], capture_output=True, check=True).stdout


@pytest.fixture
def foreign(
    registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any]
) -> Foreign:
    """The repository at its base commit: masters, recipes, changelog, hand-made pages, and no imagebuild but the map."""
    monkeypatch.setattr("imagebuild.build.reproduce.find_pythons", lambda: {sys.version.split()[0]: sys.executable})
    registry.put_image("lib/engine", "1.0", BASE)
    space = Foreign(tmp_path / "bench", BASE, f"{registry.host}/lib/engine:1.0@{BASE.digest}")
    shutil.rmtree(space.root)
    unpatched = f"{registry.host}/lib/engine:1.0"
    for name, text in {
        ".imagebuild.yaml": MAP,
        "configs/nvidia-master.yaml": MASTER.format(key=KEY, image=unpatched),
        "configs/amd-master.yaml": "amd-fp8-mi355x-sglang:\n  image: lmsysorg/sglang:v0.5\n",
        "benchmarks/multi_node/recipes/engine/tuned.yaml": RECIPE.format(image=unpatched),
        "perf-changelog.yaml": CHANGELOG,
        "docs/waiver/README.md": "# Waivers\n",
        ".gitignore": "/build/\n*.key\n",
    }.items():
        (space.root / name).parent.mkdir(parents=True, exist_ok=True)
        (space.root / name).write_text(text)
    git(space.root, "init", "-q", "-b", "main")
    git(space.root, "add", "-A")
    git(space.root, "commit", "-q", "-m", "base")
    monkeypatch.chdir(space.root)
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(space.cache))
    return space


def test_check_ref_release_and_append_work_by_the_map_alone(
    foreign: Foreign, registry: RealRegistry, verb: Callable[..., Any]
) -> None:
    root = foreign.root
    foreign.write_target(
        publish={"repository": f"{registry.host}/team/engine", "tag": "{base.tag}-{content.short}-tuned"}, waiver=4878
    )
    foreign.write_overlay()
    shutil.move(root / "overlays" / "tune", root / "images" / "patches" / "tune")
    shutil.rmtree(root / "overlays")
    assert Folders().manifests == "manifests", "the usual places are others than the map's"
    assert verb("lock", "tuned", "--complete").code == 0
    (root / "docs/waiver/4878.yaml").write_text(WAIVER, encoding="utf-8")
    base_run = root / "images/targets/tuned/evidence/base-smoke.json"
    base_run.parent.mkdir()
    base_run.write_text(json.dumps({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"digest": {"sha256": BASE.digest.hex}}],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {"result": "FAILED", "check": "smoke", "failedTests": ["engine"]},
    }))  # fmt: skip
    assert verb("waiver", "render", "4878").code == 0
    assert (root / "docs/waiver/4878_zh.md").is_file()

    # the image goes into master and recipe by the reference that `ref` prints
    image = verb("ref", "tuned").out.strip()
    assert image.endswith(str(foreign.digest()))
    for name, text in {
        "configs/nvidia-master.yaml": MASTER.format(key=KEY, image=image),
        "benchmarks/multi_node/recipes/engine/tuned.yaml": RECIPE.format(image=image),
    }.items():
        (root / name).write_text(text)

    # without an entry in the changelog the change of the image is refused; the append leaves what was there
    def judged() -> Any:
        git(root, "add", "-A")
        (root.parent / "pr.diff").write_bytes(git(root, "diff", "--cached", "main"))
        return verb(
            "waiver", "check", "4878", "--repo", ".", "--diff", str(root.parent / "pr.diff"), "--changelog", "perf-changelog.yaml", "--json"
        )  # fmt: skip

    refused = judged()
    assert refused.code == 1
    blocking = {f["code"] for f in refused.document["waivers"][0]["findings"] if f["severity"] == "blocking"}
    assert "changelog.no-entry" in blocking
    assert verb("waiver", "changelog", "4878", "--description", "Run the tuned image").code == 0
    after = (root / "perf-changelog.yaml").read_bytes()
    assert after.startswith(CHANGELOG.encode())
    assert git(root, "diff", "--numstat", "main", "--", "perf-changelog.yaml").split()[1] == b"0"
    entries = plain_value(parse_yaml(after, "the changelog"))
    assert entries[-1]["pr-link"] == "https://github.com/example/bench/pull/4878"
    passed = judged()
    assert passed.code == 0, passed.out
    assert {f["code"] for f in passed.document["waivers"][0]["not_cured"]} == {"image.namespace"}

    # a release that asks for the waiver, by the map's folders
    store_key_pair(KeySigner.make(), root / "ours", None)
    (root / "policy.yaml").write_text(
        "schema: 1\nkeys: {ours: {file: ours.pub, role: builder}}\n"
        "require: [{predicate: image}, {predicate: provenance}, {predicate: release}]\nwaiver: {required: true}\n"
    )
    ran = verb("release", "tuned", "--push", "--key", "ours.key", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["reference"] == image
    statement = json.loads(Envelope.parse((root / "images/targets/tuned/release.dsse.json").read_bytes()).payload)
    assert statement["predicate"]["waiver"] == {"number": 4878, "expires": "2099-01-01"}
    assert verb("verify", image, "--policy", "policy.yaml", "--target", "tuned").code == 0
    assert verb("release", "tuned", "--push", "--key", "ours.key", "--json").document["changed"] is False
    untouched = git(root, "diff", "--name-only", "main", "--", "configs/amd-master.yaml", "docs/waiver/README.md")
    assert untouched == b""
    assert not (root / "manifests").exists()
    assert not (root / "waivers").exists()
