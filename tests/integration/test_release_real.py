"""A release against a real registry: once, again, killed between any two steps; cosign and our own verify agree."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killing import RELEASE_STEPS, killed_at
from real_registry import RealRegistry
from sid_programs import SidPrograms

from imagebuild.attest.dsse import Envelope
from imagebuild.attest.keys import KeySigner, store_key_pair
from imagebuild.attest.predicates.check_result import check_result
from imagebuild.attest.predicates.types import PROVENANCE, RELEASE, TEST_RESULT
from imagebuild.attest.statement import Statement
from imagebuild.content.digest import Digest
from imagebuild.testing.small_engine import SmallWorkspace, engine_base

pytestmark = [pytest.mark.integration, pytest.mark.slow(30), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

BASE = engine_base(("linux/amd64", "linux/arm64"))
FILE = "manifests/tuned/release.dsse.json"
POLICY = """schema: 1
keys: {builder: {file: builder.pub, role: builder}}
require:
  - {predicate: image}
  - {predicate: provenance}
  - {predicate: sbom}
  - {predicate: smoke, verdicts: [passed]}
  - {predicate: release}
minimum_release: {tuned: 1}
"""


def write_smoke(space: SmallWorkspace) -> None:
    """What a smoke run without accelerator leaves, for each platform, always at the same time."""
    lock = space.lock()
    for name, item in lock["result"]["platforms"].items():
        image, platform = Digest.parse(item["manifest"]), name.rpartition("/")[2]
        folder = space.root / "build" / "smoke" / "tuned" / platform
        folder.mkdir(parents=True, exist_ok=True)
        raw = json.dumps({"kind": "smoke-evidence", "platform": name, "image": str(image)}).encode()
        (folder / "evidence.json").write_bytes(raw)
        predicate = check_result(
            "smoke",
            "passed",
            configuration={"lock": Digest.of(space.lock_path().read_bytes())},
            evidence={"evidence.json": Digest.of(raw)},
            finished=1_790_000_000,
            passed=["files"],
        )
        (folder / "statement.json").write_bytes(Statement.about(image, TEST_RESULT, predicate).format())


@pytest.fixture
def space(
    registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any]
) -> SmallWorkspace:
    registry.put_image("lib/engine", "1.0", BASE)
    made = SmallWorkspace(tmp_path / "ws", BASE, f"{registry.host}/lib/engine:1.0@{BASE.digest}")
    made.write_overlay()
    made.write_target(
        publish={
            "repository": f"{registry.host}/team/engine",
            "tag": "{base.tag}-tuned",
            "arch_tag": "{base.tag}-tuned-{arch}",
        },
        checks={"smoke": {"steps": ["files"]}},
    )
    (made.root / "policy.yaml").write_text(POLICY)
    store_key_pair(KeySigner.make(), made.root / "builder", None)
    monkeypatch.chdir(made.root)
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(made.cache))
    assert verb("lock", "tuned", "--complete").code == 0
    write_smoke(made)
    return made


WORDS = ("release", "tuned", "--push", "--key", "builder.key")


def files(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(root.rglob("*")) if p.is_file()}


def said(registry: RealRegistry) -> set[bytes]:
    """Every payload that is attached to anything in the repository."""
    out = set()
    for link in (registry.storage / "repositories" / "team" / "engine" / "_layers").rglob("link"):
        data = registry.blob("team/engine", link.read_text())
        if data is not None and b'"dsseEnvelope"' in data:
            out.add(Envelope.from_json(json.loads(data)["dsseEnvelope"]).payload)
    return out


def published(space: SmallWorkspace, registry: RealRegistry) -> dict[str, Any]:
    """What makes a release: tags and payloads.  Of its own statement the time is taken out, which depends on when it was begun."""
    statement = json.loads(Envelope.parse((space.root / FILE).read_bytes()).payload)
    created = statement["predicate"].pop("created")
    payloads = said(registry)
    assert [json.loads(p)["predicate"]["created"] for p in payloads if RELEASE.encode() in p] == [created]
    return {
        "tags": {k: v for k, v in registry.tags().items() if k.startswith("team/") and ":sha256-" not in k},
        "release": statement,
        "payloads": {p for p in payloads if RELEASE.encode() not in p},
    }


def begun(space: SmallWorkspace) -> list[int]:
    """When the release was begun, as its journal has it; [] before that."""
    path = space.root / "build" / "release" / "tuned" / "steps.json"
    return list(json.loads(path.read_bytes())["created"].values()) if path.is_file() else []


def test_a_release_is_published_once_and_everybody_verifies_it(
    space: SmallWorkspace, registry: RealRegistry, sid: SidPrograms, verb: Any
) -> None:
    shutil.rmtree(space.root / "build" / "smoke")
    first = verb(*WORDS, "--runner", "host", "--json")
    assert first.code == 0, first.err
    smoke = json.loads((space.folder() / "evidence" / "smoke-x86_64.evidence.json").read_bytes())
    assert (smoke["verdict"], first.document["summary"]["checks"]["smoke"]["linux/arm64"]["verdict"]) == (
        "passed",
        "passed",
    )
    name, digest = f"{registry.host}/team/engine", str(space.digest())
    assert registry.incomplete() == []
    assert registry.tags()["team/engine:1.0-tuned"] == digest
    reproduced = next(item for item in first.document["steps"] if item["step"] == "reproduce")
    assert reproduced["result"]["rebuilds"] >= 1

    before, stored = files(space.root), files(registry.storage)
    again = verb(*WORDS, "--json")
    assert (again.code, again.document["changed"]) == (0, False), again.err
    assert files(space.root) == before
    assert files(registry.storage) == stored, "a second run puts nothing into the registry"

    for image in (f"{name}:1.0-tuned", f"oci:{space.root}/build/tuned"):
        ran = verb(
            "verify", image, "--target", "tuned", "--release", FILE, "--key", "builder.pub", "--policy", "policy.yaml"
        )
        assert ran.code == 0, ran.out
    ran = verb("verify", "--release", FILE, "--key", "builder.pub")
    assert ran.code == 0, "the file and the key alone: " + ran.err
    public = shutil.copy(space.root / "builder.pub", sid.folder / "builder.pub")
    offline = ("--insecure-ignore-tlog=true", "--allow-http-registry", "--allow-insecure-registry")
    key = ("--key", sid.inside(Path(public)), *offline)
    platforms = [item["manifest"] for item in space.lock()["result"]["platforms"].values()]
    for one in (digest, *platforms):
        sid.run("cosign", "verify", *key, f"{name}@{one}")
    for kind in (PROVENANCE, TEST_RESULT):
        sid.run("cosign", "verify-attestation", *key, "--type", kind, f"{name}@{platforms[0]}")
    sid.run("cosign", "verify-attestation", *key, "--type", RELEASE, f"{name}@{digest}")


def test_killed_between_any_two_steps_it_ends_with_the_same_release(
    space: SmallWorkspace, registry: RealRegistry, verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run begins anew, dies when a step begins, one step further on each time, and the same command ends it."""
    monkeypatch.setattr("imagebuild.build.reproduce.find_pythons", lambda: {sys.version.split()[0]: sys.executable})
    clock = iter(range(1_790_000_000, 1_800_000_000, 1000))
    monkeypatch.setattr("imagebuild.host.clock.now", lambda: next(clock))
    fresh = tmp_path / "fresh"
    shutil.copytree(space.root, fresh, symlinks=True)
    assert verb(*WORDS).code == 0
    reference = published(space, registry)
    times, step, kept = set(begun(space)), 0, 0
    while True:
        shutil.rmtree(space.root)
        shutil.copytree(fresh, space.root, symlinks=True)
        shutil.rmtree(registry.storage / "repositories" / "team")
        monkeypatch.chdir(space.root)
        ended = killed_at(step, WORDS, (RELEASE_STEPS,))
        assert registry.incomplete() == []
        before = begun(space)
        ran = verb(*WORDS, "--json")
        assert ran.code == 0, ran.err
        assert published(space, registry) == reference
        assert before in ([], begun(space)), "a release that was begun keeps its time"
        assert begun(space)[0] not in times, "the clock went on between two releases"
        times |= set(begun(space))
        kept += bool(before)
        if ended is not None:
            assert (ended, ran.document["changed"]) == (0, False)
            break
        step += 1
    assert (step, kept >= 3) == (12, True)
