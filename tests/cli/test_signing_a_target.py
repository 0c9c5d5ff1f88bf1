"""From a built target to evidence: statements made from the lock, a release file, a policy that holds them all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from imagebuild.attest.predicates.release import ReleaseFacts, release_statement
from imagebuild.attest.release_file import store_release
from imagebuild.attest.signers import open_signer
from imagebuild.target.lock import load_lock
from imagebuild.testing.small_engine import SmallWorkspace

POLICY = """schema: 1
keys: {builder: {file: k.pub, role: builder}}
require: [{predicate: image}, {predicate: provenance}, {predicate: sbom}, {predicate: release}]
bases: ['oci:build/base*']
builders: ['https://example.com/ci/*']
minimum_release: {tuned: 2}
not_proven: allow
"""


def failed(document: dict[str, Any]) -> set[str]:
    return {check["code"] for check in document["checks"] if check["passed"] is False}


@pytest.fixture
def built(in_workspace: Callable[..., SmallWorkspace], verb: Any) -> SmallWorkspace:
    space = in_workspace()
    for words in (("lock", "tuned"), ("build", "tuned"), ("keygen", str(space.root / "k"), "--unencrypted")):
        ran = verb(*words)
        assert ran.code == 0, ran.err
    return space


def test_a_policy_is_met_step_by_step(built: SmallWorkspace, verb: Any) -> None:
    image, key = f"oci:{built.root}/build/tuned", ("--key", str(built.root / "k.key"))
    policy = built.root / "policy.yaml"
    policy.write_text(POLICY)

    def judge(*more: str) -> Any:
        return verb("verify", image, "--target", "tuned", "--policy", str(policy), "--json", *more)

    everything = {
        "verify.signature", "verify.evidence", "verify.allowed-base", "verify.builder", "verify.minimum-release",
    }  # fmt: skip
    ran = judge()
    assert (ran.code, failed(ran.document)) == (1, everything)
    assert verb("sign", image, *key).code == 0
    assert failed(judge().document) == everything - {"verify.signature"}
    made = verb(
        "attest",
        image,
        "--type",
        "provenance",
        "--target",
        "tuned",
        "--builder-id",
        "https://example.com/ci/1",
        *key,
        "--json",
    )
    assert made.code == 0, made.err
    assert failed(judge().document) == {"verify.evidence", "verify.minimum-release"}
    assert verb("attest", image, "--type", "sbom", "--target", "tuned", *key).code == 0
    again = verb("attest", image, "--type", "sbom", "--target", "tuned", *key, "--json").document
    assert [item["added"] for item in again["attached"]] == [False] * len(again["attached"])

    lock = load_lock(built.lock_path())
    file = built.root / "release.dsse.json"
    signer = open_signer(key[1], lambda: b"")
    for counter, left in ((1, {"verify.minimum-release"}), (2, set())):
        store_release(file, release_statement(lock, (), ReleaseFacts(counter, 1_790_000_000)), signer)
        ran = judge("--release", str(file))
        assert failed(ran.document) == left
    assert ran.code == 0, ran.document
    assert "verify.content-id" in {check["code"] for check in ran.document["checks"]}
    value = json.loads(file.read_bytes())
    value["signatures"][0]["sig"] = "AAAA"
    file.write_text(json.dumps(value))
    ran = judge("--release", str(file))
    assert (ran.code, failed(ran.document)) == (1, {"verify.release", "verify.evidence", "verify.minimum-release"})


def test_no_image_gets_the_provenance_of_another(built: SmallWorkspace, verb: Any) -> None:
    key = ("--key", str(built.root / "k.key"))
    ran = verb("attest", f"oci:{built.root}/build/base:v1", "--type", "provenance", "--target", "tuned", *key, "--json")
    assert (ran.code, ran.document["code"]) == (1, "attest.not-of-lock")


def test_what_cannot_be_made_from_a_lock(built: SmallWorkspace, verb: Any) -> None:
    image, key = f"oci:{built.root}/build/tuned", ("--key", str(built.root / "k.key"))
    for words in (("--type", "sbom"), ("--type", "smoke", "--target", "tuned")):
        assert verb("attest", image, *words, *key).code == 2
    ran = verb("attest", image, "--type", "vex", "--target", "tuned", *key, "--json")
    assert (ran.code, ran.document["code"]) == (2, "attest.bad-predicate")
    assert verb("verify", image, "--release", "x").code == 2


def test_a_release_file_is_verified_by_itself(built: SmallWorkspace, verb: Any) -> None:
    """Without image, registry or network: the file, the key, and where it is asked for the lock and a policy."""
    lock, file = load_lock(built.lock_path()), built.root / "release.dsse.json"
    signer = open_signer(str(built.root / "k.key"), lambda: b"")
    store_release(file, release_statement(lock, (), ReleaseFacts(3, 1_790_000_000)), signer)
    alone = ("verify", "--release", str(file), "--key", str(built.root / "k.pub"))
    (built.root / "build").rename(built.root / "away")
    ran = verb(*alone, "--json")
    assert (ran.code, ran.document["digest"]) == (0, str(lock.result.digest))
    assert verb(*alone, "--target", "tuned").code == 0
    policy = built.root / "alone.yaml"
    text = "schema: 1\nkeys: {k: {file: k.pub, role: builder}}\nminimum_release: {tuned: %d}\nnot_proven: allow\n"
    for least, more, code in ((3, "", 0), (4, "", 1), (3, "require: [{predicate: sbom}]\n", 3)):
        policy.write_text(text % least + more)
        ran = verb("verify", "--release", str(file), "--policy", str(policy), "--json")
        assert ran.code == code, ran.document
    policy.write_text(text % 3 + f'revoked: {{"{lock.result.digest}": "CVE-2026-1"}}\n')
    assert verb("verify", "--release", str(file), "--policy", str(policy)).code == 1

    (built.root / "away").rename(built.root / "build")
    built.write_target(env={"ENGINE_PORT": "9001"})
    assert verb("lock", "tuned").code == 0
    assert verb(*alone, "--target", "tuned").code == 1, "the release is of another lock"
    value = json.loads(file.read_bytes())
    value["payload"] = value["payload"][:-8] + "AAAAAAA="
    file.write_text(json.dumps(value))
    ran = verb(*alone, "--json")
    assert (ran.code, ran.document["code"]) == (1, "attest.bad-signature")
    for words in (("verify",), ("verify", "--release", str(file)), ("verify", "--key", str(built.root / "k.pub"))):
        assert verb(*words).code == 2
