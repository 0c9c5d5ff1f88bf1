"""keygen, sign, attest and the signatures of verify, as they are called."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from imagebuild.cli.main import main
from imagebuild.oci.platform import Platform
from imagebuild.testing.images import File, ImageSpec, IndexSpec, LayerSpec, make_image, make_index, write_layout
from imagebuild.testing.registry_double import RegistryDouble


def spec(architecture: str) -> ImageSpec:
    return ImageSpec((LayerSpec((File("x", architecture.encode()),)),), platform=Platform("linux", architecture))


INDEX = make_index(IndexSpec((spec("amd64"), spec("arm64"))))


class Run:
    """Runs verbs in a folder of their own, with a pair of keys."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.ref = f"oci:{write_layout(folder / 'image', INDEX)}"
        self("keygen", str(folder / "k"), "--unencrypted")
        self.private, self.public = str(folder / "k.key"), str(folder / "k.pub")

    def __call__(self, *words: str, code: int = 0) -> dict[str, Any]:
        found = main(["--json", *words])
        captured = self._capsys.readouterr()
        assert found == code, captured.out + captured.err
        value: dict[str, Any] = json.loads(captured.out)
        return value


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("IMAGEBUILD_PASSPHRASE", "COSIGN_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path, capsys)


def signatures(document: dict[str, Any]) -> list[bool | None]:
    return [check["passed"] for check in document["checks"] if check["code"] == "verify.signature"]


def test_keygen_encrypts_unless_told_otherwise(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("keygen", "a", code=2)["code"] == "attest.no-passphrase"
    assert not Path("a.key").exists()
    monkeypatch.setenv("IMAGEBUILD_PASSPHRASE", "secret")
    made = run("keygen", "a", "--type", "ed25519")
    assert (made["type"], made["encrypted"]) == ("ed25519", True)
    assert b"ENCRYPTED" in Path(made["private"]).read_bytes()
    assert stat.S_IMODE(os.stat("a.key").st_mode) == 0o600
    before = Path("a.key").read_bytes()
    assert run("keygen", "a", code=2)["code"] == "attest.key-exists"
    assert Path("a.key").read_bytes() == before
    run("sign", run.ref, "--key", "a.key")
    Path("p").write_text("wrong\n")
    assert run("sign", run.ref, "--key", "a.key", "--passphrase-file", "p", code=2)["code"] == "attest.wrong-passphrase"


def test_sign_then_verify(run: Run) -> None:
    assert signatures(run("verify", run.ref, "--key", run.public, code=1)) == [False] * 3
    signed = run("sign", run.ref, "--key", run.private)
    assert signed["reference"] == f"{run.ref}@{INDEX.digest}"
    assert [item["added"] for item in signed["attached"]] == [True] * 3
    again = run("sign", run.ref, "--key", run.private)
    assert [item["added"] for item in again["attached"]] == [False] * 3
    found = run("verify", run.ref, "--key", run.public)
    assert found["passed"]
    assert signatures(found) == [True] * 3
    for check in found["checks"]:
        if check["code"] == "verify.signature":
            assert check["expected"]
            assert check["found"]


def test_one_good_key_of_several_is_enough_and_a_strange_one_alone_is_not(run: Run) -> None:
    run("keygen", "strange", "--unencrypted")
    run("sign", run.ref, "--key", run.private)
    run("verify", run.ref, "--key", "strange.pub", code=1)
    run("verify", run.ref, "--key", "strange.pub", "--key", run.public)


def test_a_platforms_manifest_verifies_by_itself(run: Run) -> None:
    run("sign", run.ref, "--key", run.private)
    digest = INDEX.images[1].digest
    assert signatures(run("verify", f"{run.ref}@{digest}", "--key", run.public)) == [True]


def test_without_a_key_nothing_is_said_of_signatures(run: Run) -> None:
    run("sign", run.ref, "--key", run.private)
    assert signatures(run("verify", run.ref, code=3)) == [None]


def test_attest_and_a_policy(run: Run) -> None:
    Path("smoke.json").write_text('{"result": "PASSED", "configuration": [], "check": "smoke", "verdict": "passed"}')
    Path("policy.yaml").write_text(
        "schema: 1\nkeys: {k: {file: k.pub, role: tester}}\n"
        "require: [{predicate: image}, {predicate: smoke, verdicts: [passed], roles: [tester]}]\n"
    )
    run("sign", run.ref, "--key", run.private)
    found = run("verify", run.ref, "--policy", "policy.yaml", code=1)
    assert [c["found"] for c in found["checks"] if c["passed"] is False] == ["no such statement is attached"] * 2
    command = ("attest", run.ref, "--type", "smoke", "--predicate", "smoke.json", "--key", run.private)
    assert len(run(*command, "--platform", "linux/arm64")["attached"]) == 1
    run("verify", run.ref, "--policy", "policy.yaml", code=1)
    assert [item["added"] for item in run(*command)["attached"]] == [True, True, False]
    assert run("verify", run.ref, "--policy", "policy.yaml")["passed"]


@pytest.mark.parametrize(
    ("kind", "predicate"),
    [
        ("smoke", '{"result": "FAILED", "configuration": [], "check": "smoke", "verdict": "passed"}'),
        ("smoke", '{"result": "PASSED", "configuration": [], "check": "gsm8k"}'),
        ("smoke", '{"result": "PASSED"}'),
        ("sbom", '{"bomFormat": "SPDX", "specVersion": "2"}'),
        ("provenance", '{"buildDefinition": {}}'),
        ("image", "{}"),
        ("nothing", "{}"),
        ("https://example.com/p", "[]"),
        ("https://example.com/p", '{"a": 1, "a": 2}'),
        ("https://example.com/p", '{"_type": "x", "predicateType": "y"}'),
    ],
)
def test_a_predicate_that_is_not_what_it_is_said_to_be_is_not_signed(run: Run, kind: str, predicate: str) -> None:
    Path("p.json").write_text(predicate)
    command = ("attest", run.ref, "--type", kind, "--predicate", "p.json", "--key", run.private)
    assert run(*command, code=2)["code"] == "attest.bad-predicate"
    assert len(json.loads(Path("image/index.json").read_text())["manifests"]) == 1


def test_a_registry_that_cannot_say_is_exit_3(run: Run) -> None:
    with RegistryDouble() as double:
        double.put_image("a/b", INDEX, "v1")
        reference = f"{double.host}/a/b:v1"
        run("sign", reference, "--key", run.private)
        assert run("verify", reference, "--key", run.public)["passed"]
        double.fault("GET .*/referrers/", status=403, times=1000)
        assert signatures(run("verify", reference, "--key", run.public, code=3)) == [None] * 3
        run("sign", reference, "--key", run.private, code=3)


def test_a_target_names_the_repository_of_its_attestations(run: Run) -> None:
    with RegistryDouble() as double:
        folder = run.folder / "manifests" / "t"
        folder.mkdir(parents=True)
        (run.folder / "overlays").mkdir()
        (folder / "target.yaml").write_text(
            f"schema: 1\nname: t\nbase: docker.io/a/b:v1@sha256:{'0' * 64}\nplatforms: [linux/amd64]\n"
            f"attestations: {{repository: {double.host}/us/evidence}}\n"
        )
        signed = run("-C", str(run.folder), "sign", run.ref, "--key", run.private, "--target", "t")
        assert signed["repository"] == f"{double.host}/us/evidence"
        assert len(json.loads((run.folder / "image" / "index.json").read_text())["manifests"]) == 1
        run("verify", run.ref, "--key", run.public, code=1)
        run("verify", run.ref, "--key", run.public, "--attestations", f"{double.host}/us/evidence")


def test_what_takes_no_signature_says_so(run: Run) -> None:
    single = make_image(ImageSpec(()))
    archive = run.folder / "a.tar"
    from imagebuild.testing.images import make_archive

    archive.write_bytes(make_archive(single))
    assert run("sign", f"oci-archive:{archive}", "--key", run.private, code=2)["code"] == "attest.not-attachable"
    assert run("sign", run.ref, "--key", run.private, "--legacy", code=2)["code"] == "attest.not-attachable"
    assert run("sign", run.ref, "--key", run.public, code=2)["code"] == "attest.bad-key"
    assert run("verify", run.ref, "--key", run.private, code=2)["code"] == "attest.bad-key"
