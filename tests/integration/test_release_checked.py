"""A release that runs its own smoke test in real containers: files, Python, switch, a served engine, parity, the overlay's own
checks; then everything that a release is, against a real registry."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_registry import RealRegistry
from tools import missing, program, root

from imagebuild.attest.keys import KeySigner, store_key_pair
from imagebuild.errors import ImagebuildError
from imagebuild.testing.real_root import debian_root
from imagebuild.testing.smoke_engine import smoke_base, smoke_workspace

pytestmark = [pytest.mark.integration, pytest.mark.slow(25)]

STEPS = ["files", "python", "switch", "engine", "parity", "overlay"]


def test_a_release_runs_its_smoke_test_in_containers(
    registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any]
) -> None:
    root()
    program("runc")
    monkeypatch.setattr("imagebuild.build.reproduce.find_pythons", lambda: {sys.version.split()[0]: sys.executable})
    try:
        base = smoke_base(tmp_path / "base", debian_root())
    except ImagebuildError as error:
        missing(str(error))
    publish = {"repository": f"{registry.host}/team/engine", "tag": "v1-tuned"}
    space = smoke_workspace(tmp_path / "space", base.reference, publish=publish)
    monkeypatch.chdir(space.root)
    monkeypatch.setenv("IMAGEBUILD_CACHE", str(space.cache))
    store_key_pair(KeySigner.make(), space.root / "k", None)
    (space.root / "policy.yaml").write_text(
        "schema: 1\nkeys: {k: {file: k.pub, role: builder}}\n"
        "require: [{predicate: image}, {predicate: smoke, verdicts: [passed]}, {predicate: release}]\n"
    )
    assert verb("lock", "tuned", "--complete").code == 0
    words = ("release", "tuned", "--push", "--key", "k.key", "--runner", "oci", "--allow-base-transfer", "--json")
    ran = verb(*words)
    assert ran.code == 0, ran.err
    evidence = json.loads((space.folder() / "evidence" / "smoke-x86_64.evidence.json").read_bytes())
    assert [(step["name"], step["verdict"]) for step in evidence["steps"]] == [(step, "passed") for step in STEPS]
    again = verb(*words)
    assert (again.code, again.document["changed"]) == (0, False), again.err
    image = f"{registry.host}/team/engine:v1-tuned"
    assert registry.incomplete() == []
    assert verb("verify", image, "--target", "tuned", "--policy", "policy.yaml").code == 0
