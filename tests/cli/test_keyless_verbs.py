"""--keyless, --identity, and the two variables of --key, as they are called."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from imagebuild.cli.main import main
from imagebuild.testing.images import File, ImageSpec, LayerSpec, make_image, write_layout

pytest.importorskip("sigstore")
IMAGE = make_image(ImageSpec((LayerSpec((File("x", b"x"),)),)))


class Run:
    """Runs verbs beside an image in a layout."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.ref = f"oci:{write_layout(folder / 'image', IMAGE)}"

    def __call__(self, *words: str, code: int = 0) -> dict[str, Any]:
        found = main(["--json", *words])
        captured = self._capsys.readouterr()
        assert found == code, captured.out + captured.err
        value: dict[str, Any] = json.loads(captured.out)
        return value


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda: None)
    for name in ("SIGSTORE_ID_TOKEN", "IMAGEBUILD_KEY", "IMAGEBUILD_SIGNING_KEY"):
        monkeypatch.delenv(name, raising=False)
    return Run(tmp_path, capsys)


def test_a_key_or_keyless_and_not_both(run: Run) -> None:
    assert run("sign", run.ref, code=2)["code"] == "cli.usage"
    assert run("sign", run.ref, "--key", "k.key", "--keyless", code=2)["code"] == "cli.usage"
    assert run("attest", run.ref, "--type", "sbom", code=2)["code"] == "cli.usage"


def test_keyless_without_a_token_or_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("sign", run.ref, "--keyless", code=2)["code"] == "attest.no-identity-token"
    monkeypatch.setitem(sys.modules, "sigstore", None)
    assert run("sign", run.ref, "--keyless", code=3)["code"] == "attest.missing-extra"
    words = ("verify", run.ref, "--identity", "me@example.com", "--issuer", "https://example.com")
    assert run(*words, code=3)["code"] == "attest.missing-extra"


def test_an_identity_needs_its_issuer_and_a_trust_root_an_identity(run: Run) -> None:
    for words in (("--identity", "me@example.com"), ("--issuer", "https://x"), ("--trusted-root", "f", "--key", "k")):
        assert run("verify", run.ref, *words, code=2)["code"] == "cli.usage"
    Path("root.json").write_text("{}")
    who = ("--identity", "me@example.com", "--issuer", "https://example.com")
    assert run("verify", run.ref, *who, "--trusted-root", "root.json", code=2)["code"] == "attest.bad-trust-root"


def test_an_image_without_such_a_signature_is_a_no_and_fetches_nothing(run: Run) -> None:
    found = run("verify", run.ref, "--identity", "me@example.com", "--issuer", "https://example.com", code=1)
    (check,) = [check for check in found["checks"] if check["code"] == "verify.signature"]
    assert check["passed"] is False
    assert "me@example.com" in check["expected"]


def test_the_private_and_the_public_key_have_variables_of_their_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("keygen", "k", "--unencrypted")
    monkeypatch.setenv("IMAGEBUILD_SIGNING_KEY", "k.key")
    monkeypatch.setenv("IMAGEBUILD_KEY", "k.pub")
    signed = run("sign", run.ref)
    assert (signed["identity"], signed["attached"][0]["added"]) == (None, True)
    assert run("verify", run.ref)["passed"]
